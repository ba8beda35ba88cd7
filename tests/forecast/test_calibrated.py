"""Forecasts on top of which this cluster's runs count, told in the explanation."""

from __future__ import annotations

from dataclasses import replace

from tests.outcomes.laws import LAWS, finish, runs
from vramcast.forecast import physics
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import CALIBRATION_PART, CalibratedForecaster, PhysicsForecaster
from vramcast.names import Product
from vramcast.outcomes.calibration import Calibrator
from vramcast.outcomes.outcome import Outcome
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level

A100 = Product("NVIDIA-A100-SXM4-40GB")
TASK = Task(Level.SUMMARY, parameters=10**8, activations=10**7, batch_size=8, architecture=Architecture.CNN)


def taught(factor: float, count: int = 64) -> Calibrator:
    """By runs that each took `factor` times what physics says."""
    calibrator = Calibrator(physics.VERSION)
    said = PhysicsForecaster(0.05).forecast(TASK, A100)
    for run in runs(LAWS[0], 1, count):
        calibrator.record(_outcome(said, run.number, factor))
    return calibrator


def _outcome(said: Forecast, number: int, factor: float) -> Outcome:
    seen = finish(next(runs(LAWS[0], number, 1)), LAWS[0], said.adjustment)
    peak = round(said.median_bytes * factor)
    return replace(seen, median_bytes=said.median_bytes, bound_bytes=said.bound_bytes, peak_bytes=peak,
                   model_version=physics.VERSION)  # fmt: skip


def test_a_forecast_tells_what_this_clusters_runs_made_of_it() -> None:
    base = PhysicsForecaster(0.05)
    forecast = CalibratedForecaster(base, taught(1.18)).forecast(TASK, A100)
    assert forecast.parts[-1].name == CALIBRATION_PART
    assert "this cluster's runs took 18% more than forecast" in forecast.parts[-1].because
    assert "64 outcomes" in forecast.parts[-1].because
    assert forecast.adjustment.outcomes == 64
    assert sum(part.size_bytes for part in forecast.parts) == forecast.median_bytes


def test_what_is_known_by_heart_still_learns() -> None:
    """The memory of answers is below: nothing that was forecast before keeps its old bound."""
    calibrator = taught(1.0, 5)
    forecaster = CalibratedForecaster(PhysicsForecaster(0.05), calibrator)
    before = forecaster.forecast(TASK, A100)
    base = PhysicsForecaster(0.05).forecast(TASK, A100)
    for number in range(30):
        calibrator.record(_outcome(base, number, 2.0))
    assert forecaster.forecast(TASK, A100).bound_bytes > 1.2 * before.bound_bytes


def test_runs_that_need_less_tighten_wide_bounds_but_never_below_the_median() -> None:
    base = PhysicsForecaster(0.05).forecast(TASK, A100)
    forecast = CalibratedForecaster(PhysicsForecaster(0.05), taught(1.0)).forecast(TASK, A100)
    assert forecast.median_bytes <= forecast.bound_bytes < 0.85 * base.bound_bytes
    assert round(forecast.bound_bytes / forecast.adjustment.bound / base.bound_bytes, 3) == 1.0


def test_the_users_own_number_is_never_touched() -> None:
    given = Task(Level.GIVEN, gpu_memory_mib=12_345, architecture=Architecture.CNN)
    assert CalibratedForecaster(PhysicsForecaster(0.05), taught(1.5)).forecast(given, A100).need_mib == 12_345


def test_off_means_the_artifacts_own_bounds() -> None:
    base = PhysicsForecaster(0.05)
    assert CalibratedForecaster(base, None).forecast(TASK, A100) is base.forecast(TASK, A100)


def test_less_risk_still_never_means_less_memory() -> None:
    forecaster = CalibratedForecaster(PhysicsForecaster(0.05), taught(1.3))
    bounds = [
        forecaster.forecast(replace(TASK, max_oom_risk=risk), A100).bound_bytes for risk in (0.2, 0.1, 0.05, 0.01)
    ]
    assert bounds == sorted(bounds)
