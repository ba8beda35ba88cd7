from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.errors import FieldError, InvalidTask
from vramcast.forecast.forecast import UNADJUSTED, Adjustment, Basis, Forecast, Source, parse_adjustment
from vramcast.forecast.forecaster import adjust
from vramcast.names import PodUid, Product
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_memory import KEPT_PEAKS, RunMemory
from vramcast.outcomes.run_memory_text import MOST_STORED_BYTES, memory_text, read_memory
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending
from vramcast.task.task import Task, task_fingerprint
from vramcast.task.vocabulary import Level

PRODUCT = Product("NVIDIA-L40S")
TASK = Task(Level.NAME, model="resnet50", batch_size=32, namespace="team")
DAY = 86_400.0
# What the artifact says: a fixed part and a part for each sample, and three times as much for the bound.
FIXED_MIB, SAMPLE_MIB, WIDTH = 2_000, 250, 3.0


def said(task: Task, risk: float = 0.05) -> Forecast:
    median = (FIXED_MIB + SAMPLE_MIB * task.batch_size) * MIB
    return Forecast(PRODUCT, median, round(WIDTH * median), risk, Source.MODEL, "m")


class World:
    """A memory and its clock."""

    def __init__(self) -> None:
        self.now = 1_000 * DAY
        self.memory = RunMemory(lambda: self.now)

    def run(self, mib: float, task: Task = TASK, ending: Ending = Ending.SUCCEEDED) -> Forecast:
        """One run, forecast as it would be. Returns that forecast."""
        self.now += 3_600
        forecast = self.forecast(task)
        outcome = Outcome(
            PodUid("u"), f"{task.namespace}/p", "", task_fingerprint(task), "cnn", Level.NAME, PRODUCT, "m", 0.05,
            forecast.median_bytes, forecast.bound_bytes, round(mib * MIB), ending, self.now,
            adjustment=forecast.adjustment,
        )  # fmt: skip
        self.memory.record(outcome, task)
        return forecast

    def forecast(self, task: Task = TASK, risk: float = 0.05) -> Forecast:
        base = said(task, risk)
        recalled = self.memory.recall(task, PRODUCT, base, lambda other: said(other, risk))
        return adjust(base, recalled or UNADJUSTED)

    def bound_mib(self, task: Task = TASK, risk: float = 0.05) -> float:
        return self.forecast(task, risk).bound_bytes / MIB


@pytest.fixture
def world() -> World:
    return World()


# --- the same task


def test_one_good_run_puts_the_bound_a_few_percent_above_it(world: World) -> None:
    assert world.bound_mib() > 20_000
    world.run(7_000)
    forecast = world.forecast()
    assert forecast.median_bytes / MIB == pytest.approx(7_000, rel=0.001)
    assert 1.01 < forecast.bound_bytes / forecast.median_bytes < 1.05
    assert forecast.adjustment.basis is Basis.SAME_TASK
    assert forecast.adjustment.outcomes == 1


def test_the_margin_grows_with_the_time_since_the_last_run(world: World) -> None:
    world.run(7_000)
    bounds = []
    for days in (1, 45, 90):
        world.now += days * DAY
        bounds.append(world.bound_mib())
    assert bounds == sorted(bounds)
    assert bounds[0] < bounds[1] < bounds[2]


def test_less_risk_means_a_higher_bound(world: World) -> None:
    world.run(7_000)
    bounds = [world.bound_mib(risk=risk) for risk in (0.5, 0.1, 0.05, 0.02, 0.01, 0.001)]
    assert bounds == sorted(bounds)
    assert bounds[0] == pytest.approx(7_000, rel=0.001)


def test_other_namespaces_products_and_settings_know_nothing_of_it(world: World) -> None:
    world.run(7_000)
    base = said(TASK)
    for task, product in (
        (replace(TASK, namespace="other"), PRODUCT),
        (TASK, Product("NVIDIA-T4")),
        (replace(TASK, gradient_checkpointing=True), PRODUCT),
    ):
        assert world.memory.recall(task, product, replace(base, product=product), said) is None


def test_what_does_not_change_the_run_does_not_hide_it(world: World) -> None:
    world.run(7_000)
    assert world.forecast(replace(TASK, share=True, gpus=2)).adjustment.basis is Basis.SAME_TASK


def test_a_job_that_grows_every_day_is_followed(world: World) -> None:
    mib, kept = 7_000.0, []
    for _ in range(8):
        promised = world.run(mib).bound_bytes / MIB
        kept.append(promised >= mib)
        mib *= 1.1
    assert all(kept[3:])
    assert world.bound_mib() < 1.25 * mib


