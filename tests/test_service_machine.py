"""The whole service against an API server whose every answer Hypothesis may delay, lose or overtake.

Each call of the service to the API server has two moments, when it is handled and when its answer arrives. Between them
anything may happen: watch events, a second bind, an edit, the end of the pod, a takeover, a restart. In every order,
the pods that vramcast binds to a GPU never add up to more than it has. In the end the ledger matches the API server,
pods that are gone are forgotten, and every pod that fits is placed.
"""

from __future__ import annotations

import asyncio
import atexit
from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.fakes import FakeClock, FakeCluster, shared_pod, sharing_node
from tests.interleaving import Call, Calls, record
from vramcast.api.http import HttpApp
from vramcast.app import build
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.controllers.maintenance import requeue_unschedulable, resolve_unconfirmed
from vramcast.controllers.takeover import take_over
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed
from vramcast.settings import load_settings
from vramcast.task.pod import PodRecord
from vramcast.workers import Workers

NODES = ("a", "b")
FREE_MIB = 40960 - 450
NEEDS_GIB = (10, 20, 30)
# What becomes of a Binding: handled as it should be, or refused for load, or handled with its answer lost.
FAULTS = ("none", "none", "refused", "answer lost", "never handled")


_LOOP = asyncio.new_event_loop()
atexit.register(_LOOP.close)


@dataclass(slots=True)
class Stored:
    """A pod of the API server. `given_mib`: what its Binding wrote, whatever its annotations say by now."""

    manifest: dict[str, Any]
    node: str | None = None
    given_mib: int = 0
    edits: dict[str, str] = field(default_factory=dict)

    @property
    def uid(self) -> PodUid:
        return PodUid(self.manifest["metadata"]["uid"])

    def record(self) -> PodRecord:
        return record(self.manifest, self.node, **self.edits)


