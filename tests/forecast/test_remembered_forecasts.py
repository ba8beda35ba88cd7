"""Which of this cluster's runs a forecast rests on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from vramcast.forecast.forecast import Adjustment, Basis, Forecast
from vramcast.forecast.forecaster import CalibratedForecaster, PhysicsForecaster
from vramcast.names import Product
from vramcast.outcomes.run_memory import Forecasts
from vramcast.task.quantity import MIB
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level

L40S = Product("NVIDIA-L40S")
TASK = Task(
    Level.SUMMARY, parameters=25_600_000, activations=11_100_000, batch_size=32, architecture=Architecture.CNN,
    namespace="team",
)  # fmt: skip


@dataclass
class Cell:
    """Calibration that widens everything by a tenth."""

    revision: int = 0

    def adjustment_of(self, forecast: Forecast, regime: str) -> Adjustment:
        return Adjustment(1.1, 1.1, 9)


@dataclass
class Memory:
    """Knows the tasks of one namespace."""

    knows: str = "team"
    floor: int = 0
    revision: int = 0

    def recall(self, task: Task, product: Product, forecast: Forecast, at: Forecasts) -> Adjustment | None:
        return Adjustment(0.5, 0.4, 3, Basis.SAME_TASK) if task.namespace == self.knows else None

    def floor_mib(self, task: Task, product: Product) -> int:
        return self.floor


@pytest.fixture
def base() -> PhysicsForecaster:
    return PhysicsForecaster(0.05)


def test_runs_of_the_task_count_before_calibration(base: PhysicsForecaster) -> None:
    forecaster = CalibratedForecaster(base, Cell(), Memory())
    alone = base.forecast(replace(TASK, namespace=""), L40S)
    forecast = forecaster.forecast(TASK, L40S)
    assert forecast.median_bytes == pytest.approx(0.5 * alone.median_bytes, abs=1)
    assert forecast.adjustment.basis is Basis.SAME_TASK
    assert forecast.parts[-1].because.startswith("3 runs of this task took 50% less than forecast")


def test_another_namespace_gets_calibration(base: PhysicsForecaster) -> None:
    forecaster = CalibratedForecaster(base, Cell(), Memory())
    assert forecaster.forecast(replace(TASK, namespace="other"), L40S).adjustment.basis is Basis.CLUSTER


def test_a_floor_raises_what_calibration_says(base: PhysicsForecaster) -> None:
    forecaster = CalibratedForecaster(base, Cell(), Memory(knows="", floor=40_000))
    assert forecaster.forecast(TASK, L40S).bound_bytes == pytest.approx(40_000 * MIB, rel=0.001)


def test_the_users_own_number_is_never_moved(base: PhysicsForecaster) -> None:
    forecaster = CalibratedForecaster(base, Cell(), Memory(floor=40_000))
    own = Task(Level.GIVEN, gpu_memory_mib=1_000, namespace="team")
    assert forecaster.forecast(own, L40S).bound_bytes == 1_000 * MIB


def test_the_artifact_is_asked_once_for_all_namespaces(base: PhysicsForecaster) -> None:
    forecaster = CalibratedForecaster(base, Cell(), Memory())
    forecaster.forecast(TASK, L40S)
    assert forecaster.is_cached(replace(TASK, namespace="other"), L40S)


def test_a_new_run_moves_the_next_forecast(base: PhysicsForecaster) -> None:
    memory = Memory()
    forecaster = CalibratedForecaster(base, Cell(), memory)
    before = forecaster.forecast(TASK, L40S)
    memory.knows, memory.revision = "", 1
    assert forecaster.forecast(TASK, L40S).bound_bytes > before.bound_bytes
