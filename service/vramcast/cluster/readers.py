"""Turns the objects of a watch into changes, and drops those that do not matter here.

Most updates in a cluster do not: node heartbeats, status updates of pods without a GPU. Each reader remembers just
enough to recognize them. A reader belongs to one watch, so it runs in one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

import msgspec

from vramcast.cluster.objects import UNFINISHED
from vramcast.cluster.slices import ResourceSlice
from vramcast.hardware.vendors import is_gpu_resource
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeGone, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed
from vramcast.placement.gpus import KEEPS_OUT, SHARING_TAINT, NodeGpus, read_node
from vramcast.task.pod import NO_METADATA, Metadata, Pod, parse_count, to_record


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, Any] | None = None


class Taint(msgspec.Struct, frozen=True, gc=False):
    key: str | None = None
    effect: str | None = None


class NodeSpec(msgspec.Struct, frozen=True, gc=False):
    taints: list[Taint | None] | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    spec: NodeSpec | None = None
    status: NodeStatus | None = None


def to_node(node: Node) -> NodeGpus:
    """The node's GPUs. Never raises."""
    metadata = node.metadata or NO_METADATA
    allocatable = (node.status.allocatable if node.status else None) or {}
    taints = (node.spec.taints if node.spec else None) or ()
    return read_node(
        NodeName(metadata.name or ""),
        metadata.labels or {},
        metadata.annotations or {},
        {name: str(parse_count(value)) for name, value in allocatable.items() if is_gpu_resource(name)},
        tainted=any(taint and taint.key == SHARING_TAINT and taint.effect in KEEPS_OUT for taint in taints),
    )


T = TypeVar("T", bound=Node | Pod | ResourceSlice)


class Reader(Protocol[T]):
    """One resource: its URL, and what its objects mean. Methods return None if nothing relevant changed."""

    resource: str
    path: str
    query: Mapping[str, str]
    object_type: type[T]

    def forget(self) -> None:
        """The sink lost changes: report everything again."""
        ...

    def begin_list(self) -> None: ...

    def listed(self, item: T) -> Change | None: ...

    def end_list(self, listed_at: float) -> Change: ...

    def seen(self, item: T) -> Change | None: ...

    def gone(self, item: T) -> Change | None: ...


class NodeReader:
    """Reports a node only if its GPUs changed, so heartbeats are dropped."""

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

    def end_list(self, listed_at: float) -> Change:  # noqa: ARG002 - only pods need it: we write their bindings
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
    """Reports a pod if it has our annotations or requests a GPU, or once did."""

    resource = "pods"
    path = "/api/v1/pods"
    # With this selector the API server reports a pod that finishes as deleted. Most pods of a cluster can be old Jobs.
    query: Mapping[str, str] = {"fieldSelector": UNFINISHED}
    object_type = Pod

    def __init__(self) -> None:
        self._relevant: set[PodUid] = set()
        self._listing: set[PodUid] = set()

    def forget(self) -> None:
        """Nothing to do: the next list reports every pod, and `gone` still knows those that mattered."""

    def begin_list(self) -> None:
        self._listing = set()

    def listed(self, item: Pod) -> Change | None:
        # All pods, not only those that matter: a pod that is missing from the list loses its promise.
        self._listing.add(_pod_uid(item))
        return self.seen(item)

    def end_list(self, listed_at: float) -> Change:
        uids, self._listing = frozenset(self._listing), set()
        self._relevant &= uids
        return PodsListed(uids, listed_at)

    def seen(self, item: Pod) -> Change | None:
        pod = to_record(item)
        if pod.matters:
            self._relevant.add(pod.uid)
        elif pod.uid not in self._relevant:
            return None
        return PodSeen(pod)

    def gone(self, item: Pod) -> Change | None:
        uid = _pod_uid(item)
        if uid not in self._relevant:
            return None
        self._relevant.discard(uid)
        return PodGone(uid)


def _node_name(node: Node) -> NodeName:
    return NodeName((node.metadata or NO_METADATA).name or "")


def _pod_uid(pod: Pod) -> PodUid:
    return PodUid((pod.metadata or NO_METADATA).uid or "")