# --- floors


def test_an_out_of_memory_at_a_remembered_promise_lets_the_artifact_speak_again(world: World) -> None:
    world.run(7_000)
    world.run(world.bound_mib(), ending=Ending.OOM)
    assert world.memory.recall(TASK, PRODUCT, said(TASK), said) is None
    assert world.memory.floor_mib(TASK, PRODUCT) > 1.19 * 7_000


@pytest.mark.parametrize("ending", [Ending.STOPPED, Ending.FAILED])
def test_a_run_that_did_not_finish_is_only_a_floor(world: World, ending: Ending) -> None:
    world.run(9_000, ending=ending)
    assert world.forecast().adjustment == UNADJUSTED
    assert world.memory.floor_mib(TASK, PRODUCT) == 9_000
    world.run(7_000)
    assert world.memory.floor_mib(TASK, PRODUCT) == 0


def test_a_floor_raises_what_a_former_run_says(world: World) -> None:
    world.run(7_000)
    world.run(9_000, ending=Ending.STOPPED)
    assert world.bound_mib() >= 9_000 * 0.999


# --- the same network


def test_two_batch_sizes_make_a_line(world: World) -> None:
    for batch, mib in ((8, 3_000), (32, 9_000)):
        world.run(mib, replace(TASK, batch_size=batch))
    forecast = world.forecast(replace(TASK, batch_size=16))
    assert forecast.median_bytes / MIB == pytest.approx(5_000, rel=0.001)
    assert forecast.adjustment.basis is Basis.SAME_NETWORK
    assert forecast.adjustment.outcomes == 2


def test_one_batch_size_shifts_the_forecast_of_another(world: World) -> None:
    world.run(1.3 * (FIXED_MIB + 32 * SAMPLE_MIB))
    other = replace(TASK, batch_size=128)
    assert world.forecast(other).median_bytes == pytest.approx(1.3 * said(other).median_bytes, rel=0.001)


def test_a_line_does_not_reach_far_beyond_its_runs(world: World) -> None:
    for batch in (8, 16):
        world.run(1.5 * (FIXED_MIB + batch * SAMPLE_MIB), replace(TASK, batch_size=batch))
    far = replace(TASK, batch_size=256)
    assert world.forecast(far).median_bytes == pytest.approx(1.5 * said(far).median_bytes, rel=0.001)


def test_lengths_make_a_line_too(world: World) -> None:
    for length, mib in ((512, 4_000), (1024, 6_000)):
        world.run(mib, replace(TASK, sequence_length=length))
    between = replace(TASK, sequence_length=768)
    assert world.forecast(between).median_bytes / MIB == pytest.approx(5_000, rel=0.001)


def test_a_larger_run_never_gets_less_than_a_smaller_one_took(world: World) -> None:
    world.run(9_000, replace(TASK, batch_size=16))
    world.run(5_000, replace(TASK, batch_size=64))
    assert world.bound_mib(replace(TASK, batch_size=128)) >= 9_000 * 0.999


def test_where_the_artifact_says_nothing_only_lines_speak(world: World) -> None:
    world.run(7_000)

    def refuse(_task: Task) -> Forecast:
        raise InvalidTask([FieldError("batch-size", "32", "not recorded")])

    other = replace(TASK, batch_size=33)
    assert world.memory.recall(other, PRODUCT, said(other), refuse) is None


# --- false and broken runs


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_a_peak_far_from_any_forecast_is_not_believed(world: World, factor: float) -> None:
    world.run(factor * said(TASK).median_bytes / MIB)
    assert world.forecast().adjustment == UNADJUSTED
    assert world.memory.disbelieved == 1


@pytest.mark.parametrize("lie", [1_200, 60_000])
def test_a_lie_moves_nobody_else_and_its_own_task_recovers_within_five_runs(world: World, lie: float) -> None:
    others = [replace(TASK, namespace=f"team-{number}") for number in range(3)]
    for other in others:
        world.run(7_000, other)
    before = [world.bound_mib(other) for other in others]
    world.run(7_000)
    world.run(lie)
    for _ in range(5):
        enough = world.bound_mib() >= 7_000
        world.run(min(7_000, world.bound_mib()), ending=Ending.SUCCEEDED if enough else Ending.OOM)
    assert [world.bound_mib(other) for other in others] == before
    assert 7_000 <= world.bound_mib() < 1.5 * 7_000


