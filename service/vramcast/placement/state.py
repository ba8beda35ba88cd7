"""The cluster as vramcast knows it: the ledger, the pods that matter to it, and a count of what was seen.

Changes come in, demands go out. Nothing is stored: after a restart the same changes rebuild the same state.
"""

from __future__ import annotations

from collections.abc import Callable

from vramcast.errors import InvalidTask
from vramcast.forecast.forecast import Forecaster
from vramcast.names import NodeName, PodUid, Product
from vramcast.placement.changes import (
    Change,
    NodeGone,
    NodeSeen,
    NodesListed,
    PodGone,
    PodSeen,
    PodsListed,
    UnmanagedMemorySeen,
)
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Demand, Promise, State
from vramcast.task.pod import PodRecord


class ClusterState:
    """One owner, one thread."""

    def __init__(
        self, ledger: Ledger, forecaster: Forecaster, floor_mib: Callable[[PodRecord], int] = lambda _pod: 0
    ) -> None:
        """`floor_mib`: what a pod must get at least, because it died of less."""
        self.ledger = ledger
        self.pods: dict[PodUid, PodRecord] = {}
        # Grows with every change seen: who saw the same number twice has seen no news in between.
        self.revision = 0
        # Only after a complete list of both is it known what is free.
        self.nodes_listed = False
        self.pods_listed = False
        self._forecaster = forecaster
        self._floor_mib = floor_mib

    def apply(self, change: Change, now: float) -> None:
        self.revision += 1
        match change:
            case PodSeen(pod):
                self._see_pod(pod, now)
            case PodGone(uid):
                self._lose_pod(uid)
            case NodeSeen(node):
                self.ledger.put_node(node)
                self._recount_unassigned(node.name, now)
            case NodeGone(name):
                self.ledger.drop_node(name)
            case UnmanagedMemorySeen(name, used_mib):
                self.ledger.set_unmanaged(name, used_mib)
            case NodesListed(names):
                self.nodes_listed = True
                for name in self.ledger.nodes.keys() - names:
                    self.ledger.drop_node(name)
            case PodsListed(uids, listed_at):
                self.pods_listed = True
                self.ledger.forget_absent(uids, listed_at)
                for uid in self.pods.keys() - uids:
                    if self.ledger.promise_of(uid) is None:
                        del self.pods[uid]

    @property
    def synced(self) -> bool:
        return self.nodes_listed and self.pods_listed

    def demand(self, pod: PodRecord) -> Demand | None:
        """What the pod wants on every product that the cluster has; None for one that wants no GPU.

        Raises InvalidTask where the description cannot be forecast from.
        """
        if pod.invalid is not None:
            raise pod.invalid
        if pod.ask is None:
            return None
        task = pod.task
        needs: dict[Product, int] = {}
        if task is not None:
            floor_mib = self._floor_mib(pod)
            needs = {p: max(self._forecaster.forecast(task, p).need_mib, floor_mib) for p in self.ledger.products}
        return Demand(pod.uid, pod.key, pod.ask, needs)

    def _see_pod(self, pod: PodRecord, now: float) -> None:
        if pod.finished:
            self._lose_pod(pod.uid)
            return
        if pod.ask is None and pod.invalid is None:
            # It never wanted a GPU, or does not any more; a promise that was made stays until its end.
            self.pods.pop(pod.uid, None)
            return
        self.pods[pod.uid] = pod
        if pod.node is not None:
            self._promise_bound(pod, pod.node, now)

    def _lose_pod(self, uid: PodUid) -> None:
        self.pods.pop(uid, None)
        self.ledger.forget(uid)

    def _promise_bound(self, pod: PodRecord, node: NodeName, now: float) -> None:
        if pod.ask is None:
            return
        indices: tuple[int, ...] = ()
        need_mib: int | None
        if pod.assignment is not None:
            indices, need_mib = pod.assignment.gpu_indices, pod.assignment.reserved_mib
        else:
            need_mib = self._need_on(pod, node)
        self.ledger.promise(
            Promise(pod.uid, pod.key, node, pod.ask.resource, pod.ask.count, need_mib, indices, State.BOUND, now)
        )

    def _need_on(self, pod: PodRecord, node: NodeName) -> int | None:
        """For a pod that somebody else bound: its forecast on that node, or the largest while the node is unknown."""
        try:
            demand = self.demand(pod)
        except InvalidTask:
            return None
        if demand is None or not demand.needs_mib:
            return None
        gpus = self.ledger.nodes.get(node)
        pool = gpus.pool(demand.ask.resource) if gpus else None
        return demand.needs_mib[pool.product] if pool else max(demand.needs_mib.values())

    def _recount_unassigned(self, name: NodeName, now: float) -> None:
        """Pods that were bound by others count at their forecast, which depends on what the node has."""
        for promise in list(self.ledger.promises_on(name)):
            pod = self.pods.get(promise.uid)
            if pod is not None and pod.node == name and pod.assignment is None and promise.state is State.BOUND:
                self._promise_bound(pod, name, now)
