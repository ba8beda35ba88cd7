"""People are told which counter of utilization is compared with what, and which is not."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.json import encode

from tests.controllers.busy import FORECAST, BusyWorld
from tests.controllers.observed import SUMMARY, World
from tests.fakes import pod_manifest
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.names import Product

A100 = Product("NVIDIA-A100-SXM4-40GB")


@pytest.fixture
def world() -> World:
    world = BusyWorld()
    world.telemetry.profiled = {UtilizationCounter.SM_ACTIVE: 0.41}
    world.pass_time(15)
    return world


def explained(world: World) -> dict[str, Any]:
    found: dict[str, Any] = world.client.request("POST", "/explain", encode(pod_manifest("p", SUMMARY))).json()
    return found


def test_explain_tells_each_counters_forecast_and_what_it_will_be_compared_with(world: World) -> None:
    found = explained(world)
    assert {name: found["utilization"][A100][name] for name in UtilizationCounter} == {
        name: FORECAST.of(name) for name in UtilizationCounter
    }
    assert found["counters"] == [
        {"counter": "gpu_util", "metric": "DCGM_FI_DEV_GPU_UTIL", "scraped": True, "missing": ""},
        {"counter": "sm_active", "metric": "DCGM_FI_PROF_SM_ACTIVE", "scraped": True, "missing": ""},
        {
            "counter": "sm_occupancy",
            "metric": "DCGM_FI_PROF_SM_OCCUPANCY",
            "scraped": False,
            "missing": "not compared: telemetry shows no DCGM_FI_PROF_SM_OCCUPANCY",
        },
    ]


def test_a_setting_that_is_empty_and_missing_telemetry_are_told(world: World) -> None:
    world.start(telemetry_sm_active_metric="")
    missing = [counter["missing"] for counter in explained(world)["counters"]]
    assert missing[1] == "not compared: setting telemetry_sm_active_metric is empty"
    world.service.tracker.telemetry.configured = False
    missing = [counter["missing"] for counter in explained(world)["counters"]]
    assert missing == ["not compared: there is no telemetry"] * 3


def test_the_page_has_the_error_of_each_counter(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    counters = world.client.request("GET", "/accuracy").json()["counters"]
    assert [(counter["runs"], counter["mean_error"]) for counter in counters] == [
        (1, pytest.approx(0.93 - 0.5)), (1, pytest.approx(0.64 - 0.41)), (0, None),
    ]  # fmt: skip
    assert [bool(counter["missing"]) for counter in counters] == [False, False, True]
