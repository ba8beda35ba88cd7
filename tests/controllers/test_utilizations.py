"""From the forecast at bind to the metric: each counter of utilization is compared with itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.controllers.busy import FORECAST, BusyWorld
from tests.controllers.observed import SUMMARY, World, reserved_mib

from vramcast.hardware.utilization import FORECAST_COUNTERS, UtilizationCounter
from vramcast.names import PodUid
from vramcast.placement.interference import Load, pressure
from vramcast.task.vocabulary import Written
from vramcast.task.written_utilization import ANNOTATIONS, read_utilization

ERROR, SCRAPED = "vramcast_utilization_error_ratio", "vramcast_utilization_scraped"
PROFILED = {UtilizationCounter.SM_ACTIVE: 0.41, UtilizationCounter.SM_OCCUPANCY: 0.2}


@pytest.fixture
def world() -> World:
    return BusyWorld()


def run(world: World, written: dict[Written, str] | None = None) -> None:
    """A pod that runs to its end. `written`: what it has instead of what bind wrote about utilization."""
    pod = world.place("p")
    annotations = pod["metadata"]["annotations"]
    assert read_utilization(annotations) == FORECAST
    if written is not None:
        kept = {name: value for name, value in annotations.items() if name not in ANNOTATIONS.values()}
        pod["metadata"]["annotations"] = kept | {str(name): value for name, value in written.items()}
        world.start()
        world.see(pod)
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 500.0
    world.pass_time(60)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)


def compared(world: World) -> dict[str, float]:
    """How many runs, by counter."""
    return {counter: world.metric(f"{ERROR}_bucket", le="+Inf", counter=counter) for counter in FORECAST_COUNTERS}


def errors(world: World) -> dict[str, float]:
    (group,) = world.service.tracker.accuracy.groups.values()
    return {counter.value: tally.total for counter, tally in group.utilization.items()}


def test_every_counter_is_compared_with_what_bind_wrote_about_it(world: World) -> None:
    world.telemetry.profiled = PROFILED
    run(world)
    assert errors(world) == pytest.approx({"gpu_util": 0.93 - 0.5, "sm_active": 0.64 - 0.41, "sm_occupancy": 0.11})
    assert compared(world) == {"gpu_util": 1, "sm_active": 1, "sm_occupancy": 1}
    assert {counter: world.metric(SCRAPED, counter=counter) for counter in FORECAST_COUNTERS} == dict.fromkeys(
        FORECAST_COUNTERS, 1.0
    )


def test_a_counter_that_is_not_scraped_is_compared_with_nothing_and_a_metric_says_so(world: World) -> None:
    run(world)
    assert compared(world) == {"gpu_util": 1, "sm_active": 0, "sm_occupancy": 0}
    assert [world.metric(SCRAPED, counter=counter) for counter in FORECAST_COUNTERS] == [1, 0, 0]


def test_a_counter_that_is_no_longer_scraped_is_told_after_a_while(world: World) -> None:
    world.telemetry.profiled = PROFILED
    world.pass_time(15)
    assert world.metric(SCRAPED, counter="sm_active") == 1
    world.telemetry.profiled = {}
    world.telemetry.past.clear()
    world.pass_time(120)
    assert [world.metric(SCRAPED, counter=counter) for counter in FORECAST_COUNTERS] == [1, 0, 0]


def test_what_was_written_at_bind_counts_and_not_todays_forecast(world: World) -> None:
    run(world, dict.fromkeys(ANNOTATIONS.values(), "0.10"))
    assert errors(world)["gpu_util"] == pytest.approx(0.10 - 0.5)


def test_a_pod_of_an_earlier_version_is_compared_by_the_counter_that_was_written(world: World) -> None:
    world.telemetry.profiled = PROFILED
    run(world, {Written.FORECAST_UTILIZATION: "0.77"})
    # What was not written is forecast again.
    assert errors(world) == pytest.approx({"gpu_util": 0.93 - 0.5, "sm_active": 0.77 - 0.41, "sm_occupancy": 0.11})


def test_the_counts_survive_a_restart_and_those_of_earlier_versions_are_gpu_util(world: World) -> None:
    world.telemetry.profiled = PROFILED
    run(world)
    stored = msgspec.json.decode(msgspec.json.encode(world.service.tracker.accuracy.snapshot()))
    world.start()
    world.service.tracker.accuracy.restore(stored)
    assert compared(world) == {"gpu_util": 1, "sm_active": 1, "sm_occupancy": 1}
    for entry in stored["groups"]:
        del entry["sm_active"], entry["sm_occupancy"]
    world.start()
    world.service.tracker.accuracy.restore(stored)
    assert compared(world) == {"gpu_util": 1, "sm_active": 0, "sm_occupancy": 0}


def test_the_next_pod_of_a_task_presses_as_both_counters_showed(world: World) -> None:
    """How busy the GPU and its memory were while the first pod had it to itself."""
    first = world.place("p")
    forecast = load_of_next(world, first)
    world.telemetry.profiled = {UtilizationCounter.MEMORY_UTIL: 2}  # in percent, as the exporter counts it
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 500.0
    world.pass_time(60)
    seen = load_of_next(world, first)
    assert seen.busy == 0.5
    assert seen.pressure == pytest.approx(pressure(0.5, 0.02))
    assert forecast.pressure > 0.5


def load_of_next(world: World, pod: dict[str, Any]) -> Load:
    record = world.service.state.pods[PodUid(pod["metadata"]["uid"])]
    demand = world.service.state.demand(record)
    assert demand is not None
    (load,) = demand.loads.values()
    return load


def test_a_pod_that_says_only_its_memory_has_no_forecast_of_utilization(world: World) -> None:
    pod = world.place("p", {"gpu-memory": "4Gi", "share": "true"})
    assert not pod["metadata"]["annotations"].keys() & set(ANNOTATIONS.values())
    assert world.place("q", SUMMARY)["metadata"]["annotations"].keys() >= set(ANNOTATIONS.values())
