"""Where a run's peak is known from: which source counts, and how the sources are compared."""

from __future__ import annotations

import pytest
from tests.controllers.observed import World
from tests.fakes import (
    exit_report,
)

from vramcast.names import PodUid
from vramcast.outcomes.outcome import Truth
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending


def test_a_jobs_own_measurement_counts_even_on_a_shared_gpu(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.pass_time(60)
    for pod in pods:
        pod["metadata"]["annotations"]["vramcast.dev/observed-memory"] = "2Gi"
        world.finish(pod)
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [2 << 30, 2 << 30]


def test_exit_reports_tell_neighbours_on_one_gpu_apart(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.telemetry.used_mib[0] = 5_000.0
    world.pass_time(60)
    for pod, mib in zip(pods, (2_000, 1_500), strict=True):
        world.finish(pod, message=exit_report(mib))
    world.pass_time(60)
    first, second = (outcome.peak_bytes for outcome in world.recorded)
    assert first - second == 500 * MIB
    # torch does not count the context of the process, but the driver does.
    context = first - 2_000 * MIB
    assert 300 * MIB < context < 2_000 * MIB
    assert [outcome.truth for outcome in world.recorded] == [Truth.REPORT, Truth.REPORT]
    assert world.metric("vramcast_outcomes_total", truth="report", ending="succeeded") == 2


def test_the_agent_tells_neighbours_on_one_gpu_apart(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.telemetry.used_mib[0] = 5_000.0
    world.telemetry.agent_mib = {PodUid("uid-first"): 3_000.0, PodUid("uid-second"): 1_500.0}
    world.pass_time(60)
    for pod in pods:
        world.finish(pod)
    world.pass_time(60)
    assert [(outcome.truth, outcome.peak_bytes // MIB) for outcome in world.recorded] == [
        (Truth.AGENT, 3_000), (Truth.AGENT, 1_500),
    ]  # fmt: skip
    assert world.metric("vramcast_outcomes_total", truth="agent", ending="succeeded") == 2
    assert world.metric("vramcast_unmeasured_runs_total") == 0


def test_a_report_counts_more_than_the_agent(world: World) -> None:
    pod = world.place("p")
    world.telemetry.agent_mib = {PodUid("uid-p"): 2_500.0}
    world.telemetry.used_mib[0] = 2_500.0
    world.pass_time(60)
    world.finish(pod, message=exit_report(2_000))
    world.pass_time(60)
    assert [outcome.truth for outcome in world.recorded] == [Truth.REPORT]


def test_each_pair_of_sources_that_saw_a_run_is_compared_once(world: World) -> None:
    pod = world.place("p")
    world.telemetry.agent_mib = {PodUid("uid-p"): 2_500.0}
    world.telemetry.used_mib[0] = 2_600.0
    world.pass_time(60)
    pod["metadata"]["annotations"]["vramcast.dev/observed-memory"] = "2500Mi"
    world.finish(pod, message=exit_report(2_000))
    world.telemetry.agent_mib, world.telemetry.used_mib[0] = {}, 0.0
    world.pass_time(60)

    def compared(truth: str, other: str) -> tuple[float, float]:
        labels = {"truth": truth, "other_truth": other}
        return tuple(world.metric(f"vramcast_truth_agreement_ratio_{part}", **labels) for part in ("count", "sum"))

    (outcome,) = world.recorded
    report = outcome.peak_bytes / MIB
    assert compared("report", "annotation") == (1, pytest.approx(report / 2_500))
    assert compared("report", "agent") == (1, pytest.approx(report / 2_500))
    assert compared("report", "alone") == (1, pytest.approx(report / 2_600))
    assert compared("annotation", "alone") == (1, pytest.approx(2_500 / 2_600))
    assert compared("agent", "alone") == (1, pytest.approx(2_500 / 2_600))
    # Measured again after a restart, it is not compared again.
    stored = world.service.tracker.accuracy.snapshot()
    world.start()
    world.service.tracker.accuracy.restore(stored)
    world.pass_time(60)
    assert world.metric("vramcast_truth_agreement_ratio_count") == 0


def test_a_source_that_saw_little_of_a_run_is_not_compared(world: World) -> None:
    pod = world.place("p")
    world.telemetry.agent_mib = {PodUid("uid-p"): 2_500.0}
    world.telemetry.used_mib[0] = 2_600.0
    world.pass_time(60)
    world.telemetry.agent_mib = None
    world.pass_time(600)
    world.finish(pod)
    world.pass_time(60)
    assert [outcome.truth for outcome in world.recorded] == [Truth.ALONE]
    assert world.metric("vramcast_truth_agreement_ratio_count") == 0


def test_every_process_of_a_report_has_a_context(world: World) -> None:
    for name, processes in (("one", 1), ("two", 2)):
        world.finish(world.place(name), message=exit_report(1_000, processes=processes))
    world.pass_time(60)
    one, two = (outcome.peak_bytes for outcome in world.recorded)
    assert two == 2 * one


def test_a_report_counts_more_than_telemetry_and_their_ratio_is_a_metric(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 2_500.0
    world.pass_time(60)
    world.finish(pod, message=exit_report(2_000))
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.peak_bytes != 2_500 * MIB
    assert world.metric("vramcast_truth_agreement_ratio_count") == 1
    assert world.metric("vramcast_truth_agreement_ratio_sum") == pytest.approx(outcome.peak_bytes / (2_500 * MIB))


def test_an_out_of_memory_in_the_report_breaks_the_promise(world: World) -> None:
    world.finish(world.place("p"), phase="Failed", message=exit_report(1_000, ended="oom"), exit_code=1)
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.ending is Ending.OOM
    assert not outcome.covered


@pytest.mark.parametrize("message", [exit_report(500_000), exit_report(1_000, processes=39)])
def test_a_report_of_more_than_the_gpu_has_is_ignored(world: World, message: str) -> None:
    """The contexts of its processes count too."""
    pod = world.place("p")
    world.telemetry.used_mib[0] = 2_500.0
    world.pass_time(60)
    world.finish(pod, message=message)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [2_500 * MIB]
    assert world.metric("vramcast_telemetry_faults_total", fault="report") == 1


def test_an_impossible_report_of_a_run_that_nobody_saw_is_no_outcome(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.telemetry.used_mib[0] = 5_000.0
    world.pass_time(60)
    for pod in pods:
        world.finish(pod, message=exit_report(500_000))
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_unmeasured_runs_total", why="unclear") == 2
