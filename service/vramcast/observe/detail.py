"""Gauges for every pod and every GPU. Behind a setting: a large cluster has a great many."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.outcomes.run_tracker import RunTracker
from vramcast.placement.ledger import Ledger
from vramcast.task.quantity import MIB


class DetailCollector(Collector):
    def __init__(self, ledger: Ledger, tracker: RunTracker) -> None:
        self._ledger = ledger
        self._tracker = tracker

    def collect(self) -> Iterator[Metric]:
        yield from self._pod_metrics()
        yield from self._gpu_metrics()

    def _pod_metrics(self) -> Iterator[Metric]:
        # Not `pod` and `namespace`: a scrape adds those of vramcast itself to every series.
        labels = ["task_namespace", "task_pod"]
        predicted = GaugeMetricFamily(
            "vramcast_pod_predicted_bytes", "Forecast GPU memory of a running pod", labels=[*labels, "quantile"]
        )
        observed = GaugeMetricFamily(
            "vramcast_pod_observed_bytes",
            "GPU memory of a running pod on its fullest GPU, at the last poll",
            labels=labels,
        )
        for run in self._tracker.runs.values():
            pod = [run.pod.namespace, run.pod.name]
            if run.median_bytes is not None:
                predicted.add_metric([*pod, "median"], run.median_bytes)
            if run.bound_bytes is not None:
                predicted.add_metric([*pod, "bound"], run.bound_bytes)
            if run.last_mib is not None:
                observed.add_metric(pod, run.last_mib * MIB)
        yield from (predicted, observed)

    def _gpu_metrics(self) -> Iterator[Metric]:
        labels = ["gpu_node", "gpu"]
        room, promised, unmanaged = (
            GaugeMetricFamily(f"vramcast_gpu_{name}_bytes", text, labels=labels)
            for name, text in (
                ("room", "GPU memory left to promise"),
                ("promised", "GPU memory promised"),
                ("unmanaged", "GPU memory in use that no promise accounts for"),
            )
        )
        for node in self._ledger.nodes:
            for view in self._ledger.device_views(node):
                name = [node, f"{view.pool.resource}/{view.index}"]
                room.add_metric(name, view.room_mib * MIB)
                promised.add_metric(name, sum(promise.need_mib or 0 for promise in view.promises) * MIB)
                unmanaged.add_metric(name, view.unmanaged_mib * MIB)
        yield from (room, promised, unmanaged)