def test_two_jobs_under_one_fingerprint_get_what_the_larger_one_needs(world: World) -> None:
    kept = []
    for number in range(20):
        mib = (6_000, 9_000)[number % 2]
        kept.append(world.run(mib).bound_bytes / MIB >= mib)
    assert all(kept[3:])


@given(
    st.lists(
        st.tuples(st.floats(1_000, 60_000), st.sampled_from(list(Ending)), st.sampled_from((8, 16, 32, 64))),
        max_size=30,
    )
)
def test_whatever_has_run_the_bound_is_finite_and_not_below_the_median(
    runs: list[tuple[float, Ending, int]],
) -> None:
    world = World()
    for mib, ending, batch in runs:
        world.run(mib, replace(TASK, batch_size=batch), ending)
    for batch in (4, 8, 24, 512):
        forecast = world.forecast(replace(TASK, batch_size=batch))
        assert 0 < forecast.median_bytes <= forecast.bound_bytes < 1 << 60


# --- this namespace's own scatter


def test_a_namespace_whose_runs_scatter_gets_wider_bounds_and_its_neighbour_does_not(world: World) -> None:
    draw = random.Random(3)
    for namespace, spread in (("noisy", 0.15), ("calm", 0.001)):
        for number in range(60):
            task = replace(TASK, namespace=namespace, model=f"m{number}")
            for _ in range(2):
                world.run(7_000 * math.exp(abs(draw.gauss(0.0, spread))), task)
    new = {name: replace(TASK, namespace=name, model="new") for name in ("noisy", "calm", "unknown")}
    for task in new.values():
        world.run(7_000, task)
    bounds = {name: world.bound_mib(task) for name, task in new.items()}
    assert bounds["calm"] < bounds["unknown"] < bounds["noisy"]


# --- over a restart


def test_it_is_the_same_after_a_restart(world: World) -> None:
    world.run(7_000)
    world.run(7_100)
    world.run(3_000, replace(TASK, batch_size=8, input_size=(3, 224, 224)))
    world.run(5_000, replace(TASK, sequence_length=512), Ending.STOPPED)
    world.run(5_000, replace(TASK, sequence_length=256), Ending.OOM)
    restarted = World()
    restarted.now = world.now
    restarted.memory.put(read_memory(memory_text(list(world.memory.tasks()))))
    assert list(restarted.memory.tasks()) == [replace(t, last_at=round(t.last_at)) for t in world.memory.tasks()]
    for task in (*(replace(TASK, batch_size=batch) for batch in (8, 16, 32)), replace(TASK, sequence_length=256)):
        assert restarted.forecast(task) == world.forecast(task)


def test_the_oldest_tasks_are_dropped(world: World) -> None:
    world.memory = RunMemory(lambda: world.now, most=3)
    for number in range(5):
        world.run(7_000, replace(TASK, model=f"m{number}"))
    assert len(world.memory) == 3
    assert world.forecast(replace(TASK, model="m0")).adjustment == UNADJUSTED
    assert world.forecast(replace(TASK, model="m4")).adjustment.basis is Basis.SAME_TASK


def test_ten_thousand_tasks_fit_into_a_config_map(world: World) -> None:
    for number in range(10_000):
        task = replace(TASK, namespace=f"team-{number % 50}", model=f"m{number}")
        for _ in range(2):
            world.run(7_000 + number % 977, task)
    text = memory_text(list(world.memory.tasks()))
    assert len(text) <= MOST_STORED_BYTES
    assert len(read_memory(text)) == 10_000


@pytest.mark.parametrize("text", ["", "x", "e30=", "eJyrVspLzE1VslJQSkxKVtJRUMpLLQYzKgEAaIgHrw=="])
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        read_memory(text)


def test_only_the_last_peaks_are_kept(world: World) -> None:
    for _ in range(2 * KEPT_PEAKS):
        world.run(7_000)
    (task,) = world.memory.tasks()
    assert len(task.peaks_mib) == KEPT_PEAKS
    assert task.runs == 2 * KEPT_PEAKS


def test_the_basis_survives_the_annotation() -> None:
    for adjustment in (Adjustment(0.5, 0.4, 3, Basis.SAME_TASK), Adjustment(1.1, 1.2, 7)):
        assert parse_adjustment(str(adjustment)) == adjustment
    assert parse_adjustment("1.0,1.0,3,guess") == UNADJUSTED
