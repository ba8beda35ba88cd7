"""No forecast is made on the event loop, and one that fails never leaves a GPU looking free."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.api.client import Client
from tests.fakes import FakeCluster, listed, pod_manifest, shared_pod, sharing_node
from tests.interleaving import NODE, record

from vramcast.app import App, build
from vramcast.controllers.forecasting import ForecastFirst
from vramcast.forecast.forecaster import CachingForecaster, PhysicsForecaster
from vramcast.names import NodeName, Product
from vramcast.placement.changes import Change, NodeSeen, PodGone, PodSeen
from vramcast.settings import Settings, load_settings
from vramcast.task.task import Task
from vramcast.workers import Workers

SUMMARY = {"share": "true", "parameters": "100M", "activations": "10M", "batch-size": "8"}
PRODUCTS = ("Tesla-T4", "NVIDIA-L40S")


class WatchedForecaster(PhysicsForecaster):
    """Notes the thread of every forecast that is really made; fails for tasks with this batch size."""

    def __init__(self, default_risk: float, failing_batch: int = 0) -> None:
        super().__init__(default_risk)
        self.threads: list[str] = []
        self.failing_batch = failing_batch

    def _forecast(self, task: Task, product: Product) -> Any:
        self.threads.append(threading.current_thread().name)
        if task.batch_size == self.failing_batch:
            raise RuntimeError("a defect of the forecaster")
        return super()._forecast(task, product)


async def on_a_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, call, *arguments)


def new_app(base: CachingForecaster, settings: Settings | None = None) -> App:
    app = build(settings or load_settings({}, {}), FakeCluster(), Workers.all(on_a_thread), base=base)
    nodes = [sharing_node(f"{NODE}{n}", 1, product=product) for n, product in enumerate(PRODUCTS)]
    app.service.apply([*(NodeSeen(node) for node in nodes), *listed([node.name for node in nodes])])
    return app


def main_thread(base: WatchedForecaster) -> int:
    return base.threads.count(threading.main_thread().name)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind", "preempt"])
def test_a_verb_makes_no_forecast_on_the_event_loop(verb: str) -> None:
    base = WatchedForecaster(0.05)
    client = Client(new_app(base).service)
    pod, nodes = pod_manifest("p", SUMMARY), [f"{NODE}0", f"{NODE}1"]

    async def call() -> None:
        if verb == "filter":
            assert (await client.filter(pod, nodes))["NodeNames"] == nodes
        elif verb == "prioritize":
            await client.verb("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": nodes})
        elif verb == "bind":
            client.service.state.begin_placing(record(pod))
            assert await client.bind(pod, nodes[0]) == ""
        else:
            await client.verb("preempt", {"Pod": pod, "NodeNameToMetaVictims": {nodes[0]: {"Pods": []}}})

    asyncio.run(call())
    assert len(base.threads) == len(PRODUCTS)
    assert main_thread(base) == 0


def through_a_watch(app: App, changes: Sequence[Change]) -> None:
    """As a watch delivers them: on its own thread, and applied afterwards on this one."""
    delivered: list[Change] = []
    sink = ForecastFirst(app.service.forecaster, delivered.extend)
    for product in PRODUCTS:
        sink.put([NodeSeen(sharing_node(f"n-{product}", 1, product=product))])
    watch = threading.Thread(target=sink.put, args=(changes,))
    watch.start()
    watch.join()
    app.service.apply(delivered)


@pytest.mark.parametrize("mode", ["decide", "observe"])
def test_pods_that_other_schedulers_bound_are_forecast_on_the_watchs_thread(mode: str) -> None:
    base = WatchedForecaster(0.05)
    app = new_app(base, load_settings({"mode": mode}, {}))
    pods = [pod_manifest(f"p{n}", SUMMARY | {"batch-size": str(n + 1)}) for n in range(20)]
    through_a_watch(app, [PodSeen(record(pod, f"{NODE}0")) for pod in pods])
    assert len(base.threads) == 20 * len(PRODUCTS)
    assert main_thread(base) == 0
    assert sum(1 for _ in app.service.state.ledger.promises()) == 20


def test_a_product_that_comes_later_is_forecast_before_its_node_is_applied() -> None:
    base, delivered = WatchedForecaster(0.05), []
    sink = ForecastFirst(base, delivered.extend)
    sink.put([PodSeen(record(pod_manifest("p", SUMMARY), "n"))])
    assert base.threads == []
    sink.put([NodeSeen(sharing_node("n", 1, product=PRODUCTS[0]))])
    assert len(base.threads) == 1
    assert len(delivered) == 2


def test_ended_pods_are_not_forecast_for_later_products() -> None:
    base, delivered = WatchedForecaster(0.05), []
    sink = ForecastFirst(base, delivered.extend)
    pod = record(pod_manifest("p", SUMMARY), "n")
    sink.put([PodSeen(pod), PodGone(pod.uid), NodeSeen(sharing_node("n", 1, product=PRODUCTS[0]))])
    assert base.threads == []


def test_a_defect_of_the_forecaster_stops_no_change() -> None:
    base, delivered = WatchedForecaster(0.05, failing_batch=8), []
    sink = ForecastFirst(base, delivered.extend)
    sink.put([NodeSeen(sharing_node("n", 1, product=PRODUCTS[0])), PodSeen(record(pod_manifest("p", SUMMARY), "n"))])
    assert len(delivered) == 2


def test_a_pod_whose_forecast_fails_takes_its_whole_gpu() -> None:
    """Another scheduler bound it, so it is there. Counting it as nothing would give its memory away."""
    app = new_app(WatchedForecaster(0.05, failing_batch=8))
    client = Client(app.service)
    through_a_watch(app, [PodSeen(record(pod_manifest("p", SUMMARY), f"{NODE}0"))])
    assert [view.room_mib for view in app.service.state.ledger.device_views(NodeName(f"{NODE}0"))] == [0]
    assert client.metric("vramcast_defects_total") == 1
    assert client.feasible(shared_pod("q", "1Gi"), [f"{NODE}0", f"{NODE}1"]) == [f"{NODE}1"]
