"""What the service needs from a cluster: implemented by Kubernetes, and by a file that stands in for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change
from vramcast.task.pod import PodRecord

# May be called from any thread; changes arrive in order.
Sink = Callable[[Sequence[Change]], None]


class Fate(StrEnum):
    """What became of a Binding write."""

    BOUND = "bound"  # by this write, or by an identical earlier one
    REFUSED = "refused"  # certainly not written, now or later
    UNKNOWN = "unknown"  # no answer: the write may still arrive


@dataclass(frozen=True, slots=True)
class BindingWrite:
    """One Binding. The API server merges its annotations onto the pod in the same write."""

    uid: PodUid
    namespace: str
    pod: str
    node: NodeName
    annotations: Mapping[str, str]
    # If set, the API server refuses the write once the pod has changed.
    resource_version: str = ""
    # When the caller needs the result, on the monotonic clock. None: one full timeout from when a worker starts.
    deadline: float | None = None


@dataclass(frozen=True, slots=True)
class BindResult:
    """`seen`: the pod, if it had to be read to learn the fate."""

    fate: Fate
    message: str = ""
    seen: PodRecord | None = None


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A Kubernetes Event on a pod, shown by `kubectl describe pod`."""

    uid: PodUid
    namespace: str
    pod: str
    warning: bool
    reason: str  # CamelCase
    message: str


@dataclass(frozen=True, slots=True)
class SyncHealth:
    """`synced`: everything has been listed once. `stale_seconds`: since the last proof that the watches are alive."""

    synced: bool
    stale_seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters since the start."""

    events: int = 0
    lists: int = 0
    reconnects: int = 0
    dropped_events: int = 0


class Cluster(Protocol):
    """`start` returns at once. `bind`, `read_pod` and `requeue` block on the network: call them from worker threads."""

    def start(self, sink: Sink) -> None: ...

    def stop(self) -> None: ...

    def health(self) -> SyncHealth: ...

    def stats(self) -> Stats: ...

    def bind(self, write: BindingWrite) -> BindResult: ...

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as it is now, not from the watch; None if it does not exist. Raises WorldUnavailable."""
        ...

    def requeue(self, namespace: str, name: str, uid: PodUid) -> None:
        """Patches a pending pod so that the scheduler tries it again. Raises WorldUnavailable."""
        ...

    def post_event(self, event: PodEvent) -> None:
        """Best effort: never blocks, never raises."""
        ...
