"""The seam to the world outside: a real Kubernetes cluster, or a file that plays one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change
from vramcast.task.pod import PodRecord

# Called from any thread, in the order of the changes.
Sink = Callable[[Sequence[Change]], None]


class Fate(StrEnum):
    """What became of a Binding write."""

    BOUND = "bound"  # the API server has it, by this write or by an earlier one like it
    REFUSED = "refused"  # for certain not written: the pod is gone, is another one, or sits elsewhere
    UNKNOWN = "unknown"  # no answer: it may still come through


@dataclass(frozen=True, slots=True)
class BindingWrite:
    """One Binding, with the assignment that the API server merges onto the pod in the same write."""

    uid: PodUid
    namespace: str
    pod: str
    node: NodeName
    annotations: Mapping[str, str]
    # If given, the pod must not have changed since: the API server refuses the write for good if it has.
    resource_version: str = ""


@dataclass(frozen=True, slots=True)
class BindResult:
    """`seen`: the pod as it was read to settle the matter, where that was needed."""

    fate: Fate
    message: str = ""
    seen: PodRecord | None = None


@dataclass(frozen=True, slots=True)
class PodEvent:
    """A Kubernetes Event about a pod: where its owner looks."""

    uid: PodUid
    namespace: str
    pod: str
    warning: bool
    reason: str  # CamelCase, as Kubernetes has it
    message: str


@dataclass(frozen=True, slots=True)
class SyncHealth:
    """Is what we know the truth? `stale_seconds`: since the last proof that the watch is alive."""

    synced: bool
    stale_seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Stats:
    """How much the world outside had to say, since the start."""

    events: int = 0
    lists: int = 0
    reconnects: int = 0
    dropped_events: int = 0


class Cluster(Protocol):
    """`start` returns at once; the calls that follow may block on the network and are made from worker threads."""

    def start(self, sink: Sink) -> None: ...

    def stop(self) -> None: ...

    def health(self) -> SyncHealth: ...

    def stats(self) -> Stats: ...

    def bind(self, write: BindingWrite) -> BindResult: ...

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as it is now, read from the source; None if there is none. Raises WorldUnavailable."""
        ...

    def requeue(self, namespace: str, name: str, uid: PodUid) -> None:
        """Touch a pending pod so that the scheduler looks at it again. Raises WorldUnavailable."""
        ...

    def post_event(self, event: PodEvent) -> None:
        """Best effort, never blocks for long, never raises."""
        ...
