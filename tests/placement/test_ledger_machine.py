"""Filter, bind, watch, delete, expire, relist and restart in any order never promise the same room twice.

The machine plays the API server: only its `pods` show which pods exist and where they are bound. It drives the ledger
as the service does, then checks it against those pods and against a recount that shares no code with the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.placement.builders import GivenForecaster, sharing_node, whole_node

from vramcast.hardware.vendors import SHARED_GPU, WHOLE_GPU
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import (
    Change,
    NodeGone,
    NodeSeen,
    NodesListed,
    PodGone,
    PodSeen,
    PodsListed,
    UnmanagedSeen,
)
from vramcast.placement.gpus import NodeGpus
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Promise
from vramcast.placement.state import ClusterState
from vramcast.task.pod import ContainerDevices, PodRecord, read_pod
from vramcast.task.vocabulary import PREFIX, Written

HOLD_TTL_SECONDS = 30.0
SHARING_NODES = ("share-1", "share-2")
SLICED_NODES = ("slice-1",)
NODES = (*SHARING_NODES, *SLICED_NODES)
REPLICAS = 3
# Need, count, shares. The needs are large for GPUs of 40 to 60, so that pods compete for room.
PODS = st.tuples(st.sampled_from([10, 15, 20, 30, 40]), st.sampled_from([1, 1, 2]), st.booleans())
RESULTS = ("answered", "answered", "answered", "lost", "applied, answer lost", "timed out")


@dataclass
class StoredPod:
    """A pod as the API server stores it."""

    uid: str
    need_mib: int
    count: int
    shares: bool
    node: str | None = None
    written: dict[str, str] = field(default_factory=dict)
    indices: tuple[int, ...] = ()
    finished: bool = False
    bound_by_us: bool = False

    def record(self) -> PodRecord:
        annotations = {PREFIX + "gpu-memory": f"{self.need_mib}Mi", **self.written}
        containers = [ContainerDevices({WHOLE_GPU: self.count})]
        if self.shares:
            annotations |= {PREFIX + "share": "true", PREFIX + "gpus": str(self.count)}
            containers = []
        node = NodeName(self.node) if self.node else None
        return read_pod(PodUid(self.uid), "ml", self.uid, annotations, containers, node, self.finished)


@dataclass(frozen=True)
class Write:
    """A Binding in flight. `timed_out`: the service has stopped waiting, but the write may still land."""

    promise: Promise
    timed_out: bool = False


def build_node(name: str, sizes: tuple[int, ...]) -> NodeGpus:
    if name in SHARING_NODES:
        return sharing_node(name, *sizes)
    return whole_node(name, sizes[0], len(sizes), REPLICAS)


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pods: dict[str, StoredPod] = {}
        self.sizes: dict[str, tuple[int, ...]] = {}  # last known, deleted nodes included
        self.present: set[str] = set()
        # Nodes that shrank under their pods, or got pods from another scheduler. They may well be over-full.
        self.exempt: set[str] = set()
        self.unmanaged: dict[str, tuple[int, ...]] = {}
        self.writes: list[Write] = []
        self.watch: list[Change] = []
        self.list_under_way: tuple[list[PodRecord], float] | None = None
        self.offered: dict[str, set[str]] = {}
        self.created = 0
        self.state = self.empty_state()

    def empty_state(self) -> ClusterState:
        return ClusterState(Ledger(hold_ttl_seconds=HOLD_TTL_SECONDS), GivenForecaster())

    @property
    def ledger(self) -> Ledger:
        return self.state.ledger

    def apply(self, *changes: Change) -> None:
        for change in changes:
            self.state.apply(change)

    def tick(self) -> None:
        self.now += 1.0

    def withdraw_offers(self, node: str) -> None:
        """The node changed after filter, so a bind to it may now be refused."""
        for nodes in self.offered.values():
            nodes.discard(node)

    def pick(self, data: st.DataObject, uids: list[str]) -> StoredPod:
        return self.pods[data.draw(st.sampled_from(sorted(uids)))]

    def pending(self) -> list[str]:
        return [uid for uid, pod in self.pods.items() if pod.node is None]

    # ------------------------------------------------------------------ nodes

    @initialize(sizes=st.lists(st.sampled_from([40, 59, 60]), min_size=3, max_size=3))
    def first_nodes(self, sizes: list[int]) -> None:
        self.put_node("share-1", (sizes[0],) * 2)
        self.put_node("share-2", (sizes[1],))
        self.put_node("slice-1", (sizes[2],) * 2)

    @rule(name=st.sampled_from(NODES), data=st.data())
    def node_changes(self, name: str, data: st.DataObject) -> None:
        """The node grows, is recreated, is deleted or gets unmanaged memory. Shrinking is the rarest change."""
        what = data.draw(st.sampled_from(["grown", "grown", "deleted", "deleted", "unmanaged", "other GPUs"]))
        if what == "grown":
            extra = data.draw(st.integers(0, 20))
            self.put_node(name, tuple(size + extra for size in self.sizes[name]))
        elif what == "deleted":
            self.drop_node(name)
        elif what == "unmanaged":
            self.set_unmanaged(name, tuple(data.draw(st.lists(st.integers(0, 15), max_size=3))))
        else:
            sizes = data.draw(st.lists(st.integers(10, 60), min_size=1, max_size=3))
            self.put_node(name, tuple(sizes if name in SHARING_NODES else [min(sizes)] * len(sizes)))

    def put_node(self, name: str, sizes: tuple[int, ...]) -> None:
        self.tick()
        before = self.sizes.get(name, ())
        shrank = len(sizes) < len(before) or any(new < old for new, old in zip(sizes, before, strict=False))
        if shrank:
            self.exempt.add(name)
        self.sizes[name] = sizes
        self.present.add(name)
        self.withdraw_offers(name)
        self.apply(NodeSeen(build_node(name, sizes)))

    def drop_node(self, name: str) -> None:
        self.tick()
        self.present.discard(name)
        self.unmanaged.pop(name, None)
        self.withdraw_offers(name)
        self.apply(NodeGone(NodeName(name)))

    def set_unmanaged(self, name: str, used: tuple[int, ...]) -> None:
        self.tick()
        if name in self.present:
            self.unmanaged[name] = used
            self.withdraw_offers(name)
            self.apply(UnmanagedSeen(NodeName(name), used))

    # ------------------------------------------------------------------ pods in the API server

    @rule(burst=st.lists(PODS, min_size=2, max_size=4))
    def create(self, burst: list[tuple[int, int, bool]]) -> None:
        self.tick()
        for need, count, shares in burst:
            self.created += 1
            pod = StoredPod(f"p{self.created}", need, count, shares)
            self.pods[pod.uid] = pod
            self.watch.append(PodSeen(pod.record()))

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.tick()
        pod = self.pick(data, list(self.pods))
        del self.pods[pod.uid]
        self.watch.append(PodGone(PodUid(pod.uid)))

    @precondition(lambda self: any(pod.node and not pod.finished for pod in self.pods.values()))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.tick()
        pod = self.pick(data, [uid for uid, pod in self.pods.items() if pod.node and not pod.finished])
        pod.finished = True
        self.watch.append(PodSeen(pod.record()))

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), name=st.sampled_from(NODES), really=st.sampled_from([False, False, True]))
    def bound_by_another_scheduler(self, data: st.DataObject, name: str, really: bool) -> None:
        """Rare, because it exempts the node from the load checks."""
        self.tick()
        if not really:
            return
        pod = self.pick(data, self.pending())
        pod.node = name
        self.exempt.add(name)
        self.withdraw_offers(name)
        self.watch.append(PodSeen(pod.record()))

    # ------------------------------------------------------------------ the scheduler filters and binds

    @precondition(lambda self: self.pending())
    @rule(data=st.data(), names=st.sets(st.sampled_from(NODES), min_size=1), most=st.integers(2, 5))
    def filter(self, data: st.DataObject, names: set[str], most: int) -> None:
        """Several scheduling cycles. Each may overlap binds that are still in flight."""
        uids = data.draw(st.permutations(sorted(self.pending())))
        for uid in uids[:most]:
            self.filter_pod(uid, sorted(names))

    def filter_pod(self, uid: str, names: list[str]) -> None:
        self.tick()
        demand = self.state.demand(self.pods[uid].record())
        assert demand is not None
        decision = self.ledger.decide(demand, self.ledger.board.columns(names))
        own = self.ledger.offer_own(decision)
        if own is None:
            self.ledger.hold(decision, self.now)
        fits_on = (own or decision).fits
        self.offered[uid] = {name for name, fits in zip(names, fits_on, strict=True) if fits}

    @precondition(lambda self: self.pending() and self.present)
    @rule(data=st.data())
    def bind_to_an_offered_node(self, data: st.DataObject) -> None:
        uids = [uid for uid in self.pending() if self.offered.get(uid)]
        for uid in data.draw(st.permutations(uids)) if uids else []:
            self.bind(self.pods[uid], data.draw(st.sampled_from(sorted(self.offered[uid]))))

    @precondition(lambda self: self.pending() and self.present)
    @rule(data=st.data())
    def bind_anywhere(self, data: st.DataObject) -> None:
        """Again, elsewhere, or to a node that filter never saw: a scheduler may do any of these."""
        unanswered = [uid for uid in self.pending() if self.ledger.promise_of(PodUid(uid)) is not None]
        self.bind(self.pick(data, unanswered or self.pending()), data.draw(st.sampled_from(sorted(self.present))))

    def bind(self, pod: StoredPod, name: str) -> None:
        self.tick()
        feasible = self.offered.pop(pod.uid, set())
        demand = self.state.demand(pod.record())
        assert demand is not None
        if not self.has_room(pod.uid, name):
            feasible = set()
        taken = self.ledger.assign(demand, NodeName(name), self.now)
        if isinstance(taken, Promise):
            self.writes.append(Write(taken))
            return
        exempt = name in self.exempt  # another scheduler's pod may have appeared on it since
        assert exempt or name not in feasible, "filter offered the node, the node did not change, and bind refused it"

    def has_room(self, uid: str, name: str) -> bool:
        """By a hold or a promise. A pod that was filtered for long and never bound gets no hold for a while."""
        if uid not in self.ledger.holds:
            self.ledger.enter_pending_hold()
        return uid in self.ledger.holds or any(each.uid == uid for each in self.ledger.promises_on(NodeName(name)))

    def land(self, promise: Promise) -> bool:
        """The API server applies a Binding or refuses it."""
        pod = self.pods.get(promise.uid)
        if pod is None or pod.finished or pod.node not in (None, promise.node):
            return False
        if pod.node is None:
            pod.node, pod.bound_by_us, pod.indices = promise.node, True, promise.gpu_indices
            pod.written = {Written.RESERVED_MEMORY.value: f"{promise.need_mib}Mi"}
            if promise.gpu_indices:
                pod.written[Written.GPU_INDICES.value] = ",".join(map(str, promise.gpu_indices))
            self.watch.append(PodSeen(pod.record()))
        return True

    @precondition(lambda self: any(not write.timed_out for write in self.writes))
    @rule(results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=4))
    def binds_are_answered(self, results: list[str]) -> None:
        under_way = [write for write in self.writes if not write.timed_out]
        for write, result in zip(under_way, results, strict=False):
            self.answer(write, result)

    def answer(self, write: Write, result: str) -> None:
        self.tick()
        self.writes.remove(write)
        if result == "answered":
            if self.land(write.promise):
                self.ledger.confirm(write.promise, self.now)
            else:
                self.ledger.withdraw(write.promise)
            return
        if result == "applied, answer lost":
            self.land(write.promise)
        elif result == "timed out":
            self.writes.append(Write(write.promise, timed_out=True))
        self.ledger.leave_unconfirmed(write.promise, self.now)

    @precondition(lambda self: any(write.timed_out for write in self.writes))
    @rule(data=st.data(), lands=st.booleans())
    def a_timed_out_write_ends(self, data: st.DataObject, lands: bool) -> None:
        self.tick()
        write = data.draw(st.sampled_from([write for write in self.writes if write.timed_out]))
        self.writes.remove(write)
        if lands:
            self.land(write.promise)

    @rule()
    def resolve_unconfirmed(self) -> None:
        """As maintenance does, once no write for the pod can still land."""
        self.tick()
        under_way = {write.promise.uid for write in self.writes}
        for promise in [p for p in self.ledger.unconfirmed(self.now) if p.uid not in under_way]:
            pod = self.pods.get(promise.uid)
            if pod is None:
                self.apply(PodGone(promise.uid))
            elif pod.node is None:
                self.ledger.withdraw(promise)
            else:
                self.apply(PodSeen(pod.record(), read_at=self.now))

    # ------------------------------------------------------------------ watch, lists and time

    @precondition(lambda self: self.watch and self.list_under_way is None)
    @rule(most=st.integers(1, 3))
    def watch_delivers(self, most: int) -> None:
        self.tick()
        changes, self.watch = self.watch[:most], self.watch[most:]
        self.apply(*changes)

    @precondition(lambda self: self.list_under_way is None)
    @rule()
    def list_begins(self) -> None:
        """The list contains everything up to now. Later changes come through the watch that follows it."""
        self.tick()
        self.watch.clear()
        self.list_under_way = ([pod.record() for pod in self.pods.values()], self.now)

    @precondition(lambda self: self.list_under_way is not None)
    @rule()
    def list_arrives(self) -> None:
        assert self.list_under_way is not None
        self.tick()
        records, listed_at = self.list_under_way
        self.list_under_way = None
        self.apply(*(PodSeen(record) for record in records))
        self.apply(PodsListed(frozenset(record.uid for record in records), listed_at))

    # ------------------------------------------------------------------ sequences too long to occur by chance

    @precondition(lambda self: self.list_under_way is None)
    @rule(pod=PODS, name=st.sampled_from(NODES), result=st.sampled_from(RESULTS))
    def a_pod_is_created_and_bound_during_a_list(self, pod: tuple[int, int, bool], name: str, result: str) -> None:
        self.list_begins()
        self.create([pod])
        self.bind(self.pods[f"p{self.created}"], name)
        if self.writes and self.writes[-1].promise.uid == f"p{self.created}":
            self.answer(self.writes[-1], result)
        self.list_arrives()

    @rule(
        pod=PODS,
        names=st.permutations(SHARING_NODES),
        result=st.sampled_from(RESULTS[3:]),
        filtered_again=st.booleans(),
    )
    def an_unanswered_bind_is_retried_on_another_node(
        self, pod: tuple[int, int, bool], names: list[str], result: str, filtered_again: bool
    ) -> None:
        need, count, _ = pod
        self.create([(need, count, True)])
        new_pod = self.pods[f"p{self.created}"]
        for name in names:
            if new_pod.node is None:
                if filtered_again:
                    self.filter_pod(new_pod.uid, list(NODES))
                self.bind(new_pod, name)
                if self.writes and self.writes[-1].promise.uid == new_pod.uid:
                    self.answer(self.writes[-1], result if name == names[0] else "answered")

    @rule(burst=st.lists(PODS, min_size=2, max_size=4), name=st.sampled_from(NODES))
    def pods_offered_the_same_node_can_all_bind(self, burst: list[tuple[int, int, bool]], name: str) -> None:
        self.create([(need, count, name in SHARING_NODES) for need, count, _ in burst])
        uids = [f"p{self.created - n}" for n in range(len(burst))]
        for uid in uids:
            self.filter_pod(uid, [name])
        for uid in uids:
            if self.offered[uid]:
                self.bind(self.pods[uid], name)

    @rule()
    def holds_expire(self) -> None:
        self.now += HOLD_TTL_SECONDS + 1
        self.ledger.expire_holds(self.now)
        self.offered.clear()
        assert not self.ledger.holds

    @rule(lands=st.lists(st.booleans(), min_size=8, max_size=8))
    def restart(self, lands: list[bool]) -> None:
        """The process is killed at any moment. Each write in flight lands or fails before the new process lists."""
        self.tick()
        for write, landed in zip(self.writes, lands, strict=False):
            if landed:
                self.land(write.promise)
        self.writes.clear()
        self.watch.clear()
        self.offered.clear()
        self.unmanaged.clear()
        self.list_under_way = None
        self.state = self.empty_state()
        # The two lists are independent, so pods may be listed before nodes.
        self.apply(*(PodSeen(pod.record()) for pod in self.pods.values()))
        self.apply(PodsListed(frozenset(PodUid(uid) for uid in self.pods), self.now))
        self.apply(*(NodeSeen(build_node(name, self.sizes[name])) for name in sorted(self.present)))
        self.apply(NodesListed(frozenset(NodeName(name) for name in self.present)))

    # ------------------------------------------------------------------ what must always hold

    @invariant()
    def no_gpu_is_promised_more_than_it_has(self) -> None:
        """Counts only pods that exist. A lagging watch can still show a pod that a direct read found deleted. The pod's
        promise then remains until the watch shows the deletion too. It takes room, but never adds any.
        """
        unfinished = {uid for uid, pod in self.pods.items() if not pod.finished}
        for name in self.sizes.keys() - self.exempt:
            promises = [p for p in self.ledger.promises_on(NodeName(name)) if p.uid in unfinished]
            self.check_load(name, [(p.need_mib or 0, p.count, p.gpu_indices) for p in promises])

    @invariant()
    def no_gpu_of_the_real_cluster_is_over_its_memory(self) -> None:
        for name in self.sizes.keys() - self.exempt:
            here = [pod for pod in self.pods.values() if pod.node == name and not pod.finished]
            self.check_load(name, [(pod.need_mib, pod.count, pod.indices) for pod in here])

    def check_load(self, name: str, loads: list[tuple[int, int, tuple[int, ...]]]) -> None:
        sizes = self.sizes[name]
        if name in SLICED_NODES:
            each = sorted((need for need, count, _ in loads for _ in range(count)), reverse=True)
            assert sum(each[:REPLICAS]) <= sizes[0]
            return
        for gpu, size in enumerate(sizes):
            assert sum(need for need, _, indices in loads if gpu in indices) <= size
        assert all(len(indices) == count for _, count, indices in loads)

    @invariant()
    def no_promise_is_lost(self) -> None:
        for pod in self.pods.values():
            if pod.bound_by_us and not pod.finished:
                assert pod.node is not None
                promise = {p.uid: p for p in self.ledger.promises_on(NodeName(pod.node))}[PodUid(pod.uid)]
                assert (promise.need_mib, promise.gpu_indices) == (pod.need_mib, pod.indices)

    @invariant()
    def the_arrays_equal_a_recount_from_scratch(self) -> None:
        for name in self.present:
            resource = SHARED_GPU if name in SHARING_NODES else WHOLE_GPU
            column = int(self.ledger.board.columns([name])[0])
            table = self.ledger.board.tables[resource]
            expected = self.count_shared(name) if name in SHARING_NODES else self.count_sliced(name)
            held = self.count_held(column, len(expected), resource)
            assert [table.room(gpu, column) + held[gpu] for gpu in range(len(expected))] == expected
            assert list(table.held[: len(expected), column]) == held
            assert table.held_mib == int(table.held.sum())
            assert table.unmanaged_mib == int(table.unmanaged.sum())
            kinds = {promise.resource for promise in self.ledger.promises_on(NodeName(name))}
            assert bool(table.mixed[column]) == bool(kinds - {resource})

    def count_shared(self, name: str) -> list[int]:
        rooms = list(self.sizes[name])
        for gpu, used in enumerate(self.unmanaged.get(name, ())[: len(rooms)]):
            rooms[gpu] -= used
        for promise in self.ledger.promises_on(NodeName(name)):
            known = [gpu for gpu in promise.gpu_indices if gpu < len(rooms)]
            for gpu in known or range(len(rooms)):
                rooms[gpu] -= promise.need_mib or 0
        return rooms

    def count_sliced(self, name: str) -> list[int]:
        tenants = [p for p in self.ledger.promises_on(NodeName(name)) if p.resource == WHOLE_GPU]
        needs = sorted((p.need_mib or 0 for p in tenants for _ in range(p.count)), reverse=True)
        return [self.sizes[name][0] - sum(needs[: REPLICAS - 1]) - max(self.unmanaged.get(name, ()), default=0)]

    def count_held(self, column: int, gpus: int, resource: str) -> list[int]:
        held = [0] * gpus
        for hold in self.ledger.holds.values():
            for place, where in enumerate(hold.columns):
                if hold.resource == resource and where == column:
                    for gpu in hold.gpus[:, place]:
                        held[int(gpu)] += int(hold.needs_mib[place])
        return held

    def teardown(self) -> None:
        """Once every bind is resolved, the ledger contains exactly what the API server does."""
        for write in self.writes:
            self.land(write.promise)
            self.ledger.leave_unconfirmed(write.promise, self.now)
        self.writes.clear()
        if self.list_under_way is not None:
            self.list_arrives()
        self.apply(*self.watch)
        self.watch.clear()
        self.resolve_unconfirmed()
        self.holds_expire()
        left = {(p.uid, p.node) for p in self.ledger.promises()}
        assert left == {(pod.uid, pod.node) for pod in self.pods.values() if pod.node and not pod.finished}
        assert all(not table.held.any() for table in self.ledger.board.tables.values())
        self.the_arrays_equal_a_recount_from_scratch()
        self.no_gpu_of_the_real_cluster_is_over_its_memory()


LedgerMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=50, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase
