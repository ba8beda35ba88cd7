"""What false and broken runs can do to others, with everything that learns in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes import FakeClock, new_fake_app

from vramcast.forecast.forecast import Basis, Forecast
from vramcast.names import PodUid, Product
from vramcast.outcomes.outcome import Outcome
from vramcast.task.regime import regime
from vramcast.task.run_status import Ending
from vramcast.task.task import Task, task_fingerprint
from vramcast.task.vocabulary import Architecture, Level

PRODUCT = Product("NVIDIA-A100-SXM4-40GB")
TASK = Task(
    Level.SUMMARY, architecture=Architecture.CNN, parameters=25_600_000, activations=11_100_000, batch_size=64,
    namespace="intruder",
)  # fmt: skip
KNOWN = [replace(TASK, namespace="team", batch_size=batch) for batch in (16, 24, 48, 96)]
NEW = replace(TASK, namespace="other-team", parameters=44_000_000)


class Learning:
    """An app, and runs that end as they would: a run that needs more than its promise dies."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.app = new_fake_app(clock=self.clock)

    def forecast(self, task: Task) -> Forecast:
        return self.app.service.forecaster.forecast(task, PRODUCT)

    def run(self, task: Task, need_bytes: float, said_bytes: float | None = None) -> Forecast:
        """`said_bytes`: what its report says, if that is not what it took."""
        self.clock.now += 3_600
        forecast = self.forecast(task)
        died = need_bytes > forecast.bound_bytes
        peak = forecast.bound_bytes if died else round(need_bytes)
        outcome = Outcome(
            PodUid("u"), f"{task.namespace}/p", "", task_fingerprint(task), forecast.family, task.level, PRODUCT,
            forecast.model_version, forecast.risk, forecast.median_bytes, forecast.bound_bytes,
            peak if said_bytes is None else round(said_bytes), Ending.OOM if died else Ending.SUCCEEDED,
            self.clock.now, adjustment=forecast.adjustment, regime=regime(task),
        )  # fmt: skip
        self.app.learner.record(outcome, task)
        return forecast


@pytest.fixture
def learning() -> Learning:
    found = Learning()
    for _ in range(2):
        for task in KNOWN:
            found.run(task, 0.9 * new_fake_app().service.forecaster.forecast(task, PRODUCT).median_bytes)
    return found


def bounds(learning: Learning, tasks: Sequence[Task]) -> list[int]:
    return [learning.forecast(task).bound_bytes for task in tasks]


@pytest.mark.parametrize("lie", [100.0, 5.0, 0.2, 0.01])
def test_a_false_report_moves_no_known_promise_and_its_own_recovers_within_five_runs(
    learning: Learning, lie: float
) -> None:
    need = 0.9 * learning.forecast(TASK).median_bytes
    known, new = bounds(learning, KNOWN), learning.forecast(NEW).bound_bytes
    learning.run(TASK, need, said_bytes=lie * need)
    for _ in range(5):
        learning.run(TASK, need)
    assert bounds(learning, KNOWN) == known
    assert learning.forecast(NEW).bound_bytes <= 1.1 * new
    assert need <= learning.forecast(TASK).bound_bytes <= 1.25 * need


def test_repeats_of_one_task_teach_others_nothing(learning: Learning) -> None:
    need = float(learning.forecast(TASK).median_bytes)
    learning.run(TASK, need)
    known, new = bounds(learning, KNOWN), learning.forecast(NEW).bound_bytes
    promised = [learning.run(TASK, need * 1.1**day).bound_bytes / (need * 1.1**day) for day in range(1, 9)]
    assert learning.forecast(TASK).adjustment.basis is Basis.SAME_TASK
    assert all(each >= 1.0 for each in promised[5:])
    assert bounds(learning, KNOWN) == known
    assert learning.forecast(NEW).bound_bytes == new


def test_two_tasks_under_one_fingerprint_move_nobody_else_and_stop_dying_within_five_runs(learning: Learning) -> None:
    small = 0.7 * learning.forecast(TASK).median_bytes
    known, new = bounds(learning, KNOWN), learning.forecast(NEW).bound_bytes
    kept = [learning.run(TASK, need).bound_bytes >= need for _ in range(6) for need in (small, 1.5 * small)]
    assert all(kept[5:])
    assert bounds(learning, KNOWN) == known
    assert learning.forecast(NEW).bound_bytes <= 1.1 * new
