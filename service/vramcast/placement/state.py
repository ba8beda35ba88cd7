"""The cluster as vramcast knows it: the ledger, and the pods that are known, being placed, or unschedulable.

Changes go in, demands come out. Nothing is stored: after a restart the same changes rebuild the same state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from vramcast.errors import InvalidTask
from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization
from vramcast.hardware.vendors import CLAIMED_GPU
from vramcast.names import NodeName, PodUid, Product, Resource
from vramcast.placement import changes
from vramcast.placement.claimable import ClaimableGpus, SliceGone, SliceSeen, SlicesListed
from vramcast.placement.gpus import NodeGpus
from vramcast.placement.interference import Load, load_of
from vramcast.placement.ledger import Ledger
from vramcast.placement.pool_table import MAX_MIB
from vramcast.placement.promises import Demand, Promise, State
from vramcast.placement.seen_loads import Seen, SeenLoads
from vramcast.placement.unschedulable import UnschedulablePods
from vramcast.task.pod import NO_METADATA, Ask, Assignment, Pod, PodRecord, to_record
from vramcast.task.task import Task, TaskKey, task_fingerprint, task_key
from vramcast.task.vocabulary import Level

# More pods than a scheduler has between filter and bind.
_MAX_BEING_PLACED = 20_000


class ClusterState:
    """Belongs to one thread."""

    def __init__(
        self,
        ledger: Ledger,
        forecaster: Forecaster,
        floors_mib: Mapping[TaskKey, int] | None = None,
        *,
        replicated: bool = False,
        assumed_utilization: float = 0.3,
    ) -> None:
        """`floors_mib`: the least that a task may get, because it ran out of memory before.

        `assumed_utilization`: the share of a GPU's time of a task whose utilization is not forecast.

        `replicated`: another replica may bind the pods that this one has tried to bind.
        """
        self.ledger = ledger
        self.pods: dict[PodUid, PodRecord] = {}
        self.unschedulable = UnschedulablePods()
        # Grows with every change: equal revisions mean that nothing happened in between.
        self.revision = 0
        # Of any pod so far. Most clusters have one priority, and nobody to evict.
        self.lowest_priority = 1 << 31
        # What is free is known only after a complete list of both.
        self.nodes_listed = False
        self.pods_listed = False
        self._last_list = changes.PodsListed(frozenset(), float("-inf"))
        self._being_placed: dict[PodUid, PodRecord] = {}
        self._seen_loads = SeenLoads()
        self._claimable = ClaimableGpus()
        self._replicated = replicated
        self._assumed_utilization = assumed_utilization
        self._forecaster = forecaster
        self._floors_mib: Mapping[TaskKey, int] = floors_mib if floors_mib is not None else {}

    def apply(self, change: changes.Change) -> None:
        self.revision += 1
        match change:
            case changes.PodSeen(pod, read_at):
                self._see_pod(pod, read_at)
            case changes.PodGone(uid):
                self._lose_pod(uid)
            case changes.NodeSeen(node):
                self._put_nodes([self._claimable.complete(node)])
            case changes.NodeGone(name):
                self._drop_node(name)
            case SliceSeen() | SliceGone() | SlicesListed():
                self._put_nodes(self._claimable.apply(change))
            case changes.UnmanagedSeen(name, used_mib):
                self.ledger.set_unmanaged(name, used_mib)
            case changes.UtilizationSeen(uid, share, memory):
                self._note_busy(uid, share, memory)
            case changes.NodesListed(names):
                self.nodes_listed = True
                for name in self.ledger.nodes.keys() - names:
                    self._drop_node(name)
            case changes.PodsListed(uids, listed_at):
                self.pods_listed = True
                self._last_list = change
                self.ledger.forget_absent(uids, listed_at)
                self.unschedulable.forget_absent(uids, listed_at)
                for uid in self.pods.keys() - uids:
                    if self.ledger.promise_of(uid) is None:
                        del self.pods[uid]

    @property
    def synced(self) -> bool:
        return self.nodes_listed and self.pods_listed

    def demand(self, pod: PodRecord) -> Demand | None:
        """What the pod needs on every product in the cluster; None for a pod without a GPU. Raises InvalidTask."""
        if pod.invalid is not None:
            raise pod.invalid
        if pod.ask is None:
            return None
        task = pod.task
        needs: dict[Product, int] = {}
        loads: dict[Product, Load] = {}
        if task is not None:
            floor_mib = self._floor_mib(pod, task) if self._floors_mib else 0
            forecasts = {product: self._forecaster.forecast(task, product) for product in self.ledger.products}
            needs = {product: max(forecast.need_mib, floor_mib) for product, forecast in forecasts.items()}
            loads = {product: self._load(task, forecast.utilization) for product, forecast in forecasts.items()}
        return Demand(pod.uid, pod.key, pod.ask, needs, pod.scheduling.gang, loads)

    def _load(self, task: Task | None, utilization: Utilization) -> Load:
        """By the forecast, until pods with the same task have had a GPU to themselves."""
        load = load_of(utilization, self._assumed_utilization, task.max_slowdown if task else None)
        return self._seen_loads.correct(load, task) if task is not None else load

    def _note_busy(self, uid: PodUid, share: float, memory: float | None) -> None:
        pod = self.pods.get(uid)
        if self.ledger.set_busy(uid, share, memory) and pod is not None and pod.task is not None:
            self._seen_loads.note(pod.task, Seen(share, memory))

    def _floor_mib(self, pod: PodRecord, task: Task) -> int:
        """The user's own number is never raised."""
        if task.level is Level.GIVEN:
            return 0
        return self._floors_mib.get(task_key(pod.namespace, pod.name, pod.owner, task_fingerprint(task)), 0)

    def product_on(self, node: NodeName | None, resource: Resource) -> Product:
        """Of a node's GPUs under a resource name; empty if unknown."""
        gpus = self.ledger.nodes.get(node) if node else None
        pool = gpus.pool(resource) if gpus else None
        if pool is None and gpus and resource == CLAIMED_GPU:
            # Whatever system handed it out, it is one of the node's GPUs.
            pool = next(iter(gpus.pools), None)
        return pool.product if pool else Product("")

    def product_of(self, pod: PodRecord) -> Product:
        return self.product_on(pod.node, pod.ask.resource) if pod.ask else Product("")

    def forecast_of(self, pod: PodRecord) -> Forecast | None:
        """On the GPUs that the pod sits on; None if they are unknown, or the task cannot be forecast."""
        product = self.product_of(pod)
        try:
            return self._forecaster.forecast(pod.task, product) if pod.task and product else None
        except InvalidTask:
            return None

    # ------------------------------------------------------------------ pods between filter and bind

    def read(self, pod: Pod) -> PodRecord:
        """The pod of a request. Parsed only if the watch has not shown the same version already."""
        metadata = pod.metadata or NO_METADATA
        known = self.pods.get(PodUid(metadata.uid or ""))
        return known if known is not None and known.resource_version == metadata.resource_version else to_record(pod)

    def is_gone(self, uid: PodUid, since: float) -> bool:
        """Did the pod end after `since`? If its end was lost with a broken watch, only the next list shows it."""
        missing = since < self._last_list.listed_at and uid not in self._last_list.uids
        return missing or self.ledger.is_gone(uid)

    def begin_placing(self, pod: PodRecord) -> None:
        """Bind promises what filter decided on, even if the annotations have changed by then."""
        if self.ledger.is_gone(pod.uid):
            return
        self._being_placed.pop(pod.uid, None)
        if len(self._being_placed) >= _MAX_BEING_PLACED:
            del self._being_placed[next(iter(self._being_placed))]
        self._being_placed[pod.uid] = pod

    def being_placed(self, uid: PodUid) -> PodRecord | None:
        return self._being_placed.get(uid) or self.pods.get(uid)

    def renew(self, pod: PodRecord) -> PodRecord:
        """The pod with the newest version that the watch has shown, if a Binding may name it."""
        known = self.pods.get(pod.uid)
        return replace(pod, resource_version=known.resource_version) if known and may_renew(pod, known) else pod

    def with_newest_version(self, pod: PodRecord) -> PodRecord:
        """The scheduler may not have seen our latest patch of the pod yet; its Binding must name that version.

        If it has not seen a new description either, the Binding must fail: it would promise what the pod needed before.
        """
        known = self.pods.get(pod.uid)
        if known is None or not _is_newer_and_alike(pod, known):
            return pod
        return replace(pod, resource_version=known.resource_version, scheduling=known.scheduling)

    def _put_nodes(self, nodes: Iterable[NodeGpus]) -> None:
        for node in nodes:
            self.ledger.put_node(node)
            self._recount_unassigned(node.name)

    def _drop_node(self, name: NodeName) -> None:
        self._claimable.forget_node(name)
        self.ledger.drop_node(name)

    # ------------------------------------------------------------------ pods that come and go

    def _see_pod(self, pod: PodRecord, read_at: float | None) -> None:
        if self.ledger.is_gone(pod.uid):
            return  # a read that began before the pod ended
        if pod.finished:
            self._lose_pod(pod.uid)
            return
        known = self.pods.get(pod.uid)
        if known is not None and known.node == pod.node is not None:
            # What a bound pod was given is settled. An edit of its annotations changes nothing.
            pod = replace(pod, task=known.task, ask=known.ask, invalid=known.invalid, assignment=known.assignment)
        if pod.node is not None:
            self._stop_placing(pod.uid)
        if pod.ask is None and pod.invalid is None:
            # It wants no GPU, or no longer does. A promise stays until the pod ends.
            self.pods.pop(pod.uid, None)
            return
        self.pods[pod.uid] = pod
        self.lowest_priority = min(self.lowest_priority, pod.scheduling.priority)
        if pod.node is not None:
            self._promise_bound(pod, pod.node, read_at)
        else:
            self._note_choice(pod)

    def _note_choice(self, pod: PodRecord) -> None:
        """What the scheduler wrote after filter: the node it chose, or that this attempt failed."""
        filtered, seen = self._being_placed.get(pod.uid), pod.scheduling
        if filtered is None or _version(pod) <= _version(filtered):
            return
        if seen.nominated is not None and seen.nominated != filtered.scheduling.nominated:
            self.ledger.nominate(pod.uid, seen.nominated)
            return
        taken_back = seen.nominated is None and self.ledger.is_nominated(pod.uid)
        if taken_back or (seen.failure and seen.failure != filtered.scheduling.failure):
            self.ledger.release_hold(pod.uid)

    def _lose_pod(self, uid: PodUid) -> None:
        self.pods.pop(uid, None)
        self._stop_placing(uid)
        self.ledger.forget(uid)

    def _stop_placing(self, uid: PodUid) -> None:
        self.unschedulable.discard(uid)
        self._being_placed.pop(uid, None)

    def _promise_bound(self, pod: PodRecord, node: NodeName, read_at: float | None) -> None:
        if pod.ask is None:
            return
        own = next((p for p in self.ledger.promises_on(node) if p.uid == pod.uid), None)
        if own is not None and (own.state is State.BOUND or (own.attempt and not _bound_by_another(own, pod))):
            if self._replicated and own.state is not State.BOUND:
                own = _with(own, pod.assignment)
            # What our Binding wrote counts, whatever the annotations say by now.
            self.ledger.promise(replace(own, state=State.BOUND, made_at=max(own.made_at, _made_at(read_at))))
            return
        if pod.assignment is not None:
            need_mib, indices = pod.assignment.reserved_mib, pod.assignment.gpu_indices
            self._put_bound(pod, pod.ask, node, need_mib, indices, _made_at(read_at))
            return
        # Until its need is known, a pod that is there takes all: a defect of ours must not give its memory away.
        self._put_bound(pod, pod.ask, node, MAX_MIB, (), _made_at(read_at))
        self._put_bound(pod, pod.ask, node, self._need_on(pod, node), (), _made_at(read_at))

    def _put_bound(
        self, pod: PodRecord, ask: Ask, node: NodeName, need_mib: int | None, indices: tuple[int, ...], made_at: float
    ) -> None:
        # What bind wrote, and no new forecast: after a restart there are many such pods at once.
        load = self._load(pod.task, pod.run.utilization if pod.run else UNKNOWN_UTILIZATION)
        self.ledger.promise(
            Promise(pod.uid, pod.key, node, ask.resource, ask.count, need_mib, indices, State.BOUND, made_at, load=load)
        )

    def _need_on(self, pod: PodRecord, node: NodeName) -> int | None:
        """The forecast of a pod that another scheduler bound; the largest one while the node is unknown."""
        try:
            demand = self.demand(pod)
        except InvalidTask:
            return None
        if demand is None or not demand.needs_mib:
            return None
        return demand.needs_mib.get(self.product_on(node, demand.ask.resource), demand.largest_need_mib)

    def _recount_unassigned(self, name: NodeName) -> None:
        """Pods that other schedulers bound count at their forecast, which depends on the node's GPUs."""
        for promise in list(self.ledger.promises_on(name)):
            pod = self.pods.get(promise.uid)
            if pod is None or pod.ask is None or pod.node != name or pod.assignment is not None or promise.attempt:
                continue
            if promise.state is State.BOUND:
                self._put_bound(pod, pod.ask, name, self._need_on(pod, name), (), promise.made_at)


