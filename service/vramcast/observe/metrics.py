"""Counters and gauges. Names, labels and units are a contract with dashboards and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast import __version__
from vramcast.cluster.seam import Fate
from vramcast.forecast.forecast import Source
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.placement.promises import State
from vramcast.placement.reasons import Reason
from vramcast.placement.state import ClusterState
from vramcast.task.quantity import MIB

VERBS = ("filter", "prioritize", "bind", "preempt", "forecast", "explain", "state", "records",
         "cluster", "pods", "pod", "pod_nodes", "models", "sweep", "step", "accuracy", "advise", "admit")  # fmt: skip

_LATENCY_BUCKETS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
)  # fmt: skip


class Admission(StrEnum):
    """What became of an object that the webhook was asked about."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


class Limit(StrEnum):
    """Of connections; the first two are settings."""

    CONNECTIONS = "max_connections"
    TIME = "request_timeout_seconds"
    HEAD = "head_size"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The connection to the cluster at the moment of a scrape."""

    synced: bool
    stale_seconds: float
    watch_events: int = 0
    watch_lists: int = 0
    watch_reconnects: int = 0
    dropped_events: int = 0
    leading: bool = True


# The `_created` series double the number of counters, and nobody reads them.
disable_created_metrics()  # type: ignore[no-untyped-call] # the library types only part of itself


class Metrics:
    """The counters of the service. Collectors read everything else at the moment of a scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.request_seconds = Histogram(
            "vramcast_request_duration_seconds", "Time to answer a request", ["verb"],
            buckets=_LATENCY_BUCKETS, registry=self.registry,
        )  # fmt: skip
        self.request_errors = self._counter(
            "vramcast_request_errors", "Requests answered with an error", "verb", "cause"
        )
        self.connections_closed = self._counter(
            "vramcast_connections_closed", "Connections of clients closed because of a limit", "limit"
        )
        self.node_rejections = self._counter("vramcast_node_rejections", "Nodes that filter rejected", "reason")
        self.pods_rejected = self._counter(
            "vramcast_pods_rejected", "Filter calls in which the pod fit nowhere, by the most frequent reason", "reason"
        )
        self.binds = self._counter("vramcast_binds", "Binding writes, by result", "fate")
        self.forecasts = self._counter("vramcast_forecasts", "Forecasts behind filter decisions", "source")
        self.invalid_tasks = self._counter("vramcast_invalid_tasks", "Filter calls for pods with invalid annotations")
        self.hold_waits = self._counter(
            "vramcast_hold_waits", "Filter calls that waited for holds to end or changes to arrive", "outcome"
        )
        self.defects = self._counter(
            "vramcast_defects", "Changes of the cluster that vramcast failed to apply because of a bug"
        )
        self.hold_expirations = self._counter("vramcast_hold_expirations", "Holds that expired before a bind")
        self.requeues = self._counter(
            "vramcast_requeues", "Unschedulable pods patched so that the scheduler retries them"
        )
        self.takeovers = self._counter("vramcast_takeovers", "Times that this replica became the leader")
        self.admissions = self._counter(
            "vramcast_admissions", "Objects that the admission webhook answered for, by decision", "decision"
        )
        self.invalid_admissions = self._counter(
            "vramcast_invalid_admissions", "Objects with invalid annotations that the admission webhook has seen"
        )
        self.observed_placements = self._counter(
            "vramcast_observed_placements",
            "In mode observe, what filter would have answered for each placement",
            "verdict",
        )
        self._begin_at_zero()

    def _begin_at_zero(self) -> None:
        """Prometheus sees no increase in a series that first appears with a count of 1."""
        verdicts = [reason.label for reason in Reason]
        rejections = [reason.label for reason in Reason if reason is not Reason.FITS]
        for counter, values in (
            (self.node_rejections, rejections),
            (self.pods_rejected, rejections),
            (self.connections_closed, Limit),
            (self.binds, Fate),
            (self.admissions, Admission),
            (self.forecasts, Source),
            (self.hold_waits, ("fits", "timed_out")),
            (self.observed_placements, verdicts),
        ):
            for value in values:
                counter.labels(value)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(name, help_text, labels, registry=self.registry)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class StateCollector(Collector):
    def __init__(self, state: ClusterState, cluster: Callable[[], ClusterView]) -> None:
        self._state = state
        self._ledger = state.ledger
        self._cluster = cluster

    def collect(self) -> Iterator[Metric]:
        yield from self._promises()
        yield from self._capacity()
        yield from self._sharing()
        yield from self._world()
        unmanaged = sum(int(table.unmanaged.sum()) for table in self._ledger.board.tables.values())
        yield GaugeMetricFamily(
            "vramcast_unmanaged_bytes", "GPU memory in use that no promise accounts for", value=unmanaged * MIB
        )
        info = GaugeMetricFamily("vramcast_build_info", "Always 1; the version is a label", labels=["version"])
        info.add_metric([__version__], 1)
        yield info

    def _promises(self) -> Iterable[Metric]:
        count = GaugeMetricFamily("vramcast_promises", "Pods with a promise, by state", labels=["state"])
        size = GaugeMetricFamily("vramcast_promised_bytes", "GPU memory promised, by state", labels=["state"])
        counts, sizes = dict.fromkeys(State, 0), dict.fromkeys(State, 0)
        for promise in self._ledger.promises():
            counts[promise.state] += 1
            sizes[promise.state] += (promise.need_mib or 0) * promise.count
        for state in State:
            count.add_metric([state], counts[state])
            size.add_metric([state], sizes[state] * MIB)
        held = sum(int(hold.needs_mib.max(initial=0)) * len(hold.gpus) for hold in self._ledger.holds.values())
        return (
            count,
            size,
            GaugeMetricFamily(
                "vramcast_holds", "Pods with a hold, between filter and bind", value=len(self._ledger.holds)
            ),
            GaugeMetricFamily("vramcast_held_bytes", "GPU memory held, counting each pod once", value=held * MIB),
            GaugeMetricFamily(
                "vramcast_unschedulable_pods", "Pending pods that fit nowhere", value=len(self._state.unschedulable)
            ),
        )

    def _capacity(self) -> Iterable[Metric]:
        nodes = GaugeMetricFamily("vramcast_nodes", "Nodes, by how they offer GPUs", labels=["kind"])
        size = GaugeMetricFamily("vramcast_gpu_memory_bytes", "Usable GPU memory", labels=["product", "kind"])
        kinds = {"sharing": 0, "device_plugin": 0, "unreadable": 0, "none": 0}
        sizes: dict[tuple[str, str], int] = {}
        for node in self._ledger.nodes.values():
            for pool in node.pools:
                kind = "sharing" if pool.resource == SHARED_GPU else "device_plugin"
                each = pool.memory_mib if kind == "sharing" else pool.memory_mib * pool.count
                sizes[pool.product, kind] = sizes.get((pool.product, kind), 0) + sum(each)
            offers = "sharing" if node.sharing and node.pools else "device_plugin"
            kinds["unreadable" if node.problem else offers if node.pools else "none"] += 1
        for kind, count in kinds.items():
            nodes.add_metric([kind], count)
        for (product, kind), mib in sizes.items():
            size.add_metric([product, kind], mib * MIB)
        return nodes, size

    def _sharing(self) -> Iterable[Metric]:
        shared = self._ledger.board.tables.get(SHARED_GPU)
        yield GaugeMetricFamily(
            "vramcast_overpromised_gpus",
            "Shared GPUs with more memory promised than they have",
            value=shared.overpromised() if shared is not None else 0,
        )
        nodes = self._ledger.nodes
        untainted = sum(node.sharing and not node.tainted for node in nodes.values())
        misplaced = sum(
            promise.node in nodes and nodes[promise.node].misplaces(promise.resource)
            for promise in self._ledger.promises()
        )
        yield GaugeMetricFamily(
            "vramcast_untainted_sharing_nodes",
            "Sharing nodes without the taint that keeps out the pods of other schedulers",
            value=untainted,
        )
        yield GaugeMetricFamily(
            "vramcast_misplaced_pods",
            "Device plugin pods on sharing nodes, and sharing pods on other nodes; these nodes get no more pods",
            value=misplaced,
        )

    def _world(self) -> Iterable[Metric]:
        view = self._cluster()
        yield GaugeMetricFamily(
            "vramcast_cluster_synced", "1 after the first complete list of nodes and pods", value=view.synced
        )
        yield GaugeMetricFamily("vramcast_leading", "1 if this replica decides", value=view.leading)
        yield GaugeMetricFamily(
            "vramcast_cluster_stale_seconds",
            "Time since the watch last heard from the API server",
            value=view.stale_seconds,
        )
        for name, text, value in (
            ("vramcast_watch_events", "Watch events received", view.watch_events),
            ("vramcast_watch_lists", "Complete lists of a resource", view.watch_lists),
            ("vramcast_watch_reconnects", "Watches reopened after an error", view.watch_reconnects),
            ("vramcast_dropped_events", "Kubernetes Events dropped because the queue was full", view.dropped_events),
        ):
            yield CounterMetricFamily(name, text, value=value)