class ApiServer(FakeCluster):
    """Pods as etcd has them, and the events that the watch has not delivered yet."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Stored] = {}
        self.watch: list[Change] = []
        self.fault = "none"

    def notify(self, pod: Stored) -> None:
        self.watch.append(PodSeen(pod.record()))

    def bind(self, write: BindingWrite) -> BindResult:
        fault, self.fault = self.fault, "none"
        pod = self.stored.get(f"{write.namespace}/{write.pod}")
        if fault == "never handled":
            return BindResult(Fate.UNKNOWN, "no answer")
        if fault == "refused":
            return BindResult(Fate.REFUSED, "too many requests")
        if pod is None or pod.uid != write.uid:
            return BindResult(Fate.REFUSED, "not found")
        if pod.node is None:
            pod.node = write.node
            pod.manifest["metadata"]["annotations"] |= write.annotations
            pod.given_mib = pod.record().assignment.reserved_mib  # type: ignore[union-attr]
            self.notify(pod)
        elif pod.node != write.node:
            return BindResult(Fate.REFUSED, "bound elsewhere", pod.record())
        return BindResult(Fate.UNKNOWN, "no answer") if fault == "answer lost" else BindResult(Fate.BOUND)

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        pod = self.stored.get(f"{namespace}/{name}")
        return pod.record() if pod else None

    def read_lease(self, namespace: str, name: str) -> None: ...

    def list_pods(self) -> list[PodRecord]:
        return [pod.record() for pod in self.stored.values()]

    def touch(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        pod = self.stored.get(f"{namespace}/{name}")
        return pod.record() if pod and pod.uid == uid else None


class ServiceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = _LOOP
        self.clock = FakeClock()
        self.api = ApiServer()
        self.created = 0
        self.list_under_way: tuple[list[PodRecord], float] | None = None
        self.start_service()

    def start_service(self) -> None:
        self.calls = Calls()
        self.tasks: list[asyncio.Task[Any]] = []
        made = load_settings({"hold_wait_seconds": 0.05, "log_level": "error"}, {})
        base = PhysicsForecaster(made.default_oom_risk)
        app = build(made, self.api, Workers.all(self.calls.offload), base=base, clock=self.clock, wall=self.clock)
        self.service, self.http = app.service, HttpApp(app.service)
        # A fresh process lists everything. What the old one had under way is gone with it.
        self.api.watch.clear()
        self.list_under_way = None
        records = self.api.list_pods()
        self.service.apply([
            *(NodeSeen(sharing_node(name, 1)) for name in NODES), NodesListed(frozenset(map(NodeName, NODES))),
            *(PodSeen(pod) for pod in records), PodsListed(frozenset(p.uid for p in records), self.clock.now),
        ])  # fmt: skip
        self.offered: dict[PodUid, list[str]] = {}

    def settle(self) -> None:
        """Run the event loop until everything waits for the API server."""

        async def turn() -> None:
            for _ in range(30):
                await asyncio.sleep(0)

        self.loop.run_until_complete(turn())
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            task.result()

    def start(self, work: Any) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.tasks.append(task)
        self.settle()
        return task

    def pick(self, data: st.DataObject, pods: list[Stored]) -> Stored:
        return data.draw(st.sampled_from(pods))

    def pending(self) -> list[Stored]:
        return [pod for pod in self.api.stored.values() if pod.node is None]

    def bound(self) -> list[Stored]:
        return [pod for pod in self.api.stored.values() if pod.node is not None]

    # ------------------------------------------------------------------ the world

    @rule(gib=st.sampled_from(NEEDS_GIB))
    def create(self, gib: int) -> None:
        self.created += 1
        pod = Stored(shared_pod(f"p{self.created}", f"{gib}Gi"))
        self.api.stored[f"default/p{self.created}"] = pod
        self.api.notify(pod)

    @precondition(lambda self: self.api.stored)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.api.stored)))
        pod = self.api.stored.pop(key)
        self.api.watch.append(PodGone(pod.uid))

    @precondition(lambda self: self.bound())
    @rule(data=st.data(), text=st.sampled_from(["1Mi", "39Gi", "nonsense"]))
    def edit(self, data: st.DataObject, text: str) -> None:
        pod = self.pick(data, self.bound())
        pod.edits["reserved_memory"] = text
        self.api.notify(pod)

    @precondition(lambda self: self.api.watch and self.list_under_way is None)
    @rule(most=st.integers(1, 4))
    def watch_delivers(self, most: int) -> None:
        changes, self.api.watch = self.api.watch[:most], self.api.watch[most:]
        self.service.apply(changes)
        self.settle()

    @precondition(lambda self: self.list_under_way is None)
    @rule()
    def watch_breaks_and_lists(self) -> None:
        """Events that were not delivered are lost; the list that replaces them arrives later."""
        self.clock.now += 1
        self.list_under_way = self.api.list_pods(), self.clock.now
        self.api.watch.clear()

    @precondition(lambda self: self.list_under_way is not None)
    @rule()
    def list_arrives(self) -> None:
        assert self.list_under_way is not None
        (records, began), self.list_under_way = self.list_under_way, None
        self.clock.now += 1
        self.service.apply([*map(PodSeen, records), PodsListed(frozenset(pod.uid for pod in records), began)])
        self.settle()

    @rule(seconds=st.sampled_from([1, 10, 35, 70]))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds

    # ------------------------------------------------------------------ the scheduler

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def filter(self, data: st.DataObject) -> None:
        pod = self.pick(data, self.pending())
        self.start(self._filter(pod))

    async def _filter(self, pod: Stored) -> None:
        answer = await self._post("filter", {"Pod": pod.manifest, "Nodes": None, "NodeNames": list(NODES)})
        self.offered[pod.uid] = answer["NodeNames"] or []

    @precondition(lambda self: any(self.offered.get(pod.uid) for pod in self.pending()))
    @rule(data=st.data())
    def bind(self, data: st.DataObject) -> None:
        """The scheduler may bind a pod again after a timeout of its own, while the first bind is under way."""
        pod = self.pick(data, [pod for pod in self.pending() if self.offered.get(pod.uid)])
        node = data.draw(st.sampled_from(self.offered[pod.uid]))
        self.start(self._bind(pod, node))

    async def _bind(self, pod: Stored, node: str) -> None:
        metadata = pod.manifest["metadata"]
        await self._post("bind", {
            "PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": node,
        })  # fmt: skip

    async def _post(self, verb: str, body: Any) -> Any:
        answer: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": msgspec.json.encode(body), "more_body": False}

        async def send(message: Any) -> None:
            answer.append(message)

        scope = {"type": "http", "method": "POST", "path": f"/{verb}", "query_string": b"", "headers": []}
        await self.http(scope, receive, send)
        assert answer[0]["status"] == 200, answer
        return msgspec.json.decode(answer[1]["body"])

    # ------------------------------------------------------------------ answers, late or lost

    @precondition(lambda self: any(not call.handled for call in self.calls.open))
    @rule(data=st.data(), fault=st.sampled_from(FAULTS))
    def a_call_is_handled(self, data: st.DataObject, fault: str) -> None:
        call: Call = data.draw(st.sampled_from([call for call in self.calls.open if not call.handled]))
        self.api.fault = fault if call.name == "bind" else "none"
        call.handle()
        self.api.fault = "none"

    @precondition(lambda self: any(call.handled for call in self.calls.open))
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from([call for call in self.calls.open if call.handled])).deliver()
        self.settle()

    # ------------------------------------------------------------------ what runs by itself

    @rule(work=st.sampled_from([resolve_unconfirmed, requeue_unschedulable]))
    def maintenance(self, work: Any) -> None:
        self.start(work(self.service))

    @rule()
    def takeover(self) -> None:
        self.start(take_over(self.service, self.api))

    @rule()
    def restart(self) -> None:
        self._stop()
        self.start_service()

    def _stop(self) -> None:
        async def end() -> None:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        self.loop.run_until_complete(end())
        self.tasks.clear()

    # ------------------------------------------------------------------ what must always hold

    @invariant()
    def no_gpu_is_over(self) -> None:
        for node in NODES:
            given = sum(pod.given_mib for pod in self.bound() if pod.node == node)
            assert given <= FREE_MIB, f"{given} MiB promised on {node}"

    def teardown(self) -> None:
        try:
            self._come_to_rest()
            self._check_at_rest()
            self._place_what_fits()
        finally:
            self._stop()

    def _come_to_rest(self) -> None:
        """Every answer arrives, every event is delivered, and unconfirmed binds are resolved."""
        if self.list_under_way is not None:
            self.list_arrives()
        for _ in range(50):
            for call in list(self.calls.open):
                call.deliver()
            self.service.apply(self.api.watch)
            self.api.watch = []
            self.settle()
            if not self.tasks:
                break
            self.loop.run_until_complete(asyncio.sleep(0.06))  # filter's own wait
        assert not self.tasks, "something waits for ever"
        self.clock.now += 200
        self.service.expire_holds()
        self._run(resolve_unconfirmed(self.service))

    def _run(self, work: Any) -> None:
        task = self.start(work)
        while not task.done():
            for call in list(self.calls.open):
                call.deliver()
            self.settle()

    def _check_at_rest(self) -> None:
        state = self.service.state
        promised = {(p.uid, str(p.node), p.need_mib) for p in state.ledger.promises()}
        edited = {pod.uid for pod in self.bound() if pod.edits}
        expected = {(pod.uid, str(pod.node), pod.given_mib) for pod in self.bound()}
        # After a restart an edited annotation is all there is. Such pods count, but not what they say.
        assert {p[:2] for p in promised} == {p[:2] for p in expected}
        assert {p for p in promised if p[0] not in edited} == {p for p in expected if p[0] not in edited}
        alive = {pod.uid for pod in self.api.stored.values()}
        assert {entry.pod.uid for entry in state.unschedulable.due(float("inf"), 1000)} <= alive
        assert set(state.ledger.holds) <= alive

    def _place_what_fits(self) -> None:
        """A pod that passes filter and is never bound must not keep others out."""
        stuck = self.pending()[:1]
        for pod in self.pending()[1:]:
            self._give_it_a_chance(pod, stuck)

    def _give_it_a_chance(self, pod: Stored, stuck: list[Stored]) -> None:
        room = {n: FREE_MIB - sum(p.given_mib for p in self.bound() if p.node == n) for n in NODES}
        if any(p.edits for p in self.bound()) or pod.record().task.gpu_memory_mib > max(room.values()):  # type: ignore[union-attr,operator]
            return
        for _ in range(40):
            for other in stuck:
                self._run(self._filter(other))
            self._run(self._filter(pod))
            if self.offered[pod.uid]:
                self._run(self._bind(pod, self.offered[pod.uid][0]))
                self.service.apply(self.api.watch)
                self.api.watch = []
                assert pod.node is not None
                return
            self.clock.now += 10
        raise AssertionError(f"{pod.uid} was starved")


ServiceMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestServiceMachine = ServiceMachine.TestCase
