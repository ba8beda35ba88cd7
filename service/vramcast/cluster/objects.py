"""Kubernetes objects, decoded only as far as decisions need them.

The watch and the extender's bodies carry whole objects of many kilobytes. These structs name the few fields that
matter; msgspec skips the rest without building it. They forgive what Go forgives (null for a list, a map or an
object) and what people write in manifests (a count as a number), because one odd pod must not stop the watch.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

import msgspec

from vramcast.cluster.run_facts import PodStatus, read_run
from vramcast.names import NodeName, PodUid
from vramcast.placement.gpus import NodeGpus, is_gpu_resource, read_node
from vramcast.task.pod import ContainerDevices, PodRecord, read_pod
from vramcast.task.quantity import ceil_div, parse_quantity

# More than any node offers, and still a number that arrays can hold.
MAX_COUNT: Final = 1 << 20
FINISHED: Final = frozenset({"Succeeded", "Failed"})


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    kind: str | None = None
    name: str | None = None
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerReference | None] | None = None


class Resources(msgspec.Struct, frozen=True, gc=False):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class Container(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resources: Resources | None = None
    restart_policy: str | None = None


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str | None = None
    containers: list[Container | None] | None = None
    init_containers: list[Container | None] | None = None


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


class NodeStatus(msgspec.Struct, frozen=True, gc=False):
    allocatable: dict[str, Any] | None = None


class Node(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    status: NodeStatus | None = None


NO_METADATA: Final = Metadata()


def to_record(pod: Pod) -> PodRecord:
    """The pod as decisions see it. Never raises."""
    metadata = pod.metadata or NO_METADATA
    spec = pod.spec
    phase = pod.status.phase if pod.status else None
    return read_pod(
        PodUid(metadata.uid or ""),
        metadata.namespace or "default",
        metadata.name or "",
        metadata.annotations or {},
        _devices(spec) if spec else (),
        NodeName(spec.node_name) if spec and spec.node_name else None,
        # A deletionTimestamp finishes nothing: the containers run, and use their GPU, until the object is gone.
        phase in FINISHED,
        metadata.resource_version or "",
        _owner(metadata),
        read_run(pod.status, metadata.annotations or {}) if spec and spec.node_name else None,
    )


def _owner(metadata: Metadata) -> str:
    for reference in metadata.owner_references or ():
        if reference and reference.controller and reference.kind and reference.name:
            return f"{reference.kind}/{reference.name}"
    return ""


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


def parse_count(value: object) -> int:
    """How many devices a quantity asks for, rounded up; 0 where it is no quantity at all."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 8:
        return min(int(value), MAX_COUNT)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return 0
    try:
        quantity = parse_quantity(value) if isinstance(value, str) else Fraction(value)
    except (ValueError, OverflowError):
        return 0
    return max(0, min(ceil_div(quantity, 1), MAX_COUNT))


def _devices(spec: PodSpec) -> Iterator[ContainerDevices]:
    # Init containers first: a sidecar among them runs beside all that follow it.
    for container in spec.init_containers or ():
        if container and (devices := _container_devices(container)):
            yield ContainerDevices(devices, init=True, restartable=container.restart_policy == "Always")
    for container in spec.containers or ():
        if container and (devices := _container_devices(container)):
            yield ContainerDevices(devices)


def _container_devices(container: Container) -> dict[str, int]:
    resources = container.resources
    if resources is None:
        return {}
    # For devices the API server makes both equal; a manifest that was never sent to it may name either.
    asked = {**(resources.requests or {}), **(resources.limits or {})}
    return {name: parse_count(value) for name, value in asked.items() if is_gpu_resource(name)}
