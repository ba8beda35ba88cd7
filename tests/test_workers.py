"""Slow work of one kind never delays work of another: binds and the Lease least of all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.api.client import Client
from tests.controlplane import PATIENCE_SECONDS
from tests.fakes import FakeCluster, listed, shared_pod, sharing_node
from tests.interleaving import NODE, World, record
from vramcast.app import build
from vramcast.cluster.binding import BindTiming, bind
from vramcast.cluster.objects import Lease
from vramcast.cluster.seam import BindingWrite, BindResult
from vramcast.cluster.transport import Transport
from vramcast.controllers.run_endings import close_runs
from vramcast.controllers.takeover import take_over
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.placement.changes import NodeSeen, PodGone, PodSeen
from vramcast.service import Service
from vramcast.settings import load_settings
from vramcast.task.pod import PodRecord
from vramcast.workers import start_workers

BIND_WORKERS = 16


class BlockedReads(FakeCluster):
    """Every read of a pod, and every patch, blocks until `release`."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked = threading.Semaphore(0)
        self.release = threading.Event()

    def _block(self) -> None:
        self.blocked.release()
        assert self.release.wait(PATIENCE_SECONDS)

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        self._block()
        return super().read_pod(namespace, name)

    def read_lease(self, namespace: str, name: str) -> Lease | None:
        return None

    def list_pods(self) -> list[PodRecord]:
        return [record(shared_pod(f"pending-{number}")) for number in range(4 * BIND_WORKERS)]

    def touch(self, namespace: str, name: str, uid: str) -> PodRecord | None:
        self._block()
        return None


def outcome_reads(service: Service, _cluster: BlockedReads) -> Awaitable[None]:
    for number in range(4 * BIND_WORKERS):
        pod = record(shared_pod(f"ended-{number}", "1Gi"), NODE)
        service.apply([PodSeen(pod), PodGone(pod.uid)])
    return close_runs(service)


def takeover(service: Service, cluster: BlockedReads) -> Awaitable[None]:
    return take_over(service, cluster)


async def within_patience(work: Awaitable[Any]) -> Any:
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await work


@pytest.mark.parametrize("slow", [outcome_reads, takeover])
def test_a_bind_and_the_lease_do_not_wait_for_other_reads(slow: Any) -> None:
    async def work() -> None:
        settings, cluster = load_settings({"bind_workers": BIND_WORKERS}, {}), BlockedReads()
        with start_workers(settings.bind_workers) as workers:
            app = build(settings, cluster, workers, base=PhysicsForecaster(0.05))
            service = app.service
            await app.learned_state.load()
            service.apply([NodeSeen(sharing_node(NODE, 1)), *listed([sharing_node(NODE).name])])
            client, pod = Client(service), shared_pod("p")
            reading = asyncio.ensure_future(slow(service, cluster))
            try:
                for _ in range(BIND_WORKERS):
                    assert await asyncio.to_thread(cluster.blocked.acquire, timeout=PATIENCE_SECONDS)
                await client.filter(pod, [NODE])
                assert await within_patience(client.bind(pod, NODE)) == ""
                assert await within_patience(service.workers.lease(cluster.read_lease, "kube-system", "x")) is None
                assert not reading.done()
            finally:
                cluster.release.set()
                await reading

    asyncio.run(work())


class NoTransport(Transport):
    """Fails the test if a request is sent."""

    def __init__(self) -> None: ...

    def request(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("a request was sent")


def test_a_bind_that_waited_past_its_deadline_gives_its_room_back() -> None:
    async def work() -> None:
        world, pod = World(), shared_pod("p", "30Gi")
        room = world.room_mib()

        def late_bind(write: BindingWrite) -> BindResult:
            return bind(NoTransport(), write, BindTiming(clock=world.clock))

        await world.filter(pod)
        world.cluster.bind = late_bind  # type: ignore[method-assign]
        binding = await world.start(world.client.bind(pod, NODE))
        assert world.room_mib() < room
        world.clock.now += world.service.settings.bind_deadline_seconds
        assert "nothing was written" in await world.finish(binding)
        assert world.room_mib() == room
        assert world.service.state.ledger.promise_of(record(pod).uid) is None

    asyncio.run(work())
