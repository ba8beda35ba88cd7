"""When a run counts as measured, and what its peak is."""

from __future__ import annotations

import pytest

from vramcast.hardware.utilization import Utilization
from vramcast.names import PodUid, Product
from vramcast.outcomes.runs import Counted, Run, Unmeasured
from vramcast.task.pod import PodRecord

HALF = Utilization(gpu_util=0.5)


def run_of(*used_mib: int | None, every: float = 15.0, since: float = 0.0) -> Run:
    run = Run(PodRecord(PodUid("p"), "ns", "p"), since, 60.0, Product("NVIDIA-L40S"))
    for step, mib in enumerate(used_mib, 1):
        at = since + step * every
        run.miss(at) if mib is None else run.observe(at, mib, HALF)
    return run


def test_the_peak_is_the_largest_value_seen() -> None:
    run = run_of(100, 900, 300)
    assert (run.peak_mib, run.last_mib) == (900, 300)
    assert run.judge(50.0, 30.0) is None


def test_a_counter_reset_does_not_lower_the_peak() -> None:
    assert run_of(900, 0, 10).peak_mib == 900


def test_a_duplicate_sample_counts_once() -> None:
    run = run_of(100)
    run.observe(15.0, 5_000, Utilization(gpu_util=1.0))
    assert (run.clear, run.peak_mib, run.utilization) == (1, 100, HALF)


def test_a_sample_from_before_the_run_is_ignored() -> None:
    run = run_of(since=100.0)
    run.observe(99.0, 5_000, HALF)
    assert run.clear == 0


def test_utilization_counts_only_while_gpu_memory_is_used() -> None:
    run = run_of(0, 0)
    run.observe(45.0, 100, Utilization(gpu_util=0.9))
    assert run.utilization == Utilization(gpu_util=0.9)


def test_each_counter_is_the_mean_of_the_samples_that_have_it() -> None:
    run = run_of()
    for at, seen in ((15.0, Utilization(0.8, 0.4)), (30.0, Utilization(0.6)), (45.0, Utilization(0.4, 0.2))):
        run.observe(at, 100, seen)
    assert run.utilization.gpu_util == pytest.approx(0.6)
    assert run.utilization.sm_active == pytest.approx(0.3)
    assert run.utilization.sm_occupancy is None


@pytest.mark.parametrize(
    ("run", "ended_at", "reason"),
    [
        (run_of(100, 100), 29.0, Unmeasured.TOO_SHORT),
        (run_of(), 100.0, Unmeasured.NO_TELEMETRY),
        (run_of(None, None, None), 100.0, Unmeasured.UNCLEAR),
        (run_of(*[100] * 8, None), 100.0, Unmeasured.UNCLEAR),
        (run_of(*[100] * 10, None), 165.0, None),
        # Telemetry was missing for most of the run.
        (run_of(100, 100), 1000.0, Unmeasured.PARTLY_SEEN),
        (run_of(*[100] * 6), 100.0, None),
        # It failed before it used GPU memory, or ran on the CPU.
        (run_of(*[3] * 6), 100.0, Unmeasured.UNUSED),
    ],
)
def test_short_unseen_and_unclear_runs_are_unmeasured(run: Run, ended_at: float, reason: Unmeasured | None) -> None:
    assert run.judge(ended_at, min_run_seconds=30.0) is reason


def test_a_gap_in_telemetry_does_not_count_as_seen() -> None:
    run = run_of(100)
    run.observe(1015.0, 100, HALF)
    assert run.watched.seen_seconds == 15.0 + 60.0


def test_a_limited_number_of_counted_pods_is_remembered() -> None:
    counted = Counted(most=2)
    for name in "abc":
        counted.add(PodUid(name))
    assert [name in counted for name in "abc"] == [False, True, True]
    restored = Counted(most=2)
    restored.restore(counted.snapshot())
    assert restored.snapshot() == ["b", "c"]
