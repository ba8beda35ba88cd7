"""A cluster that watches the fake API server, and does not wait where the real one would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.fake_apiserver import FakeApiServer
from tests.cluster.seen import Seen
from tests.controlplane import eventually
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.seam import Sink
from vramcast.cluster.transport import Backoff
from vramcast.cluster.watch import Timing

# Delays as they would be without jitter: what is tested is their growth.
STEADY = Backoff(jitter=lambda: 0.0)


class Pauses:
    """Remembers how long it was asked to wait."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)

    @property
    def real(self) -> list[float]:
        return [seconds for seconds in self.seconds if seconds > 0]


class Watching:
    def __init__(self, server: FakeApiServer, sink: Sink | None = None, quiet_seconds: float = 20.0) -> None:
        self.seen = Seen()
        self.pauses = Pauses()
        timing = Timing(quiet_seconds=quiet_seconds, backoff=STEADY)
        self.cluster = KubernetesCluster(server.transport(), timing=timing, pause=self.pauses)
        self.sink = sink or self.seen

    def start(self) -> None:
        self.cluster.start(self.sink)

    def wait_synced(self) -> None:
        eventually(lambda: self.cluster.health().synced, what="both lists")

    def wait_connected(self) -> None:
        eventually(lambda: all(watch.connected for watch in self.cluster.watch_stats()), what="both watches")


@contextmanager
def watching(server: FakeApiServer, sink: Sink | None = None, quiet_seconds: float = 20.0) -> Iterator[Watching]:
    """Started, listed and connected."""
    running = Watching(server, sink, quiet_seconds)
    running.start()
    try:
        running.wait_synced()
        running.wait_connected()
        yield running
    finally:
        running.cluster.stop()


@contextmanager
def starting(server: FakeApiServer, sink: Sink | None = None) -> Iterator[Watching]:
    """Started, and no more."""
    running = Watching(server, sink)
    running.start()
    try:
        yield running
    finally:
        running.cluster.stop()
