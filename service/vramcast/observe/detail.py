"""Gauges with a series for every pod and every GPU: behind a setting, because a large cluster has a great many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.placement.ledger import Ledger
from vramcast.task.quantity import MIB


@dataclass(frozen=True, slots=True)
class PodView:
    """One running pod that was forecast."""

    namespace: str
    name: str
    median_bytes: int | None
    bound_bytes: int | None
    observed_bytes: int | None


class DetailCollector(Collector):
    def __init__(self, ledger: Ledger, pods: Callable[[], Iterable[PodView]]) -> None:
        self._ledger = ledger
        self._pods = pods

    def collect(self) -> Iterator[Metric]:
        yield from self._pod_metrics()
        yield from self._gpu_metrics()

    def _pod_metrics(self) -> Iterator[Metric]:
        # Not `pod` and `namespace`: a scrape gives every series those of vramcast itself.
        labels = ["task_namespace", "task_pod"]
        predicted = GaugeMetricFamily(
            "vramcast_pod_predicted_bytes", "GPU memory of a running pod, as forecast", labels=[*labels, "quantile"]
        )
        observed = GaugeMetricFamily(
            "vramcast_pod_observed_bytes",
            "GPU memory of a running pod on its fullest GPU, as last seen",
            labels=labels,
        )
        for view in self._pods():
            if view.median_bytes is not None:
                predicted.add_metric([view.namespace, view.name, "median"], view.median_bytes)
            if view.bound_bytes is not None:
                predicted.add_metric([view.namespace, view.name, "bound"], view.bound_bytes)
            if view.observed_bytes is not None:
                observed.add_metric([view.namespace, view.name], view.observed_bytes)
        yield from (predicted, observed)

    def _gpu_metrics(self) -> Iterator[Metric]:
        labels = ["gpu_node", "gpu"]
        room, promised, unmanaged = (
            GaugeMetricFamily(f"vramcast_gpu_{name}_bytes", text, labels=labels)
            for name, text in (
                ("room", "GPU memory that can still be promised or held"),
                ("promised", "GPU memory promised"),
                ("unmanaged", "GPU memory that telemetry shows used by nobody of ours"),
            )
        )
        for node in self._ledger.nodes:
            for view in self._ledger.device_views(node):
                name = [node, f"{view.pool.resource}/{view.index}"]
                room.add_metric(name, view.room_mib * MIB)
                promised.add_metric(name, sum(promise.need_mib or 0 for promise in view.promises) * MIB)
                unmanaged.add_metric(name, view.unmanaged_mib * MIB)
        yield from (room, promised, unmanaged)
