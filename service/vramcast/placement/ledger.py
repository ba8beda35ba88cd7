"""The ledger: what is promised to whom on every GPU, and what is held for pods that are being placed.

Only the ledger changes. Deciding reads it, binding writes it, and both are single calls without I/O: on one thread,
nothing can come between reading the room and taking it. The current time is an argument.

The invariant: the sum of the promises that vramcast makes on a GPU never exceeds what the GPU has. Three rules keep it
when answers come late or twice:

- *A promise belongs to bind attempts.* A refused attempt ends the promise only if no other attempt may still succeed.
- *A bound promise ends with its pod*, and with nothing else. An attempt that succeeded counts, whatever happened to its
  promise meanwhile.
- *The dead stay dead.* UIDs never return, so a stale read cannot bring back the promise of a pod that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, PodUid, Product, Resource
from vramcast.placement import fit
from vramcast.placement.board import DEFAULT_RANKING, Board, DeviceView, Ranking
from vramcast.placement.fit import Decision, Terms
from vramcast.placement.gpus import NodeGpus
from vramcast.placement.interference import IDLE
from vramcast.placement.name_index import Ints
from vramcast.placement.pool_table import Bools, Mibs, Sweep
from vramcast.placement.promise_book import PromiseBook
from vramcast.placement.promises import Demand, Promise, State
from vramcast.placement.reasons import Reason

# After its holds, a pod that was not bound waits this many times as long before it may hold again.
_HOLD_REST = 3
# A hold on the node that the scheduler has chosen lasts this many times as long: a volume may be made meanwhile.
_NOMINATED_TTLS = 10
# The members of a gang are bound or nominated this soon after its last one was filtered, or not at all.
_GANG_SETTLE_SECONDS = 1.0
# The same if one of them fits nowhere. Then hardly any gang is placed, and others should not wait for it.
_GANG_FAILED_SECONDS = 0.05
# More pods than end while one read of the API server is under way.
_MAX_GONE = 100_000


@dataclass(frozen=True, slots=True)
class Hold:
    """A pod's need on every node that it was offered. Shapes: (nodes,), `gpus` (count, nodes)."""

    uid: PodUid
    pod: str
    resource: Resource
    columns: Ints
    gpus: Ints
    needs_mib: Mibs
    held_at: float
    expires_at: float
    sweep: Sweep  # which chose the nodes
    layout: int  # of the board at that time
    gang: str = ""
    nominated: bool = False  # the scheduler has chosen the node, and waits before it binds


