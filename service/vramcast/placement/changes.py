"""Changes of the cluster as values. Nothing else changes the state from outside."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.names import NodeName, PodUid
from vramcast.placement.claimable import SliceChange
from vramcast.placement.gpus import NodeGpus
from vramcast.task.pod import PodRecord


@dataclass(frozen=True, slots=True)
class NodeSeen:
    node: NodeGpus


@dataclass(frozen=True, slots=True)
class NodeGone:
    name: NodeName


@dataclass(frozen=True, slots=True)
class NodesListed:
    """A complete list: nodes missing from it are gone. Comes after the NodeSeen of its members."""

    names: frozenset[NodeName]


@dataclass(frozen=True, slots=True)
class PodSeen:
    """`read_at`: when a read outside of the watch began (monotonic clock); None for the watch's own events."""

    pod: PodRecord
    read_at: float | None = None


@dataclass(frozen=True, slots=True)
class PodGone:
    uid: PodUid


@dataclass(frozen=True, slots=True)
class PodsListed:
    """A complete list: pods missing from it are gone, unless bound after the list began (monotonic clock)."""

    uids: frozenset[PodUid]
    listed_at: float


@dataclass(frozen=True, slots=True)
class UnmanagedSeen:
    """Memory in use on a node's GPUs, by index, that no promise accounts for."""

    name: NodeName
    used_mib: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UtilizationSeen:
    """How busy a GPU was while this pod had it to itself: shares of the time, 0 to 1.

    `memory`: in which its memory was read or written; None where no such counter is scraped.
    """

    uid: PodUid
    share: float
    memory: float | None = None


Change = (
    NodeSeen | NodeGone | NodesListed | PodSeen | PodGone | PodsListed | UnmanagedSeen | UtilizationSeen | SliceChange
)
