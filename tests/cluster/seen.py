"""A sink that keeps what it is told, as the state would, and every change in its order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tests.controlplane import eventually
from vramcast.placement.changes import Change, NodeGone, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed
from vramcast.placement.gpus import NodeGpus
from vramcast.task.pod import PodRecord


class Seen:
    """Safe to be called by many threads; `batches` are the calls as they came."""

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

    def until(self, holds: Callable[[Seen], object], what: str = "") -> None:
        def probe() -> object:
            with self._lock:
                return holds(self)

        eventually(probe, 20.0, what)