class Ledger(PromiseBook):
    """`count_devices`: also count free devices, where no kube-scheduler has done so first."""

    def __init__(
        self, *, hold_ttl_seconds: float = 30.0, count_devices: bool = False, ranking: Ranking = DEFAULT_RANKING
    ) -> None:
        super().__init__()
        self._hold_ttl_seconds, self._count_devices = hold_ttl_seconds, count_devices
        self._board = Board(ranking)
        self._gone: dict[PodUid, None] = {}
        self._entered_holds: dict[PodUid, Hold] = {}
        self._pending_hold: tuple[Decision, float] | None = None
        self._held_since: dict[PodUid, float] = {}

    @property
    def board(self) -> Board:
        self.enter_pending_hold()
        return self._board

    @property
    def _holds(self) -> dict[PodUid, Hold]:
        self.enter_pending_hold()
        return self._entered_holds

    # ------------------------------------------------------------------ the cluster

    @property
    def products(self) -> Iterable[Product]:
        return self.board.product_ids.keys()

    @property
    def nodes(self) -> Mapping[NodeName, NodeGpus]:
        return self.board.nodes

    def put_node(self, node: NodeGpus) -> None:
        """A node is new or has changed. Promises on it stay. Holds on it end: they were for the node as it was."""
        if self.board.nodes.get(node.name) == node:
            return
        self._drop_holds_on(node.name)
        self.board.put(node)
        self._recount(node.name)

    def drop_node(self, name: NodeName) -> None:
        """A node is gone. Its promises stay until their pods are gone, because the node may come back."""
        if name in self.board.nodes:
            self._drop_holds_on(name)
            self.board.drop(name)

    def set_unmanaged(self, name: NodeName, used_mib: Sequence[int]) -> None:
        """Memory that telemetry shows in use on each GPU (by index) and that no promise accounts for."""
        if self.board.set_unmanaged(name, used_mib):
            self._recount(name)

    # ------------------------------------------------------------------ deciding

    def decide(self, demand: Demand, columns: Ints) -> Decision:
        """Which of the asked nodes can take the demand. The pod's own hold and promise do not count against it."""
        own = self._holds.get(demand.uid)
        if own is None:
            decision = fit.decide(self.board, demand, columns, count_devices=self._count_devices)
        else:
            self._apply(own, -1)
            try:
                decision = fit.decide(self.board, demand, columns, count_devices=self._count_devices)
            finally:
                self._apply(own, 1)
        return self._count_own_promises(decision) if demand.uid in self._nodes_of_pod else decision

    def _count_own_promises(self, decision: Decision) -> Decision:
        """The pod is tried again after a bind without an answer. Where its promise is, it may have that one again.

        If it needs more by now, it has to wait there: the Binding under way would give it less.
        """
        fits, reasons = decision.fits.copy(), decision.reasons.copy()
        for node in self.board.nodes.keys() & self._nodes_of_pod[decision.demand.uid]:
            here = decision.columns == self.board.column(node)
            fits[here] = self._suffices(self._promises[node][decision.demand.uid], decision.demand)
            reasons[here] = np.where(fits[here], Reason.FITS, Reason.HELD)
        return replace(decision, fits=fits, reasons=reasons)

    def _suffices(self, promise: Promise, demand: Demand) -> bool:
        pool = self.board.nodes[promise.node].pool(demand.ask.resource)
        same = pool is not None and promise.count == demand.ask.count and promise.resource == demand.ask.resource
        enough = pool is not None and demand.needs_mib.get(pool.product, 0) <= (promise.need_mib or 0)
        return promise.state is State.BOUND or (same and enough)

    def offer_own(self, decision: Decision) -> Decision | None:
        """The same decision with only the nodes of the pod's own promises offered. None if there are none to offer.

        Whichever of its Bindings arrives then, it says the same.
        """
        own = self.board.columns(self._nodes_of_pod.get(decision.demand.uid, ()))
        offered = decision.fits & np.isin(decision.columns, own)
        return replace(decision, fits=offered) if offered.any() else None

    def offer_best(self, decision: Decision, most: int) -> Decision:
        return fit.offer_best(self.board, decision, most)

    def fits_somewhere(self, demand: Demand) -> bool:
        return bool(self.decide(demand, np.arange(self.board.width, dtype=np.int64)).fits.any())

    def scores(self, demand: Demand, columns: Ints) -> Ints:
        """A pod with a hold is scored by the sweep that chose its nodes: a preference need not be newer than that."""
        return fit.scores(self.board, demand, self._sweep(demand, columns), columns)

    def score_terms(self, demand: Demand, columns: Ints) -> Terms | None:
        return fit.terms(self.board, demand, self._sweep(demand, columns), columns)

    def _sweep(self, demand: Demand, columns: Ints) -> Sweep | None:
        hold = self._holds.get(demand.uid)
        now = demand.ask.resource, self.board.layout
        held = hold.sweep if hold is not None and (hold.resource, hold.layout) == now else None
        return held or self.decide(demand, columns).sweep

    def fits_after(self, demand: Demand, node: NodeName, evicted: Set[PodUid]) -> bool:
        """Would the demand fit on the node once these pods are evicted? Changes nothing."""
        kept = self._promises.get(node, {})
        self._promises[node] = {uid: promise for uid, promise in kept.items() if uid not in evicted}
        try:
            self._recount(node)
            return bool(self.decide(demand, self.board.columns([node])).fits[0])
        finally:
            if kept:
                self._promises[node] = kept
            else:
                del self._promises[node]
            self._recount(node)

    # ------------------------------------------------------------------ holding

    @property
    def holds(self) -> Mapping[PodUid, Hold]:
        return self._holds

    def start_over(self, demand: Demand, now: float) -> None:
        """A filter call begins. The pod's own hold ends: the scheduler has dropped the nodes of the call before.

        The scheduler filters all members of a gang in a row. A member that is filtered again starts its gang over. A
        pod from outside shows that the row has ended: the members are about to be bound or nominated, or they failed.
        """
        again = self.release_hold(demand.uid)
        for hold in [hold for hold in self._holds.values() if hold.gang and not hold.nominated]:
            if hold.gang != demand.gang:
                self._shorten(hold, now + _GANG_SETTLE_SECONDS)
            elif again:
                self.release_hold(hold.uid)

    def give_up(self, demand: Demand, now: float) -> None:
        """The pod fits nowhere, so its gang will hardly be placed."""
        for hold in [hold for hold in self._holds.values() if hold.gang and hold.gang == demand.gang]:
            if not hold.nominated:
                self._shorten(hold, now + _GANG_FAILED_SECONDS)

    def _shorten(self, hold: Hold, expires_at: float) -> None:
        self._holds[hold.uid] = replace(hold, expires_at=min(hold.expires_at, expires_at))

    def hold(self, decision: Decision, now: float) -> None:
        """Hold the pod's need on every node that it was offered, until it is bound, gone or too late.

        Whole GPUs need no hold: the scheduler and the device plugin count them. The arrays are updated when they are
        next read, so that the answer to the scheduler does not wait for them.
        """
        demand = decision.demand
        self.release_hold(demand.uid)
        if demand.uid not in self._gone and (demand.gang or self._may_hold(demand.uid, now)):
            self._pending_hold = decision, now

    def _may_hold(self, uid: PodUid, now: float) -> bool:
        """A pod that passes filter again and again but is never bound must not keep others out for ever."""
        since = self._held_since.setdefault(uid, now)
        if now - since >= _HOLD_REST * self._hold_ttl_seconds:
            since = self._held_since[uid] = now
        return now - since < self._hold_ttl_seconds

    def nominate(self, uid: PodUid, node: NodeName) -> None:
        """The scheduler has chosen this node, and waits for a volume, a device or a gang. The other nodes are free."""
        hold = self._holds.get(uid)
        if hold is None or hold.nominated:
            return
        keep = hold.columns == self.board.columns([node])[0]
        self.release_hold(uid)
        if keep.any():
            self._narrow(hold, keep, hold.held_at + _NOMINATED_TTLS * self._hold_ttl_seconds, nominated=True)

    def holds_gang(self, gang: str) -> bool:
        return bool(gang) and any(hold.gang == gang and not hold.nominated for hold in self._holds.values())

    def is_nominated(self, uid: PodUid) -> bool:
        hold = self._holds.get(uid)
        return hold is not None and hold.nominated

    def enter_pending_hold(self) -> None:
        if self._pending_hold is not None:
            (decision, now), self._pending_hold = self._pending_hold, None
            self._enter_hold(decision, now)

    def _enter_hold(self, decision: Decision, now: float) -> None:
        demand, sweep = decision.demand, decision.sweep
        table = self.board.tables.get(demand.ask.resource)
        if table is None or sweep is None or not demand.needs_mib:
            return
        # Each column once and in ascending order, which is how the arrays lie in memory.
        chosen = np.zeros(len(sweep.fits), dtype=np.bool_)
        chosen[decision.columns[decision.fits]] = True
        columns = np.flatnonzero(chosen)
        if demand.ask.resource != SHARED_GPU:
            columns = columns[table.sliced[columns]]
        if not len(columns):
            return
        hold = Hold(
            demand.uid, demand.pod, demand.ask.resource, columns, sweep.gpus(columns), sweep.needs_mib[columns],
            now, self._held_since.get(demand.uid, now) + self._hold_ttl_seconds, sweep, self.board.layout, demand.gang,
        )  # fmt: skip
        self._holds[demand.uid] = hold
        self._apply(hold, 1)

    def release_hold(self, uid: PodUid) -> bool:
        hold = self._holds.pop(uid, None)
        if hold is None:
            return False
        self._apply(hold, -1)
        return True

    def expire_holds(self, now: float) -> list[Hold]:
        """Before every decision, so that no hold outlives its time. Holds are few, so looking at all is cheap."""
        expired = [hold for hold in self._holds.values() if hold.expires_at <= now]
        for hold in expired:
            self.release_hold(hold.uid)
        return expired

    def _apply(self, hold: Hold, sign: int) -> None:
        table = self.board.tables[hold.resource]
        for gpus in hold.gpus:
            table.add_hold(gpus, hold.columns, hold.needs_mib * sign)

    def _drop_holds_on(self, node: NodeName) -> None:
        column = self.board.column(node)
        if column is None:
            return
        for uid, hold in list(self._holds.items()):
            keep = hold.columns != column
            if keep.all():
                continue
            self.release_hold(uid)
            self._narrow(hold, keep, hold.expires_at, nominated=hold.nominated)

    def _narrow(self, hold: Hold, keep: Bools, expires_at: float, *, nominated: bool) -> None:
        """Put back a part of a hold that was released."""
        columns, gpus, needs_mib = hold.columns[keep], hold.gpus[:, keep], hold.needs_mib[keep]
        rest = replace(
            hold, columns=columns, gpus=gpus, needs_mib=needs_mib, expires_at=expires_at, nominated=nominated
        )
        self._holds[hold.uid] = rest
        self._apply(rest, 1)

    # ------------------------------------------------------------------ promising

    def assign(self, demand: Demand, node: NodeName, now: float, mark: str | None = None) -> Promise | Reason:
        """Turn the hold into a promise on the chosen node, or return the Reason why there is no room left.

        Either way the hold ends, because the scheduler has chosen. A pod that already has a promise on this node gets
        the same one again: binds may be repeated. `mark`: of the pod's last takeover, if there are other replicas.
        """
        self.release_hold(demand.uid)
        existing = self._promises.get(node, {}).get(demand.uid)
        if existing is not None:
            if node in self.board.nodes and not self._suffices(existing, demand):
                return Reason.HELD
            state = State.BOUND if existing.state is State.BOUND else State.BINDING
            promise = replace(existing, state=state, attempt=self._new_attempt(demand.uid, node), mark=mark)
            self._put_promise(promise)
            return promise
        decision = self.decide(demand, self.board.columns([node]))
        if not decision.fits[0] or decision.sweep is None:
            return Reason(int(decision.reasons[0]))
        gpus = tuple(sorted(int(gpu) for gpu in decision.sweep.gpus(decision.columns)[:, 0]))
        indices = fit.linked(self.board, demand, node, gpus) if demand.ask.resource == SHARED_GPU else ()
        pool = self.board.nodes[node].pool(demand.ask.resource)
        promise = Promise(
            demand.uid, demand.pod, node, demand.ask.resource, demand.ask.count,
            demand.needs_mib.get(pool.product) if pool else None, indices, State.BINDING, now,
            self._new_attempt(demand.uid, node), mark, demand.loads.get(pool.product, IDLE) if pool else IDLE,
        )  # fmt: skip
        self._put_promise(promise)
        return promise

    def promise(self, promise: Promise) -> None:
        """The API server shows this pod on this node, so it counts there and nowhere else, room or not."""
        if promise.uid in self._gone:
            return
        for node in self._nodes_of_pod.get(promise.uid, ()):
            if node != promise.node:
                self._drop_promise(promise.uid, node)
        self.release_hold(promise.uid)
        self._held_since.pop(promise.uid, None)
        self._put_promise(promise)

    def confirm(self, promise: Promise, now: float) -> None:
        """This attempt bound the pod. The promise counts from here on, even if it was withdrawn meanwhile."""
        known = self._promises.get(promise.node, {}).get(promise.uid)
        if known is None or known.state is not State.BOUND:
            self.promise(replace(promise, state=State.BOUND, made_at=now))

    def is_gone(self, uid: PodUid) -> bool:
        return uid in self._gone

    def forget(self, uid: PodUid) -> bool:
        """The pod is gone or finished: free everything it had, for good."""
        self._gone[uid] = None
        if len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]
        self._held_since.pop(uid, None)
        nodes = self._nodes_of_pod.get(uid, ())
        for node in nodes:
            self._drop_promise(uid, node)
        return self.release_hold(uid) or bool(nodes)

    def forget_absent(self, present: Set[PodUid], listed_at: float) -> list[PodUid]:
        """After a complete list: pods missing from it are gone, unless we bound them after the list began."""
        gone = [
            uid for uid, nodes in self._nodes_of_pod.items()
            if uid not in present and all(self._promises[node][uid].made_at < listed_at for node in nodes)
        ]  # fmt: skip
        gone += [uid for uid, hold in self._holds.items() if uid not in present and hold.held_at < listed_at]
        for uid in gone:
            self.forget(uid)
        return gone

    def device_views(self, name: NodeName) -> list[DeviceView]:
        return self.board.device_views(name, self.promises_on(name))

    # ------------------------------------------------------------------ keeping the arrays current

    def _recount(self, name: NodeName) -> None:
        self.board.recount(name, self.promises_on(name))
