"""From telemetry polls to room on GPUs."""

from __future__ import annotations

import asyncio

import pytest
from tests.controllers.observed import World, reserved_mib
from tests.fakes import (
    shared_pod,
)

from vramcast.names import PodUid
from vramcast.task.quantity import MIB

# --- unmanaged memory


def test_unmanaged_memory_keeps_pods_off_its_gpu_from_the_next_poll_on(world: World) -> None:
    free = world.room(0)
    world.telemetry.used_mib = {0: 10_240.0, 1: 0.0}
    world.pass_time(15)
    assert world.room(0) == free - 10_240
    assert world.room(1) == free
    answer = asyncio.run(world.client.filter(shared_pod("large", "35Gi", gpus="2"), ["a"]))
    assert "outside" in str(answer["FailedNodes"]) or "outside" in str(answer["FailedAndUnresolvableNodes"]), answer
    assert world.metric("vramcast_unmanaged_bytes") == 10_240 * MIB
    assert world.metric("vramcast_node_rejections_total", reason="unmanaged") == 1


def test_freed_unmanaged_memory_becomes_room_again(world: World) -> None:
    free = world.room(0)
    world.telemetry.used_mib = {0: 10_240.0, 1: 0.0}
    world.pass_time(15)
    world.telemetry.used_mib = {0: 0.0, 1: 0.0}
    world.pass_time(15)
    assert world.room(0) == free


def test_a_running_pod_counts_once_at_its_promise(world: World) -> None:
    world.place("p")
    promised = world.room(0)
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 500
    world.pass_time(60)
    assert world.room(0) == promised


def test_a_pod_that_outgrew_its_promise_counts_at_what_it_uses(world: World) -> None:
    world.place("p")
    promised = world.room(0)
    world.telemetry.used_mib[0] = reserved_mib(world, "p") + 700
    world.pass_time(15)
    assert world.room(0) == promised - 700


def test_the_utilization_of_a_pod_alone_on_its_gpu_replaces_its_forecast(world: World) -> None:
    world.place("p")
    world.telemetry.busy_percent = 12.0
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 500
    world.pass_time(60)
    promise = world.service.state.ledger.promise_of(PodUid("uid-p"))
    assert promise is not None
    assert promise.load.busy == pytest.approx(0.12)


def test_a_finished_pods_room_is_free_at_once_and_stays_free(world: World) -> None:
    free = world.room(0)
    pod = world.place("p")
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 100
    world.pass_time(60)
    world.finish(pod)
    assert world.room(0) == free
    # The exporter's value is a few seconds old and still includes the pod.
    world.pass_time(5, step=5)
    assert world.room(0) == free
    world.telemetry.used_mib[0] = 0
    world.pass_time(60)
    assert world.room(0) == free


# --- missing or bad telemetry


def test_without_telemetry_only_promises_count_and_the_age_metric_grows(world: World) -> None:
    free = world.room(0)
    world.telemetry.used_mib[0] = 10_240.0
    world.pass_time(30)
    world.telemetry.down = True
    world.pass_time(600)
    assert world.room(0) == free
    assert world.metric("vramcast_telemetry_age_seconds") == pytest.approx(600)
    assert world.metric("vramcast_telemetry_polls_total", result="failed") == 40
    world.place("p")
    world.telemetry.down = False
    world.pass_time(15)
    assert world.metric("vramcast_telemetry_age_seconds") == 0


def test_a_run_during_an_outage_is_read_from_history_and_counted_once(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 3_000.0
    world.pass_time(60)
    world.telemetry.down = True
    world.telemetry.used_mib[0] = 4_000.0
    world.pass_time(300)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(300)
    assert world.recorded == []
    world.telemetry.down = False
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [4_000 * MIB]
    world.pass_time(300)
    assert len(world.recorded) == 1
    assert world.metric("vramcast_outcomes_total") == 1


def test_the_telemetry_age_is_infinite_before_the_first_sample() -> None:
    world = World()
    world.telemetry.down = True
    world.pass_time(15)
    assert world.metric("vramcast_telemetry_age_seconds") == float("inf")


@pytest.mark.parametrize(
    ("value", "fault"), [(float("nan"), "not_a_number"), (-5.0, "negative"), (9e9, "unit"), (60_000.0, "unit")]
)
def test_bad_values_leave_promises_alone_and_are_counted(world: World, value: float, fault: str) -> None:
    world.place("p")
    before = world.room(0)
    world.telemetry.used_mib[0] = value
    world.pass_time(30)
    assert world.room(0) == before
    # The second poll sees the first sample again.
    assert world.metric("vramcast_telemetry_faults_total", fault=fault) >= 2


def test_samples_from_a_clock_that_is_ahead_are_ignored_and_counted(world: World) -> None:
    free = world.room(0)
    world.telemetry.skew_seconds = 600.0
    world.telemetry.used_mib[0] = 10_240.0
    world.pass_time(30)
    assert world.room(0) == free
    assert world.metric("vramcast_telemetry_faults_total", fault="ahead") > 0


def test_samples_from_a_clock_that_is_behind_count_as_stale(world: World) -> None:
    world.place("p")
    before = world.room(0)
    world.telemetry.skew_seconds = -300.0
    world.telemetry.used_mib[0] = 30_000.0
    world.pass_time(600)
    assert world.room(0) == before
    assert world.metric("vramcast_telemetry_faults_total", fault="stale") > 0
    assert world.metric("vramcast_telemetry_age_seconds") >= 300


def test_values_that_reset_to_zero_free_no_promise(world: World) -> None:
    world.place("p")
    before = world.room(0)
    for mib in (3_000.0, 0.0, 10.0):
        world.telemetry.used_mib[0] = mib
        world.pass_time(30)
        assert world.room(0) == before


def test_the_setting_detail_metrics_adds_series_per_pod_and_gpu() -> None:
    world = World(detail_metrics=True)
    world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(15)
    assert world.metric("vramcast_pod_observed_bytes", task_pod="p") == 1_000 * MIB
    assert world.metric("vramcast_pod_predicted_bytes", quantile="bound") == reserved_mib(world, "p") * MIB
    assert world.metric("vramcast_gpu_promised_bytes", gpu_node="a") == reserved_mib(world, "p") * MIB
