"""One vramcast with the kube-scheduler next to it. Nothing in it moves unless the walk says so."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.fakes import FakeClock, sharing_node
from tests.interleaving import Call, Calls
from tests.machine.api_server import ApiServer, Json, Stored
from vramcast.api.bind import bind_pod
from vramcast.api.filter import filter_nodes
from vramcast.app import build
from vramcast.cluster.binding import BindTiming
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.readers import PodReader
from vramcast.cluster.transport import Backoff
from vramcast.controllers.leadership import LeaseFollower
from vramcast.controllers.takeover import take_over
from vramcast.errors import WorldUnavailable
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeSeen, NodesListed
from vramcast.settings import load_settings
from vramcast.task.pod import Pod
from vramcast.workers import Workers

# More turns than any request needs from one wait to the next.
_TURNS = 25


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Its timers follow the walk's clock, so that the same choices always have the same result."""

    clock: Callable[[], float] = FakeClock()

    def time(self) -> float:
        return self.clock()


LOOP = VirtualTimeLoop()
atexit.register(LOOP.close)


@dataclass(frozen=True, slots=True)
class UnfinishedList:
    """A list of all pods as of `began`, whose answer has not arrived. `position`: the watch goes on from there."""

    pods: list[Pod]
    began: float
    position: int


class Replica:
    """`elected`: it decides only while its scheduler holds the Lease. Otherwise it is the only one, and always does."""

    def __init__(self, name: str, api: ApiServer, nodes: tuple[str, ...], *, elected: bool) -> None:
        self.name, self.api, self.nodes, self.elected = name, api, nodes, elected
        # The scheduler stops with its Lease: after that it starts no cycle, though binds may still be under way.
        self.retired = False
        self.start()

    def __repr__(self) -> str:
        return self.name

    @property
    def identity(self) -> str:
        return f"{self.name}_scheduler"

    def start(self) -> None:
        """A fresh process that lists everything. What the old one waited for is gone with it."""
        clock = self.api.clock
        self.calls = Calls()
        self.tasks: list[asyncio.Task[Any]] = []
        self.offered: dict[PodUid, list[str]] = {}
        self.polling: asyncio.Task[None] | None = None
        given: Json = {"hold_wait_seconds": 0.02, "log_level": "error"}
        if self.elected:
            given |= {"leader_lease": "kube-system/vramcast", "leader_identity": self.name}
        settings = load_settings(given, {})
        backoff = Backoff(first_seconds=0.2, longest_seconds=0.3, jitter=lambda: 0.0)
        cluster = KubernetesCluster(
            self.api, bind_timing=BindTiming(settings.bind_deadline_seconds, backoff, clock, self._pause)
        )
        app = build(
            settings, cluster, Workers.all(self.calls.offload), base=PhysicsForecaster(settings.default_oom_risk),
            clock=clock, wall=clock, lease_clock=clock,
        )  # fmt: skip
        self.cluster, self.service = cluster, app.service
        names = frozenset(map(NodeName, self.nodes))
        self.service.apply([*(NodeSeen(sharing_node(name, 1)) for name in names), NodesListed(names)])
        self.reader = PodReader()
        self.listing: UnfinishedList | None = None
        self.begin_list()
        self.finish_list()

    def _pause(self, seconds: float) -> None:
        self.api.clock.now += seconds

    # ------------------------------------------------------------------ the event loop

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run until it waits for the API server or the clock, or ends."""
        task = LOOP.create_task(work)
        self.tasks.append(task)
        self.turn()
        return task

    def turn(self) -> None:
        async def turns() -> None:
            for _ in range(_TURNS):
                await asyncio.sleep(0)

        LOOP.run_until_complete(turns())
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            with suppress(WorldUnavailable):  # its own loop would try again
                task.result()

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """To its end. Every call that it makes is answered at once; those of others wait as before."""
        others = list(self.calls.open)
        task = self.spawn(work)
        while not task.done():
            for call in [call for call in self.calls.open if call not in others]:
                self.api.begin_call("none")
                call.deliver()
            self.turn()
            if not task.done():
                self.api.clock.now += 0.05

    def stop(self) -> None:
        async def end() -> None:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

        LOOP.run_until_complete(end())
        self.tasks.clear()

    def waiting(self) -> list[Call]:
        return [call for call in self.calls.open if not call.handled]

    def handled(self) -> list[Call]:
        return [call for call in self.calls.open if call.handled]

    # ------------------------------------------------------------------ the watch

    @property
    def unseen(self) -> int:
        return len(self.api.log) - self.position

    def watch(self, most: int) -> None:
        events = self.api.log[self.position : self.position + most]
        self.position += len(events)
        self._apply([self._change(event.deleted, event.pod) for event in events])

    def _change(self, deleted: bool, encoded: bytes) -> Change | None:
        pod = msgspec.json.decode(encoded, type=Pod)
        return self.reader.gone(pod) if deleted else self.reader.seen(pod)

    def begin_list(self) -> None:
        """The watch is broken. Events that it has not delivered are lost, and a list replaces them."""
        self.listing = UnfinishedList(self.api.list_unfinished(), self.api.clock.now, len(self.api.log))

    def finish_list(self) -> None:
        assert self.listing is not None
        listing, self.listing = self.listing, None
        self.position = listing.position
        self.reader.begin_list()
        changes = [self.reader.listed(pod) for pod in listing.pods]
        self._apply([*changes, self.reader.end_list(listing.began)])

    def _apply(self, changes: list[Change | None]) -> None:
        self.service.apply([change for change in changes if change is not None])
        self.turn()

    # ------------------------------------------------------------------ the Lease

    @property
    def leading(self) -> bool:
        return self.service.leadership.leading

    def may_poll(self) -> bool:
        """One poll at a time, as in production."""
        return self.polling is None or self.polling.done()

    def poll(self) -> Coroutine[Any, Any, None]:
        follower = self.service.leadership
        assert isinstance(follower, LeaseFollower)

        async def take_over_now() -> None:
            await take_over(self.service, self.cluster)

        return follower.poll(take_over_now)

    def lead(self) -> None:
        """The scheduler renews or gets the Lease. Its vramcast learns of it, and takes over if it has to."""
        self.run(self.poll())
        self.retired = False
        self.api.renew_lease(self.identity)
        self.run(self.poll())

    # ------------------------------------------------------------------ the scheduler's requests

    async def filter(self, pod: Stored, version: int = -1) -> None:
        manifest = msgspec.json.decode(pod.versions[version])
        body = {"Pod": manifest, "Nodes": None, "NodeNames": list(self.nodes)}
        reply = await filter_nodes(self.service, msgspec.json.encode(body))
        self.offered[pod.uid] = msgspec.json.decode(reply.body)["NodeNames"] or []

    async def bind(self, pod: Stored, node: str) -> None:
        body = {"PodName": pod.name, "PodNamespace": "default", "PodUID": pod.uid, "Node": node}
        await bind_pod(self.service, msgspec.json.encode(body))
