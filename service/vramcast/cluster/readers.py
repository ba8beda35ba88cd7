"""Turns objects of a watch into changes, and drops those that change nothing here.

Most of what a cluster reports does not matter: node heartbeats, status updates of pods without a GPU. Each reader
remembers just enough to tell. A reader belongs to one watch, and so to one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from vramcast.hardware.vendors import is_gpu_resource
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeGone, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed
from vramcast.placement.gpus import NodeGpus, read_node
from vramcast.task.pod import NO_METADATA, Metadata, Pod, parse_count, to_record


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, Any] | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    status: NodeStatus | None = None


def to_node(node: Node) -> NodeGpus:
    """The node as decisions see it. Never raises."""
    metadata = node.metadata or NO_METADATA
    allocatable = (node.status.allocatable if node.status else None) or {}
    return read_node(
        NodeName(metadata.name or ""),
        metadata.labels or {},
        metadata.annotations or {},
        {name: str(parse_count(value)) for name, value in allocatable.items() if is_gpu_resource(name)},
    )


T = TypeVar("T", bound=Node | Pod)


class Reader(Protocol[T]):
    """One resource: where it is, and what its objects mean. None: no news."""

    resource: str
    path: str
    query: Mapping[str, str]
    object_type: type[T]

    def forget(self) -> None:
        """What was told got lost on the way: everything is news again."""
        ...

    def begin_list(self) -> None: ...

    def listed(self, item: T) -> Change | None: ...

    def end_list(self, listed_at: float) -> Change: ...

    def seen(self, item: T) -> Change | None: ...

    def gone(self, item: T) -> Change | None: ...


class NodeReader:
    """A node is news when its GPUs are: a heartbeat changes nothing."""

    resource = "nodes"
    path = "/api/v1/nodes"
    query: Mapping[str, str] = {}
    object_type = Node

    def __init__(self) -> None:
        self._known: dict[NodeName, NodeGpus] = {}
        self._listing: set[NodeName] = set()

    def forget(self) -> None:
        self._known.clear()

    def begin_list(self) -> None:
        self._listing = set()

    def listed(self, item: Node) -> Change | None:
        self._listing.add(_node_name(item))
        return self.seen(item)

    def end_list(self, listed_at: float) -> Change:  # noqa: ARG002 - only we write bindings; nobody here writes nodes
        names, self._listing = frozenset(self._listing), set()
        for name in self._known.keys() - names:
            del self._known[name]
        return NodesListed(names)

    def seen(self, item: Node) -> Change | None:
        node = to_node(item)
        if self._known.get(node.name) == node:
            return None
        self._known[node.name] = node
        return NodeSeen(node)

    def gone(self, item: Node) -> Change | None:
        name = _node_name(item)
        self._known.pop(name, None)
        return NodeGone(name)


class PodReader:
    """A pod is news if it describes itself or asks for a GPU, or ever did."""

    resource = "pods"
    path = "/api/v1/pods"
    # Finished pods use nothing; to this watch, a pod that finishes is deleted. Old Jobs can be most of a cluster.
    query: Mapping[str, str] = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    object_type = Pod

    def __init__(self) -> None:
        self._mattering: set[PodUid] = set()
        self._listing: set[PodUid] = set()

    def forget(self) -> None:
        """Nothing to do: a list tells all pods, and who ever mattered still gets a last word."""

    def begin_list(self) -> None:
        self._listing = set()

    def listed(self, item: Pod) -> Change | None:
        # All of them, and not only those that matter: absence from the list is what ends a promise.
        self._listing.add(_pod_uid(item))
        return self.seen(item)

    def end_list(self, listed_at: float) -> Change:
        uids, self._listing = frozenset(self._listing), set()
        self._mattering &= uids
        return PodsListed(uids, listed_at)

    def seen(self, item: Pod) -> Change | None:
        pod = to_record(item)
        if pod.matters:
            self._mattering.add(pod.uid)
        elif pod.uid not in self._mattering:
            return None
        return PodSeen(pod)

    def gone(self, item: Pod) -> Change | None:
        uid = _pod_uid(item)
        if uid not in self._mattering:
            return None
        self._mattering.discard(uid)
        return PodGone(uid)


def _node_name(node: Node) -> NodeName:
    return NodeName((node.metadata or NO_METADATA).name or "")


def _pod_uid(pod: Pod) -> PodUid:
    return PodUid((pod.metadata or NO_METADATA).uid or "")
