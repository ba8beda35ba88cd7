"""From the forecast at bind to the metric: measured time per step over the forecast."""

from __future__ import annotations

import json

import pytest
from tests.controllers.test_telemetry import World

from vramcast.task.quantity import MIB
from vramcast.task.vocabulary import Written

NAMED = {"model": "timm/resnet50", "batch-size": "64", "precision": "amp-fp16", "share": "true"}
RATIO = "vramcast_step_time_error_ratio"


@pytest.fixture
def world() -> World:
    return World()


def report(steps_per_second: float | None) -> str:
    facts = {"ended": "exited", "gpus": {"GPU-0": {"allocated": 500 * MIB, "reserved": 1_000 * MIB}}}
    if steps_per_second is not None:
        facts["steps_per_second"] = steps_per_second
    return json.dumps({"vramcast": 1, "processes": {"rank 0": facts}}, separators=(",", ":"))


def test_the_forecast_is_written_at_bind_and_compared_with_the_exit_report(world: World) -> None:
    pod = world.place("p", NAMED)
    seconds = float(pod["metadata"]["annotations"][Written.FORECAST_STEP_SECONDS])
    assert 0.005 < seconds < 1.0
    world.finish(pod, message=report(1 / (1.5 * seconds)))
    world.pass_time(60)
    assert world.metric(f"{RATIO}_count") == 1
    assert world.metric(f"{RATIO}_sum") == pytest.approx(1.5, rel=1e-3)


def test_without_steps_in_the_report_nothing_is_compared(world: World) -> None:
    world.finish(world.place("p", NAMED), message=report(None))
    world.pass_time(60)
    assert world.metric("vramcast_outcomes_total", truth="report", ending="succeeded") == 1
    assert world.metric(f"{RATIO}_count") == 0


@pytest.mark.parametrize("edited", ["soon", "-1", "nan", "inf", "0"])
def test_an_edited_forecast_counts_as_absent(world: World, edited: str) -> None:
    pod = world.place("p", NAMED)
    pod["metadata"]["annotations"][Written.FORECAST_STEP_SECONDS] = edited
    world.see(pod)
    world.finish(pod, message=report(2.0))
    world.pass_time(60)
    assert world.metric(f"{RATIO}_count") == 0


def test_a_pod_that_says_only_its_memory_gets_no_time(world: World) -> None:
    pod = world.place("p", {"gpu-memory": "4Gi", "share": "true"})
    assert Written.FORECAST_STEP_SECONDS not in pod["metadata"]["annotations"]


def test_counts_survive_a_restart_and_older_records_are_read(world: World) -> None:
    pod = world.place("p", NAMED)
    world.finish(pod, message=report(4.0))
    world.pass_time(60)
    stored = world.service.tracker.accuracy.snapshot()
    before = world.metric(f"{RATIO}_sum")
    world.start()
    world.service.tracker.accuracy.restore(stored)
    assert world.metric(f"{RATIO}_sum") == pytest.approx(before)
    for group in stored["groups"]:
        del group["step"]
    world.service.tracker.accuracy.restore(stored)
    assert world.metric(f"{RATIO}_count") == 0
