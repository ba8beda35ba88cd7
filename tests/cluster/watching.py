"""A KubernetesCluster that watches the fake API server and skips all delays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.cluster.fake_apiserver import FakeApiServer
from tests.controlplane import eventually
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.seam import Sink
from vramcast.cluster.transport import Backoff
from vramcast.cluster.watch import Timing
from vramcast.placement.changes import Change, NodeGone, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed
from vramcast.placement.gpus import NodeGpus
from vramcast.task.pod import PodRecord

# Without jitter, so that tests can compare delays.
STEADY = Backoff(jitter=lambda: 0.0)


class StateSink:
    """Applies changes as the service's state does. Thread-safe. `batches` has the changes of each call."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeGpus] = {}
        self.pods: dict[str, PodRecord] = {}
        self.batches: list[list[Change]] = []
        self._lock = threading.Lock()

    def __call__(self, changes: Sequence[Change]) -> None:
        with self._lock:
            for change in changes:
                self._apply(change)
            self.batches.append(list(changes))

    def _apply(self, change: Change) -> None:
        match change:
            case NodeSeen(node):
                self.nodes[node.name] = node
            case NodeGone(name):
                self.nodes.pop(name, None)
            case NodesListed(names):
                self.nodes = {name: node for name, node in self.nodes.items() if name in names}
            case PodSeen(pod):
                self.pods[pod.uid] = pod
            case PodGone(uid):
                self.pods.pop(uid, None)
            case PodsListed(uids, _):
                self.pods = {uid: pod for uid, pod in self.pods.items() if uid in uids}

    @property
    def changes(self) -> list[Change]:
        with self._lock:
            return [change for batch in self.batches for change in batch]

    def until(self, holds: Callable[[StateSink], object], what: str = "") -> None:
        def probe() -> object:
            with self._lock:
                return holds(self)

        eventually(probe, what=what)


class Pauses:
    """Records delays instead of waiting."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)

    @property
    def real(self) -> list[float]:
        return [seconds for seconds in self.seconds if seconds > 0]


class Clock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Watching:
    def __init__(self, server: FakeApiServer, sink: Sink | None = None, timing: Timing | None = None) -> None:
        self.seen = StateSink()
        self.pauses = Pauses()
        timing = timing or Timing(backoff=STEADY)
        self.cluster = KubernetesCluster(server.transport(), timing=timing, pause=self.pauses)
        self.sink = sink or self.seen

    def start(self) -> None:
        self.cluster.start(self.sink)

    def wait_synced(self) -> None:
        eventually(lambda: self.cluster.health().synced, what="both lists")

    def wait_connected(self) -> None:
        eventually(lambda: all(watch.connected for watch in self.cluster.watch_stats()), what="both watches")


@contextmanager
def watching(server: FakeApiServer, sink: Sink | None = None, timing: Timing | None = None) -> Iterator[Watching]:
    """Started, listed and connected."""
    running = Watching(server, sink, timing)
    running.start()
    try:
        running.wait_synced()
        running.wait_connected()
        yield running
    finally:
        running.cluster.stop()


@contextmanager
def starting(server: FakeApiServer, sink: Sink | None = None) -> Iterator[Watching]:
    """Started, perhaps not listed yet."""
    running = Watching(server, sink)
    running.start()
    try:
        yield running
    finally:
        running.cluster.stop()