def may_renew(filtered: PodRecord, newer: PodRecord) -> bool:
    """May the Binding of a filtered pod name this newer version of it?

    The version in a Binding makes sure of two things: that the pod is still the one that was filtered, and that no
    other replica has taken over since. The scheduler itself changes the version in between, when it nominates a node.
    So what counts is not the version but what it guards: our annotations, the spec, and the mark that a takeover
    writes on every pending pod. Every takeover writes another mark. A version that still has the old one is older than
    the takeover, and the API server refuses a Binding that names it from then on, however late it arrives.
    """
    return newer.scheduling.requeued == filtered.scheduling.requeued and _is_newer_and_alike(filtered, newer)


def _is_newer_and_alike(filtered: PodRecord, newer: PodRecord) -> bool:
    """Still pending, with the same spec and the same description."""
    return (
        _version(newer) > _version(filtered)
        and newer.uid == filtered.uid
        and newer.node is None
        and newer.scheduling.generation == filtered.scheduling.generation
        and (newer.task, newer.ask, str(newer.invalid)) == (filtered.task, filtered.ask, str(filtered.invalid))
    )


def _bound_by_another(promise: Promise, pod: PodRecord) -> bool:
    """Another replica has taken over since our attempt, whose Binding was refused then. Its own may differ from ours.

    If ours arrived before the takeover, the annotations say the same as the promise.
    """
    return promise.mark is not None and pod.scheduling.requeued != promise.mark


def _with(own: Promise, shown: Assignment | None) -> Promise:
    """What our attempt would take, and what the bound pod shows.

    They differ if the annotations were edited, or if another replica has bound a pod that its takeover did not touch.
    Which one cannot be told, so both count until the pod is gone.
    """
    if shown is None:
        return own
    return replace(
        own,
        need_mib=max(own.need_mib or 0, shown.reserved_mib),
        gpu_indices=tuple(sorted({*own.gpu_indices, *shown.gpu_indices})),
    )


def _made_at(read_at: float | None) -> float:
    """The watch orders its own events and lists, so only a read outside of it can be newer than a list."""
    return float("-inf") if read_at is None else read_at


def _version(pod: PodRecord) -> int:
    """Versions of one resource compare as numbers: guaranteed since Kubernetes 1.35, and true of etcd before that."""
    return int(pod.resource_version) if pod.resource_version.isascii() and pod.resource_version.isdecimal() else 0
