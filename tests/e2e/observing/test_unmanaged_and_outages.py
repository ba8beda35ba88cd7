"""Unmanaged memory, and a Prometheus that is down."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane import ControlPlane, eventually
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing.conftest import ALERTS, Begin, service_job
from tests.e2e.observing.prometheus import Prometheus
from tests.e2e.observing.world import Run, World, written

pytestmark = pytest.mark.e2e

NODES = {"a": (A100_40GB, 2)}
UNMANAGED_MIB = 10 * 1024
A100 = A100_40GB.product
# One second stands for a minute, in the outage and in the alerts.
MINUTE_SECONDS = 1.0


def given(name: str, size: str, need_mib: int = 1_000, phase: str = "Succeeded") -> Run:
    return Run(name, {"gpu-memory": size}, need_mib, A100, phase)


def gpu_of(world: World, run: Run) -> str:
    return written(world.api.pod(run.name))["gpu-indices"]


def test_unmanaged_memory_keeps_pods_off_its_gpu_from_the_next_poll_on(begin: Begin) -> None:
    world = begin(NODES, honor_labels=True)
    free = world.gpus("a")[0]["room_mib"]
    world.exporter.unmanaged_mib["a", 0] = UNMANAGED_MIB
    scraped = 'DCGM_FI_DEV_FB_USED{Hostname="a",gpu="0"}'
    eventually(lambda: world.prometheus.total(scraped) == UNMANAGED_MIB, what="a scrape of the unmanaged process")
    # One poll may have started before the scrape; the next one starts after it.
    world.await_polls(2)
    assert [gpu["unmanaged_mib"] for gpu in world.gpus("a")] == [UNMANAGED_MIB, 0]
    assert [gpu["room_mib"] for gpu in world.gpus("a")] == [free - UNMANAGED_MIB, free]

    # Without unmanaged memory, both pods would have gone to GPU 0 first.
    large, kept_off = given("large", "35Gi"), given("kept-off", "32Gi")
    world.begin([large])
    assert gpu_of(world, large) == "1"
    world.api.create_pod(kept_off.manifest())

    def events() -> list[str]:
        return [e["message"] for e in world.api.events(about="kept-off") if "outside of Kubernetes" in e["message"]]

    assert eventually(events, what="an event about processes outside of Kubernetes")
    assert world.service.metric("vramcast_unmanaged_bytes") == UNMANAGED_MIB << 20
    world.exporter.unmanaged_mib.clear()
    eventually(lambda: "kept-off" in world.running(), what="room once the unmanaged process is gone")
    assert gpu_of(world, kept_off) == "0"


def scaled(rules: Any) -> Any:
    """The chart's alerts, sixty times as fast."""
    for group in rules["groups"]:
        for rule in group["rules"]:
            if "for" in rule:
                rule["for"] = rule["for"].replace("m", "s")
            rule["expr"] = re.sub(r"(?<=_age_seconds\) > )300", str(300 / 60 * MINUTE_SECONDS), rule["expr"])
    return rules


@pytest.fixture
def monitor(plane: ControlPlane, tmp_path: Path) -> Any:
    """A second Prometheus that scrapes only the service, because the one that is down cannot alert."""
    started: list[Prometheus] = []

    def start(world: World) -> Prometheus:
        rules = scaled(yaml.safe_load(ALERTS.read_text()))
        prometheus = Prometheus(
            plane.binaries.prometheus, tmp_path / "monitor", [service_job(world.service.url)], rules
        )
        started.append(prometheus)
        prometheus.start()
        return prometheus

    yield start
    for prometheus in started:
        prometheus.stop()


def firing(prometheus: Prometheus) -> set[str]:
    """Without the alert for sharing nodes that have no taint: none of these nodes has one."""
    return prometheus.firing() - {"VramcastSharingNodeUntainted"}


def test_scheduling_continues_and_runs_count_once_when_prometheus_is_down_for_ten_minutes(
    begin: Begin, monitor: Any
) -> None:
    world = begin(NODES, telemetry_stale_seconds="3", telemetry_timeout_seconds="2")
    second_prometheus = monitor(world)
    free = world.gpus("a")[0]["room_mib"]
    before = [given("before-0", "20Gi", 15_000), given("before-1", "10Gi", 9_000)]
    world.run_to_the_end([given("counted", "5Gi")])
    world.begin(before)
    assert {gpu_of(world, run) for run in before} == {"0"}
    world.exporter.unmanaged_mib["a", 1] = UNMANAGED_MIB
    world.await_peaks(before)
    eventually(lambda: world.gpus("a")[1]["unmanaged_mib"] == UNMANAGED_MIB, what="the unmanaged process")
    # On a busy machine its first scrape may come later than five of its fast minutes.
    eventually(lambda: firing(second_prometheus) == set(), what="no alert")

    world.prometheus.stop()
    stopped_at = time.monotonic()
    # Scheduling continues on promises alone: unmanaged memory is no longer known, and every promise still counts.
    eventually(lambda: world.gpus("a")[1]["unmanaged_mib"] == 0, what="telemetry to be stale")
    during = [given("during-0", "8Gi", 5_000), given("during-1", "30Gi", 6_000)]
    world.begin(during)
    promised = {gpu["index"]: gpu["promised_mib"] for gpu in world.gpus("a")}
    assert sum(promised.values()) == (20 + 10 + 8 + 30) * 1024
    assert all(gpu["room_mib"] == free - gpu["promised_mib"] for gpu in world.gpus("a"))
    moment = int(time.time())
    world.over += [world.finish(run, moment) for run in (before[1], during[0])]
    eventually(lambda: time.monotonic() > stopped_at + 10 * MINUTE_SECONDS, what="ten minutes")
    assert world.service.metric("vramcast_telemetry_age_seconds") >= 9 * MINUTE_SECONDS
    eventually(lambda: firing(second_prometheus) == {"VramcastTelemetryStale"}, what="one alert")
    # The runs that ended during the outage wait to be measured. Nothing else is counted.
    assert world.counted() == 1

    world.prometheus.start()
    world.await_counted()
    eventually(lambda: world.service.metric("vramcast_telemetry_age_seconds") < 3, what="telemetry")
    eventually(lambda: world.gpus("a")[1]["unmanaged_mib"] == UNMANAGED_MIB, what="the unmanaged process")
    world.end([before[0], during[1]])
    world.await_counted()
    world.await_polls(4)
    # Each of the five counts once, whether it was seen throughout or hardly at all.
    assert world.counted() == 5
    assert world.service.metric("vramcast_outcomes_total") >= 1
    assert [gpu["promised_mib"] for gpu in world.gpus("a")] == [0, 0]
    eventually(lambda: firing(second_prometheus) == set(), what="the alert to resolve")
