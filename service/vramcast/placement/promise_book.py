"""Who has a promise where, and which of our bind attempts may still succeed. The ledger adds room and holds to this.

*A promise belongs to bind attempts.* A refused attempt ends the promise only if no other attempt may still succeed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace

from vramcast.names import NodeName, PodUid
from vramcast.placement.promises import Promise, State

_ABSENT = object()
# A smaller change of utilization is noise, and not worth counting a node anew.
_SAME_BUSY = 0.05


class PromiseBook(ABC):
    def __init__(self) -> None:
        self._promises: dict[NodeName, dict[PodUid, Promise]] = {}
        # A tuple, because a pod has one promise as good as always, and 40,000 sets would take 7 MB more.
        self._nodes_of_pod: dict[PodUid, tuple[NodeName, ...]] = {}
        # By pod and node, the attempts that may still succeed, with the time at which each lost its answer.
        self._attempts: dict[tuple[PodUid, NodeName], dict[int, float | None]] = {}
        self._last_attempt = 0

    @abstractmethod
    def _recount(self, name: NodeName) -> None:
        """The promises on this node have changed."""

    def promise_of(self, uid: PodUid) -> Promise | None:
        """The pod's promise; the most certain one if an unconfirmed bind left several."""
        promises = [self._promises[node][uid] for node in self._nodes_of_pod.get(uid, ())]
        return max(promises, key=lambda promise: (promise.state is State.BOUND, promise.made_at), default=None)

    def promises_on(self, node: NodeName) -> Iterable[Promise]:
        return self._promises.get(node, {}).values()

    def promises(self) -> Iterator[Promise]:
        for on_node in self._promises.values():
            yield from on_node.values()

    def set_busy(self, uid: PodUid, share: float, memory: float | None = None) -> bool:
        """How busy telemetry shows the GPU of this pod. It replaces the forecast if no other pod shares that GPU.

        False: it tells nothing about this pod alone.
        """
        promise = self.promise_of(uid)
        if promise is None or not promise.gpu_indices:
            return False
        mine = set(promise.gpu_indices)
        others = (other for other in self.promises_on(promise.node) if other.uid != uid)
        if not all(other.gpu_indices and mine.isdisjoint(other.gpu_indices) for other in others):
            return False
        load = promise.load.measured(share, memory)
        if max(abs(promise.load.busy - share), abs(promise.load.pressure - load.pressure)) >= _SAME_BUSY:
            self._put_promise(replace(promise, load=load))
        return True

    # ------------------------------------------------------------------ bind attempts

    def _new_attempt(self, uid: PodUid, node: NodeName) -> int:
        self._last_attempt += 1
        self._attempts.setdefault((uid, node), {})[self._last_attempt] = None
        return self._last_attempt

    def leave_unconfirmed(self, promise: Promise, now: float) -> None:
        """This attempt got no answer, and may still succeed."""
        attempts = self._attempts.get((promise.uid, promise.node), {})
        if promise.attempt in attempts:
            attempts[promise.attempt] = now
            self._note_attempts(promise.uid, promise.node)

    def unconfirmed(self, before: float) -> list[Promise]:
        """One for each attempt that lost its answer by then."""
        return [
            replace(self._promises[node][uid], attempt=attempt)
            for (uid, node), attempts in self._attempts.items()
            for attempt, since in attempts.items()
            if since is not None and since <= before
        ]

    def withdraw(self, promise: Promise) -> None:
        """This attempt can no longer succeed. The promise ends if no other attempt can, and the pod is not bound."""
        attempts = self._attempts.get((promise.uid, promise.node), {})
        if attempts.pop(promise.attempt, _ABSENT) is not _ABSENT:
            self._note_attempts(promise.uid, promise.node)

    def withdraw_all(self, uid: PodUid) -> None:
        """No attempt so far to bind this pod can succeed any more."""
        for node in self._nodes_of_pod.get(uid, ()):
            if self._promises[node][uid].state is not State.BOUND:
                self._drop_promise(uid, node)

    def _note_attempts(self, uid: PodUid, node: NodeName) -> None:
        attempts, promise = self._attempts[uid, node], self._promises[node][uid]
        if promise.state is State.BOUND:
            return
        if not attempts:
            self._drop_promise(uid, node)
            return
        under_way = any(since is None for since in attempts.values())
        self._put_promise(replace(promise, state=State.BINDING if under_way else State.UNCONFIRMED))

    # ------------------------------------------------------------------ keeping the book

    def _put_promise(self, promise: Promise) -> None:
        on_node = self._promises.setdefault(promise.node, {})
        before = on_node.get(promise.uid)
        on_node[promise.uid] = promise
        if promise.state is State.BOUND:
            self._attempts.pop((promise.uid, promise.node), None)
        nodes = self._nodes_of_pod.get(promise.uid, ())
        if promise.node not in nodes:
            self._nodes_of_pod[promise.uid] = (*nodes, promise.node)
        # When our own bind comes back through the watch, only its state is new and the room stays.
        if before is None or _claim(before) != _claim(promise):
            self._recount(promise.node)

    def _drop_promise(self, uid: PodUid, node: NodeName) -> None:
        del self._promises[node][uid]
        self._attempts.pop((uid, node), None)
        if not self._promises[node]:
            del self._promises[node]
        left = tuple(other for other in self._nodes_of_pod.pop(uid) if other != node)
        if left:
            self._nodes_of_pod[uid] = left
        self._recount(node)


def _claim(promise: Promise) -> tuple[object, ...]:
    """The part of a promise that takes room."""
    return promise.resource, promise.count, promise.need_mib, promise.gpu_indices, promise.load
