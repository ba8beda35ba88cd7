"""What a run must be for its peak to be believed."""

from __future__ import annotations

import pytest

from vramcast.names import PodUid, Product
from vramcast.outcomes.runs import Counted, Run, Unmeasured
from vramcast.task.pod import PodRecord


def run_of(*used_mib: int | None, every: float = 15.0, since: float = 0.0) -> Run:
    run = Run(PodRecord(PodUid("p"), "ns", "p"), since, 60.0, Product("NVIDIA-L40S"))
    for step, mib in enumerate(used_mib, 1):
        at = since + step * every
        run.miss(at) if mib is None else run.observe(at, mib, 0.5)
    return run


def test_the_peak_is_the_largest_value_seen() -> None:
    run = run_of(100, 900, 300)
    assert (run.peak_mib, run.last_mib) == (900, 300)
    assert run.judge(50.0, 30.0) is None


def test_a_counter_that_starts_again_at_zero_takes_no_peak_away() -> None:
    assert run_of(900, 0, 10).peak_mib == 900


def test_a_sample_that_comes_twice_counts_once() -> None:
    run = run_of(100)
    run.observe(15.0, 5_000, 1.0)
    assert (run.clear, run.peak_mib, run.utilization) == (1, 100, 0.5)


def test_a_sample_from_before_the_run_is_not_its_own() -> None:
    run = run_of(since=100.0)
    run.observe(99.0, 5_000, 1.0)
    assert run.clear == 0


def test_utilization_begins_with_the_first_byte_on_the_gpu() -> None:
    run = run_of(0, 0)
    run.observe(45.0, 100, 0.9)
    assert run.utilization == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("run", "ended_at", "why"),
    [
        (run_of(100, 100), 29.0, Unmeasured.TOO_SHORT),
        (run_of(), 100.0, Unmeasured.NO_TELEMETRY),
        (run_of(None, None, None), 100.0, Unmeasured.UNCLEAR),
        (run_of(*[100] * 8, None), 100.0, Unmeasured.UNCLEAR),
        (run_of(*[100] * 10, None), 165.0, None),
        # Telemetry was away for most of the run.
        (run_of(100, 100), 1000.0, Unmeasured.PARTLY_SEEN),
        (run_of(*[100] * 6), 100.0, None),
        # It died before its first byte on the GPU, or ran on the CPU.
        (run_of(*[3] * 6), 100.0, Unmeasured.UNUSED),
    ],
)
def test_too_short_unseen_and_unclear_runs_are_no_outcomes(run: Run, ended_at: float, why: Unmeasured | None) -> None:
    assert run.judge(ended_at, min_run_seconds=30.0) is why


def test_a_hole_in_telemetry_is_not_time_that_was_seen() -> None:
    run = run_of(100)
    run.observe(1015.0, 100, None)
    assert run.seen_seconds == 15.0 + 60.0


def test_who_was_counted_is_remembered_up_to_a_number() -> None:
    counted = Counted(most=2)
    for name in "abc":
        counted.add(PodUid(name))
    assert [name in counted for name in "abc"] == [False, True, True]
    again = Counted(most=2)
    again.restore(counted.snapshot())
    assert again.snapshot() == ["b", "c"]
