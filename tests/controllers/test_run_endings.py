"""From ended runs to outcomes, each counted once."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from tests.controllers.observed import World, reserved_mib
from tests.fakes import (
    exit_report,
)

from vramcast.hardware.utilization import Utilization
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending


def test_a_run_becomes_an_outcome_with_its_promise_and_its_measured_peak(world: World) -> None:
    pod = world.place("p")
    need_mib = reserved_mib(world, "p")
    for used in (1_000.0, 3_500.0, 3_000.0):
        world.telemetry.used_mib[0] = used
        world.pass_time(30)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    (outcome,) = world.recorded
    assert (outcome.pod, outcome.family, outcome.level) == ("default/p", "cnn", "summary")
    assert (outcome.product, outcome.ending) == ("NVIDIA-A100-SXM4-40GB", Ending.SUCCEEDED)
    assert (outcome.peak_bytes, outcome.bound_bytes) == (3_500 * MIB, need_mib * MIB)
    assert outcome.median_bytes < outcome.bound_bytes
    assert outcome.risk == 0.05
    assert outcome.utilization_observed == Utilization(gpu_util=0.5)
    assert world.metric("vramcast_promises_kept_total") == 1
    assert world.metric("vramcast_coverage_ratio", family="cnn") == 1
    assert world.metric("vramcast_forecast_error_ratio_sum") == pytest.approx(outcome.peak_bytes / outcome.median_bytes)


@pytest.mark.parametrize(
    ("phase", "message", "exit_code", "ending"),
    [
        ("Succeeded", "", 0, Ending.SUCCEEDED),
        ("Failed", "Traceback: KeyError", 1, Ending.FAILED),
        ("Failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1, Ending.OOM),
        ("Failed", "", 77, Ending.OOM),
        ("Failed", "OOMKilled", 137, Ending.FAILED),
    ],
)
def test_the_ending_of_a_run_is_read_from_its_pod(phase: str, message: str, exit_code: int, ending: Ending) -> None:
    world = World(oom_exit_codes="77,78")
    pod = world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.finish(pod, phase, message, exit_code)
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.ending is ending
    assert world.metric("vramcast_ooms_total") == (1 if ending is Ending.OOM else 0)
    if ending is Ending.OOM:
        assert outcome.peak_bytes >= outcome.bound_bytes
        assert not outcome.covered


def test_an_oom_within_seconds_is_still_an_outcome(world: World) -> None:
    pod = world.place("p")
    world.pass_time(5, step=5)
    world.finish(pod, "Failed", "CUDA out of memory", 1)
    world.pass_time(60)
    assert [outcome.ending for outcome in world.recorded] == [Ending.OOM]


def test_a_job_may_report_its_own_oom(world: World) -> None:
    pod = world.place("p")
    pod["metadata"]["annotations"]["vramcast.dev/out-of-memory"] = "true"
    world.pass_time(60)
    world.finish(pod, "Failed")
    world.pass_time(60)
    assert [outcome.ending for outcome in world.recorded] == [Ending.OOM]


def test_a_deleted_pod_counts_as_stopped(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.delete(pod)
    world.pass_time(60)
    assert [outcome.ending for outcome in world.recorded] == [Ending.STOPPED]


def test_runs_that_cannot_be_measured_are_counted_by_reason(world: World) -> None:
    short = world.place("short")
    world.pass_time(15)
    world.finish(short)
    world.pass_time(60)
    first, second = world.place("first"), world.place("second")
    world.telemetry.used_mib[0] = 5_000.0
    world.pass_time(60)
    for pod in (first, second):
        world.finish(pod)
    world.telemetry.used_mib = {0: 0.0, 1: 0.0}
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_unmeasured_runs_total", why="too_short") == 1
    assert world.metric("vramcast_unmeasured_runs_total", why="unclear") == 2


def test_a_run_with_a_users_own_number_is_measured_but_not_learned_from(world: World) -> None:
    pod = world.place("p", {"share": "true", "gpu-memory": "10Gi"})
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.finish(pod)
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_outcomes_total", level="given") == 1


# --- restarts


def test_a_restart_during_a_run_loses_none_of_its_measurements(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 3_500.0
    world.pass_time(900)
    world.telemetry.used_mib[0] = 2_000.0
    world.start()
    world.see(pod)
    world.pass_time(60)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [3_500 * MIB]


def test_a_run_that_ended_while_the_service_was_down_is_counted_once(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 3_500.0
    world.pass_time(900)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.clock.now += 120
    world.telemetry.tick()
    world.start()
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [3_500 * MIB]
    stored = world.service.tracker.accuracy.snapshot()
    world.start()
    world.service.tracker.accuracy.restore(stored)
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_outcomes_total") == 1


def test_runs_that_ended_while_the_service_was_down_are_learned_in_the_order_of_their_ends(world: World) -> None:
    late, early = world.place("a-late"), world.place("b-early")
    for pod, mib in ((early, 1_000), (late, 2_000)):
        world.clock.now += 60
        world.finish(pod, message=exit_report(mib))
    world.start()
    world.pass_time(60)
    assert [outcome.pod for outcome in world.recorded] == ["default/b-early", "default/a-late"]


def test_accuracy_metrics_survive_a_restart(world: World) -> None:
    for number in range(3):
        pod = world.place(f"p{number}")
        world.telemetry.used_mib[0] = 1_000.0 + number
        world.pass_time(60)
        world.finish(pod)
        world.telemetry.used_mib[0] = 0.0
        world.pass_time(60)
    names = (
        "vramcast_outcomes_total", "vramcast_promises_kept_total", "vramcast_forecast_error_ratio_sum",
        "vramcast_forecast_bias_ratio", "vramcast_over_reservation_ratio_bucket", "vramcast_coverage_outcomes",
        "vramcast_utilization_error_ratio_count",
    )  # fmt: skip
    before = {name: world.metric(name) for name in names}
    stored = msgspec.json.decode(msgspec.json.encode(world.service.tracker.accuracy.snapshot()))
    world.start()
    world.service.tracker.accuracy.restore(stored)
    assert {name: world.metric(name) for name in names} == pytest.approx(before)


def test_a_replica_that_does_not_lead_counts_no_outcomes(world: World) -> None:
    class Follower:
        fenced = True
        leading = False

        async def await_lead(self) -> None: ...

        def check(self) -> None: ...

    pod = world.place("p")
    world.use(replace(world.service, leadership=Follower(), may_count=lambda: False))
    world.telemetry.used_mib = {0: 1_000.0, 1: 10_240.0}
    free = world.room(1)
    world.pass_time(60)
    # Every replica tracks unmanaged memory, because it may become the leader at any time.
    assert world.room(1) == free - 10_240
    world.finish(pod)
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_outcomes_total") == 0
