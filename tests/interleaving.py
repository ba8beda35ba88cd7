"""A whole service whose calls to the cluster finish when a test says so.

Every offloaded call has two moments: when the API server handles it, and when its answer arrives. A test chooses both,
so it can put anything in between: watch events, a second bind, the end of the pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.api.client import Client
from tests.fakes import FakeClock, FakeCluster, listed, sharing_node
from vramcast.app import App, build
from vramcast.errors import WorldUnavailable
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeSeen, PodGone, PodSeen
from vramcast.settings import load_settings
from vramcast.task.pod import Pod, PodRecord, to_record
from vramcast.workers import Workers

# One GPU of 40 GiB, less the driver's reserve.
NODE = "a"


@dataclass(slots=True, eq=False, repr=False)
class Call:
    """One call to the cluster, under way."""

    name: str
    run: Callable[[], Any]
    answer: asyncio.Future[Any]
    handled: bool = False
    result: Any = None
    error: WorldUnavailable | None = None

    def __repr__(self) -> str:
        return self.name

    def handle(self) -> None:
        """The API server handles it now. The answer is still on its way."""
        if self.handled:
            return
        self.handled = True
        try:
            self.result = self.run()
        except WorldUnavailable as error:
            self.error = error

    def deliver(self) -> None:
        self.handle()
        if self.answer.done():
            return
        if self.error is not None:
            self.answer.set_exception(self.error)
        else:
            self.answer.set_result(self.result)


@dataclass(slots=True)
class Calls:
    open: list[Call] = field(default_factory=list)

    async def offload(self, call: Callable[..., Any], *arguments: Any) -> Any:
        answer = asyncio.get_running_loop().create_future()
        waiting = Call(call.__name__, lambda: call(*arguments), answer)
        self.open.append(waiting)
        try:
            return await answer
        finally:
            self.open.remove(waiting)


class World:
    """A service on one node with one GPU. Use it inside a running event loop."""

    def __init__(self, nodes: Sequence[str] = (NODE,), **settings: Any) -> None:
        self.clock = FakeClock()
        self.cluster = FakeCluster()
        self.calls = Calls()
        made = load_settings({"hold_wait_seconds": 0, **settings}, {})
        base = PhysicsForecaster(made.default_oom_risk)
        workers = Workers.all(self.calls.offload)
        self.app: App = build(made, self.cluster, workers, base=base, clock=self.clock, wall=self.clock)
        self.service, self.client = self.app.service, Client(self.app.service)
        self.apply(*(NodeSeen(sharing_node(name, 1)) for name in nodes), *listed([NodeName(name) for name in nodes]))

    def apply(self, *changes: Change) -> None:
        self.service.apply(changes)

    def see(self, manifest: dict[str, Any], node: str | None = None, **annotations: str) -> PodRecord:
        """The watch shows the pod, with these annotations on top, on this node."""
        pod = record(manifest, node, **annotations)
        self.apply(PodSeen(pod))
        return pod

    def lose(self, manifest: dict[str, Any]) -> None:
        """The watch shows that the pod is gone."""
        self.apply(PodGone(PodUid(manifest["metadata"]["uid"])))

    def room_mib(self, node: str = NODE) -> int:
        (view,) = self.service.state.ledger.device_views(NodeName(node))
        return view.room_mib

    async def start(self, work: Any) -> asyncio.Task[Any]:
        """Run until it waits for the cluster, or ends."""
        task = asyncio.ensure_future(work)
        await self.quiet()
        return task

    async def quiet(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def finish(self, task: asyncio.Task[Any]) -> Any:
        """Answer every call until this task ends."""
        while not task.done():
            for call in list(self.calls.open):
                call.deliver()
            await self.quiet()
        return task.result()

    async def filter(self, manifest: dict[str, Any], nodes: Sequence[str] = (NODE,)) -> list[str]:
        names: list[str] = (await self.client.filter(manifest, nodes))["NodeNames"]
        return names

    async def place(self, manifest: dict[str, Any], node: str = NODE) -> dict[str, Any]:
        """Filter and bind at once, and the watch shows it. Returns the pod as the API server has it."""
        assert node in await self.filter(manifest, [node])
        assert await self.finish(await self.start(self.client.bind(manifest, node))) == ""
        return self.bound(manifest, node)

    def bound(self, manifest: dict[str, Any], node: str = NODE) -> dict[str, Any]:
        written = self.cluster.writes[-1].annotations
        manifest["metadata"]["annotations"] |= written
        manifest["spec"]["nodeName"] = node
        self.see(manifest)
        return manifest


def record(manifest: dict[str, Any], node: str | None = None, **annotations: str) -> PodRecord:
    shown = msgspec.json.decode(msgspec.json.encode(manifest))
    shown["metadata"]["annotations"] |= {f"vramcast.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}
    if node is not None:
        shown["spec"]["nodeName"] = node
    return to_record(msgspec.convert(shown, Pod))
