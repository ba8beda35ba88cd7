"""The whole service against an API server whose every answer Hypothesis may delay, lose or overtake.

Each call of the service to the API server has two moments, when it is handled and when its answer arrives. Between them
anything may happen: watch events, a second bind, an edit, the end of the pod, a takeover, a restart. In every order,
the pods that vramcast binds to a GPU never add up to more than it has. In the end the ledger matches the API server,
pods that are gone are forgotten, and every pod that fits is placed.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import FakeClock, FakeCluster, shared_pod, sharing_node
from tests.interleaving import Call, Calls, record
from vramcast.api.http import new_http_app
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

# One GPU. A small pod fits twice, so it can be bound again; next to a large one it breaks a promise.
NODES = ("a",)
FREE_MIB = 40960 - 450
NEEDS_GIB = (15, 30)
MAX_PODS = 3
MAX_STEPS = 60
T = TypeVar("T")
# What becomes of a Binding: handled as it should be, or refused for load, or handled with its answer lost.
FAULTS = ("none", "none", "refused", "answer lost", "never handled")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its timers follow the walk's clock, so that the same choices always have the same result."""

    clock: Callable[[], float] = FakeClock()

    def time(self) -> float:
        return self.clock()


_LOOP = VirtualTimeLoop()
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


class Walk:
    """One service, one API server, and the steps that lead from one state to the next."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.clock = _LOOP.clock = FakeClock()
        self.api = ApiServer()
        self.created = 0
        self.start_service()

    def start_service(self) -> None:
        self.calls = Calls()
        self.tasks: list[asyncio.Task[Any]] = []
        self.offered: dict[PodUid, list[str]] = {}
        made = load_settings({"hold_wait_seconds": 0.02, "log_level": "error"}, {})
        base = PhysicsForecaster(made.default_oom_risk)
        app = build(made, self.api, Workers.all(self.calls.offload), base=base, clock=self.clock, wall=self.clock)
        self.service, self.http = app.service, new_http_app(app.service)
        # A fresh process lists everything. What the old one had under way is gone with it.
        self.api.watch.clear()
        self.list_under_way: tuple[list[PodRecord], float] | None = None
        records = self.api.list_pods()
        self.service.apply([
            *(NodeSeen(sharing_node(name, 1)) for name in NODES), NodesListed(frozenset(map(NodeName, NODES))),
            *(PodSeen(pod) for pod in records), PodsListed(frozenset(p.uid for p in records), self.clock.now),
        ])  # fmt: skip

    def run_loop(self) -> None:
        """Until everything waits for the API server."""

        async def turn() -> None:
            for _ in range(30):
                await asyncio.sleep(0)

        _LOOP.run_until_complete(turn())
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            task.result()

    def start(self, work: Any) -> asyncio.Task[Any]:
        task = _LOOP.create_task(work)
        self.tasks.append(task)
        self.run_loop()
        return task

    def pick(self, choices: Sequence[T]) -> T:
        return self.data.draw(st.sampled_from(choices))

    def pending(self) -> list[Stored]:
        return [pod for pod in self.api.stored.values() if pod.node is None]

    def bound(self) -> list[Stored]:
        return [pod for pod in self.api.stored.values() if pod.node is not None]

    def steps(self) -> list[Callable[[], None]]:
        """What may happen next; what is likely stands here more often."""
        waiting = [call for call in self.calls.open if not call.handled]
        steps = [self.time_passes, self.maintain, self.maintain, self.take_over]
        # A restart knows only the annotations. That nobody else edits them is the admission policy's part.
        steps += [self.restart] * (not any(pod.edits for pod in self.bound()))
        steps += [self.create] * 3 * (len(self.api.stored) < MAX_PODS)
        steps += [self.schedule] * 8 * bool(self.pending())
        steps += [self.delete] * bool(self.api.stored) + [self.edit] * bool(self.bound())
        steps += [self.handle] * 4 * bool(waiting) + [self.answer] * 6 * bool(waiting)
        steps += [self.deliver] * 6 * (len(waiting) < len(self.calls.open))
        if self.list_under_way is None:
            steps += [self.break_watch] + [self.watch] * 4 * bool(self.api.watch)
        else:
            steps += [self.list_arrives] * 3
        return steps

    # ------------------------------------------------------------------ the world

    def create(self) -> None:
        self.created += 1
        pod = Stored(shared_pod(f"p{self.created}", f"{self.pick(NEEDS_GIB)}Gi"))
        self.api.stored[f"default/p{self.created}"] = pod
        self.api.notify(pod)

    def delete(self) -> None:
        pod = self.api.stored.pop(self.pick(sorted(self.api.stored)))
        self.api.watch.append(PodGone(pod.uid))

    def edit(self) -> None:
        pod = self.pick(self.bound())
        pod.edits["reserved_memory"] = self.pick(["1Mi", "39Gi", "nonsense"])
        self.api.notify(pod)

    def watch(self) -> None:
        most = self.pick(range(1, 5))
        changes, self.api.watch = self.api.watch[:most], self.api.watch[most:]
        self.service.apply(changes)
        self.run_loop()

    def break_watch(self) -> None:
        """Events that were not delivered are lost. The list that replaces them arrives later."""
        self.clock.now += 1
        self.list_under_way = self.api.list_pods(), self.clock.now
        self.api.watch.clear()

    def list_arrives(self) -> None:
        assert self.list_under_way is not None
        (records, began), self.list_under_way = self.list_under_way, None
        self.clock.now += 1
        self.service.apply([*map(PodSeen, records), PodsListed(frozenset(pod.uid for pod in records), began)])
        self.run_loop()

    def time_passes(self) -> None:
        self.clock.now += self.pick([1, 10, 35, 70])

    # ------------------------------------------------------------------ the scheduler

    def schedule(self) -> None:
        """A whole cycle. After a timeout of its own the scheduler starts another, while the first bind is under way."""
        pod = self.pick(self.pending())
        self.start(self._filter(pod))
        if self.offered.pop(pod.uid, []):
            self.start(self._bind(pod))

    async def _filter(self, pod: Stored) -> None:
        answer = await self._post("filter", {"Pod": pod.manifest, "Nodes": None, "NodeNames": list(NODES)})
        self.offered[pod.uid] = answer["NodeNames"] or []

    async def _bind(self, pod: Stored) -> None:
        metadata = pod.manifest["metadata"]
        await self._post("bind", {
            "PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": NODES[0],
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

    def handle(self) -> Call:
        call = self.pick([call for call in self.calls.open if not call.handled])
        self.api.fault = self.pick(FAULTS) if call.name == "bind" else "none"
        call.handle()
        self.api.fault = "none"
        return call

    def answer(self) -> None:
        self.handle().deliver()
        self.run_loop()

    def deliver(self) -> None:
        self.pick([call for call in self.calls.open if call.handled]).deliver()
        self.run_loop()

    # ------------------------------------------------------------------ what runs by itself

    def maintain(self) -> None:
        self.start(self.pick([resolve_unconfirmed, requeue_unschedulable])(self.service))

    def take_over(self) -> None:
        self.start(take_over(self.service, self.api))

    def restart(self) -> None:
        self.stop()
        self.start_service()

    def stop(self) -> None:
        async def end() -> None:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        _LOOP.run_until_complete(end())
        self.tasks.clear()

    # ------------------------------------------------------------------ what must hold

    def check_promises(self) -> None:
        for node in NODES:
            given = sum(pod.given_mib for pod in self.bound() if pod.node == node)
            assert given <= FREE_MIB, f"{given} MiB promised on {node}"

    def come_to_rest(self) -> None:
        """Every answer arrives, every event is delivered, and unconfirmed binds are resolved."""
        if self.list_under_way is not None:
            self.list_arrives()
        for _ in range(50):
            for call in list(self.calls.open):
                call.deliver()
            self.service.apply(self.api.watch)
            self.api.watch = []
            self.run_loop()
            if not self.tasks:
                break
            self.clock.now += 1  # filter's own wait ends
        assert not self.tasks, "something waits for ever"
        self.clock.now += 200
        self.service.expire_holds()
        self.run(resolve_unconfirmed(self.service))

    def run(self, work: Any) -> None:
        task = self.start(work)
        while not task.done():
            for call in list(self.calls.open):
                call.deliver()
            self.clock.now += 0.05
            self.run_loop()

    def check_at_rest(self) -> None:
        state = self.service.state
        promised = {(p.uid, str(p.node), p.need_mib) for p in state.ledger.promises()}
        expected = {(pod.uid, str(pod.node), pod.given_mib) for pod in self.bound()}
        assert promised == expected
        alive = {pod.uid for pod in self.api.stored.values()}
        assert {entry.pod.uid for entry in state.unschedulable.due(float("inf"), 1000)} <= alive
        assert set(state.ledger.holds) <= alive

    def check_progress(self) -> None:
        """A pod that passes filter and is never bound must not keep another out for ever."""
        pending = self.pending()
        used = sum(pod.given_mib for pod in self.bound())
        if len(pending) < 2:
            return
        stuck, other = pending[:2]
        task = other.record().task
        if task is None or (task.gpu_memory_mib or 0) > FREE_MIB - used:
            return
        for _ in range(40):
            self.run(self._filter(stuck))
            self.run(self._filter(other))
            if self.offered.get(other.uid):
                return
            self.clock.now += 10
        raise AssertionError(f"{other.uid} was starved")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_order_of_events_breaks_a_promise(data: st.DataObject) -> None:
    walk = Walk(data)
    try:
        for _ in range(data.draw(st.integers(10, MAX_STEPS))):
            walk.pick(walk.steps())()
            walk.check_promises()
        walk.come_to_rest()
        walk.check_promises()
        walk.check_at_rest()
        walk.check_progress()
    finally:
        walk.stop()
