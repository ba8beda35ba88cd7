"""Bad telemetry crashes nothing and frees no promise, and every kind of fault is counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.cluster.telemetry_server import serving
from tests.controlplane import PATIENCE_SECONDS, eventually
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing.conftest import Begin
from tests.e2e.observing.world import Run, World

pytestmark = pytest.mark.e2e

NODES = {"a": (A100_40GB, 2)}
A100 = A100_40GB.product
PROMISED_MIB = [20 * 1024, 30 * 1024]

# Damages one line of a metric.
Damage = Callable[[str], list[str]]


def with_value(change: Callable[[float], float | str]) -> Damage:
    def damage(line: str) -> list[str]:
        labels, _, value = line.rpartition(" ")
        return [f"{labels} {change(float(value))}"]

    return damage


def without_label(name: str) -> Damage:
    return lambda line: [re.sub(rf'{name}="[^"]*",?', "", line)]


def seen_twice(line: str) -> list[str]:
    """As if two exporters report it and one lags behind."""
    labels, _, value = line.rpartition("} ")
    return [line, f'{labels},version="old"}} {float(value) / 2:g}']


FAULTS: dict[str, Damage] = {
    "not_a_number": with_value(lambda _: "NaN"),
    "negative": with_value(lambda value: -value - 1),
    "unit": with_value(lambda value: (value + 1) * (1 << 20)),
    "no_node": without_label("Hostname"),
    "unknown_node": lambda line: [line.replace('Hostname="a"', 'Hostname="ip-10-0-0-7"')],
    "no_gpu": without_label("gpu"),
    "duplicate": seen_twice,
}


def damage_memory_lines(damage: Damage) -> Callable[[str, list[str]], list[str]]:
    return lambda _node, lines: [
        new for line in lines for new in (damage(line) if line.startswith("DCGM_FI_DEV_FB_USED{") else [line])
    ]


@pytest.fixture
def runs() -> list[Run]:
    return [Run("p", {"gpu-memory": "20Gi"}, 15_000, A100), Run("q", {"gpu-memory": "30Gi"}, 25_000, A100)]


def begin_full(world: World, runs: list[Run]) -> None:
    """Each GPU has a pod, and a third pod waits that fits on neither GPU."""
    world.begin(runs[:1])
    world.begin(runs[1:])
    world.api.create_pod(Run("waits", {"gpu-memory": "25Gi"}, 1_000, A100).manifest())
    eventually(
        lambda: world.service.get("/state")["unschedulable_total"] == 1,
        what="the third pod to be unschedulable",
    )
    world.await_peaks(runs)


def check_promises_unchanged(world: World) -> None:
    world.await_polls(2)
    gpus = world.gpus("a")
    assert [gpu["promised_mib"] for gpu in gpus] == PROMISED_MIB
    assert all(gpu["room_mib"] <= gpu["size_mib"] - gpu["promised_mib"] for gpu in gpus)
    assert "waits" not in world.running()
    assert world.service.process.alive
    assert world.service.metric("vramcast_defects_total") == 0
    assert "a telemetry poll failed" not in world.service.process.log.read_text()


def faults(world: World, fault: str) -> float:
    lines = world.metrics_text().splitlines()
    start = f'vramcast_telemetry_faults_total{{fault="{fault}"}} '
    return next(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_bad_samples_are_counted_by_reason_and_free_no_promise(begin: Begin, runs: list[Run]) -> None:
    world = begin(NODES)
    begin_full(world, runs)
    for fault, damage in FAULTS.items():
        before = faults(world, fault)
        world.exporter.damage = damage_memory_lines(damage)
        eventually(lambda f=fault, b=before: faults(world, f) > b, what=f"a fault {fault}")
        check_promises_unchanged(world)
    # Values reset to zero, as after a restart of the exporter, and then no values at all.
    for damage in (with_value(lambda _: 0.0), lambda _line: []):
        world.exporter.damage = damage_memory_lines(damage)
        check_promises_unchanged(world)
    world.exporter.damage = lambda _node, _lines: ["<html>log in</html>"]
    check_promises_unchanged(world)
    world.exporter.damage = damage_memory_lines(lambda line: [line])
    world.end(runs)
    world.await_counted()
    eventually(lambda: "waits" in world.running(), what="the third pod to run")


class Proxy:
    """A proxy for Prometheus that shifts timestamps by `skew_seconds` or truncates answers if `damaged`."""

    def __init__(self) -> None:
        self.upstream = ""
        self.url = ""
        self.skew_seconds = 0.0
        self.damaged = False

    def in_front_of(self, url: str) -> str:
        self.upstream = url
        return self.url

    def answer(self, path: str, query: dict[str, str], _headers: dict[str, str]) -> tuple[int, bytes]:
        response = httpx.get(self.upstream + path, params=query, timeout=PATIENCE_SECONDS)
        if self.damaged:
            return 200, response.content[: len(response.content) // 2]
        document = response.json()
        for series in document.get("data", {}).get("result", ()):
            series["values"] = [[at + self.skew_seconds, value] for at, value in series["values"]]
        return response.status_code, json.dumps(document).encode()


@contextmanager
def proxying() -> Iterator[Proxy]:
    proxy = Proxy()
    with serving(proxy.answer) as url:
        proxy.url = url
        yield proxy


def test_clock_skew_and_damaged_answers_are_counted_and_free_no_promise(begin: Begin, runs: list[Run]) -> None:
    with proxying() as proxy:
        world = begin(NODES, prometheus_url=proxy.in_front_of)
        begin_full(world, runs)
        for fault, skew_seconds in (("ahead", 600.0), ("stale", -600.0)):
            before = faults(world, fault)
            proxy.skew_seconds = skew_seconds
            eventually(lambda f=fault, b=before: faults(world, f) > b, what=f"a fault {fault}")
            check_promises_unchanged(world)
        proxy.skew_seconds = 0.0
        proxy.damaged = True
        failed = 'vramcast_telemetry_polls_total{result="failed"}'
        eventually(lambda: f"{failed} 0.0" not in world.metrics_text(), what="a failed poll")
        check_promises_unchanged(world)
        proxy.damaged = False
        world.end(runs)
        world.await_counted()
