"""A pod: the fields of the Kubernetes object that matter, and what they mean to a decision.

The watch and the extender's request bodies carry whole pods of many kilobytes. The structs below name the few fields
that matter, and msgspec skips the rest. They accept what Go accepts (null for a list, map or object) and what people
write in manifests (a count as a number), because one odd pod must not stop the watch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final

import msgspec

from vramcast.errors import FieldError, InvalidTask
from vramcast.hardware.vendors import CLAIMED_GPU, MAX_GPUS, SHARED_GPU, WHOLE_GPU, is_gpu_resource
from vramcast.names import NodeName, PodUid, Resource
from vramcast.task.forms import MAX_GPU_MEMORY_MIB
from vramcast.task.quantity import ceil_div, ceil_mib, parse_quantity
from vramcast.task.run_status import PodStatus, RunFacts, read_run
from vramcast.task.task import REQUEUE, Task, describes, parse_described
from vramcast.task.vocabulary import PREFIX, Level, Written

# More devices than any node has: larger counts mean the same, and sums stay far from overflow.
MAX_DEVICES: Final = 4096
# The largest count that one quantity may give; the arrays can hold it.
MAX_COUNT: Final = 1 << 20
FINISHED: Final = frozenset({"Succeeded", "Failed"})
# Resources and annotations by which other systems are asked for a part of a GPU.
_OTHERS_RESOURCE: Final = re.compile(r"volcano\.sh/v?gpu-|koordinator\.sh/gpu|aliyun\.com/gpu-")
_OTHERS_ANNOTATIONS: Final = (
    "gpu-memory",
    "gpu-fraction",
    "tensor-fusion.ai/vram-request",
    "tensor-fusion.ai/vram-limit",
)
# The pods of a Job or a sweep repeat the same few annotations. Profiles are too long to keep.
_CACHED_LENGTH: Final = 1024


def _parse(described: tuple[tuple[str, str], ...], namespace: str) -> Task:
    return replace(parse_described(described), namespace=namespace)


# Pods of one namespace that say the same share one Task.
_parse_cached: Final = lru_cache(maxsize=4096)(_parse)


@dataclass(frozen=True, slots=True)
class Ask:
    """How many devices of which kind; each must hold the pod's need."""

    resource: Resource
    count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """Written by bind: the GPUs by index (none where the kubelet picks) and the need on each."""

    gpu_indices: tuple[int, ...]
    reserved_mib: int


@dataclass(frozen=True, slots=True)
class SchedulingFacts:
    """What the scheduler knows or has written about a pod."""

    priority: int = 0
    gang: str = ""  # the PodGroup that it is placed with, with its namespace
    nominated: NodeName | None = None  # chosen, but not bound yet
    failure: str = ""  # why the last attempt to place it failed
    generation: int = 0  # grows with every change of the spec
    requeued: str = ""  # our own mark: written by every requeue and every takeover, and never the same twice


NOT_SCHEDULED: Final = SchedulingFacts()


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod as decisions see it, parsed once."""

    uid: PodUid
    namespace: str
    name: str
    task: Task | None = None
    ask: Ask | None = None
    invalid: InvalidTask | None = None
    node: NodeName | None = None
    assignment: Assignment | None = None
    finished: bool = False
    resource_version: str = ""
    owner: str = ""  # what made it, such as Job/train-7
    run: RunFacts | None = None  # of a bound pod
    scheduling: SchedulingFacts = NOT_SCHEDULED

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def claims(self) -> bool:
        """Does another system hand out its GPU? Then it is forecast and measured, and not placed by vramcast."""
        return self.ask is not None and self.ask.resource == CLAIMED_GPU

    @property
    def matters(self) -> bool:
        """Does it use or describe a GPU?"""
        return self.ask is not None or self.task is not None or self.invalid is not None or self.assignment is not None


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """The GPU devices of one container; `restartable`: an init container that keeps running (a sidecar)."""

    devices: Mapping[str, int]
    init: bool = False
    restartable: bool = False


def read_pod(
    uid: PodUid,
    namespace: str,
    name: str,
    annotations: Mapping[str, str],
    containers: Iterable[ContainerDevices],
    node: NodeName | None = None,
    finished: bool = False,
    resource_version: str = "",
    owner: str = "",
    run: RunFacts | None = None,
    scheduling: SchedulingFacts = NOT_SCHEDULED,
    claims_gpu: Callable[[], bool] = lambda: False,
) -> PodRecord:
    """Never raises: mistakes in the annotations are returned as `invalid`.

    `claims_gpu`: whether the pod asks another system for a GPU. Called only for described pods that ask for none here.
    """
    devices = _pod_devices(containers)
    task: Task | None = None
    ask = next((Ask(Resource(resource), count) for resource, count in devices.items()), None)
    invalid: InvalidTask | None = None
    try:
        described = tuple(item for item in annotations.items() if describes(item[0]))
        if described:
            short = sum(len(text) for _, text in described) < _CACHED_LENGTH
            task = _parse_cached(described, namespace) if short else _parse(described, namespace)
            claims = not devices and not task.share and claims_gpu()
            ask = Ask(CLAIMED_GPU, task.gpus or 1) if claims else _described_ask(task, devices)
            task = _told_apart(task, ask.count)
    except InvalidTask as error:
        invalid = error
        task = None
    assignment = _read_assignment(annotations) if node else None
    if ask is None and assignment is not None and assignment.gpu_indices:
        # Someone edited the annotations after the bind. What bind wrote still shows what the pod was given.
        ask = Ask(SHARED_GPU, len(assignment.gpu_indices))
    return PodRecord(
        uid, namespace, name, task, ask, invalid, node, assignment, finished, resource_version, owner, run, scheduling
    )


def _pod_devices(containers: Iterable[ContainerDevices]) -> dict[str, int]:
    """As the scheduler counts: init containers run one after another, sidecars run alongside everything after them."""
    running: dict[str, int] = {}
    peak: dict[str, int] = {}
    sidecars: dict[str, int] = {}
    for container in containers:
        for resource, count in container.devices.items():
            if not is_gpu_resource(resource) or count <= 0:
                continue
            if container.init and not container.restartable:
                peak[resource] = max(peak.get(resource, 0), sidecars.get(resource, 0) + count)
                continue
            running[resource] = running.get(resource, 0) + count
            if container.restartable:
                sidecars[resource] = sidecars.get(resource, 0) + count
    return {
        resource: min(max(running.get(resource, 0), peak.get(resource, 0)), MAX_DEVICES)
        for resource in {**running, **peak}
    }


def _described_ask(task: Task, devices: Mapping[str, int]) -> Ask:
    gpus_key, share_key = PREFIX + "gpus", PREFIX + "share"
    if len(devices) > 1:
        kinds = ", ".join(sorted(devices))
        raise InvalidTask([FieldError("resources.limits", kinds, "expected one kind of GPU device in a described pod")])
    if not devices:
        if not task.share:
            raise InvalidTask([
                FieldError(share_key, "false", f'the pod asks for no GPU: set resources.limits "{WHOLE_GPU}", '
                           f'or {share_key}: "true" to share one')
            ])  # fmt: skip
        count = task.gpus or 1
        if count > MAX_GPUS:
            raise InvalidTask([FieldError(gpus_key, str(count), f"expected at most {MAX_GPUS}")])
        return Ask(SHARED_GPU, count)
    resource, count = next(iter(devices.items()))
    if task.share:
        raise InvalidTask([
            FieldError(share_key, "true", f"contradicts resources.limits {resource}: {count}: "
                       "a sharing pod gets its GPU from vramcast, not from the device plugin")
        ])  # fmt: skip
    if task.gpus is not None and task.gpus != count:
        raise InvalidTask([FieldError(gpus_key, str(task.gpus), f"contradicts resources.limits {resource}: {count}")])
    return Ask(Resource(resource), count)


def _told_apart(task: Task, gpus: int) -> Task:
    """States sharded over more GPUs than the pod has need other pods. Only its owner knows whether there are any."""
    if task.level is Level.GIVEN or not task.zero_stage or task.data_parallel_size <= gpus:
        return task
    note = f"data-parallel-size {task.data_parallel_size}, so the job has other pods than this one with {gpus} GPUs"
    return replace(task, assumptions=(*task.assumptions, note.removesuffix("s") if gpus == 1 else note))


def _read_assignment(annotations: Mapping[str, str]) -> Assignment | None:
    """Written by an earlier bind. If it is unreadable, the pod counts at its forecast."""
    reserved = annotations.get(Written.RESERVED_MEMORY)
    if not reserved:
        return None
    try:
        reserved_mib = ceil_mib(parse_quantity(reserved))
        indices = tuple(int(part) for part in annotations.get(Written.GPU_INDICES, "").split(",") if part.strip())
    except ValueError:
        return None
    if not 0 <= reserved_mib <= MAX_GPU_MEMORY_MIB or any(not 0 <= index < MAX_GPUS for index in indices):
        return None
    return Assignment(tuple(dict.fromkeys(indices)), reserved_mib)


# ------------------------------------------------------------------ as the API server sends it


class OwnerReference(msgspec.Struct, frozen=True, gc=False):
    kind: str | None = None
    name: str | None = None
    controller: bool | None = None


class Metadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
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


class SchedulingGroup(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    pod_group_name: str | None = None


class PodSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    node_name: str | None = None
    priority: int | None = None
    scheduling_group: SchedulingGroup | None = None
    resource_claims: list[Any] | None = None
    containers: list[Container | None] | None = None
    init_containers: list[Container | None] | None = None


class Pod(msgspec.Struct, frozen=True, gc=False):
    metadata: Metadata | None = None
    spec: PodSpec | None = None
    status: PodStatus | None = None


NO_METADATA: Final = Metadata()


def to_record(pod: Pod) -> PodRecord:
    """Never raises."""
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
        # Not the deletionTimestamp: containers run, and use their GPU, until the object is gone.
        phase in FINISHED,
        metadata.resource_version or "",
        _owner(metadata),
        read_run(pod.status, metadata.annotations or {}) if spec and spec.node_name else None,
        _scheduling(metadata, spec, pod.status),
        lambda: _claims_gpu(metadata, spec),
    )


def _scheduling(metadata: Metadata, spec: PodSpec | None, status: PodStatus | None) -> SchedulingFacts:
    group = spec.scheduling_group.pod_group_name if spec and spec.scheduling_group else None
    nominated = status.nominated_node_name if status else None
    return SchedulingFacts(
        priority=(spec.priority if spec else None) or 0,
        gang=f"{metadata.namespace or 'default'}/{group}" if group else "",
        nominated=NodeName(nominated) if nominated else None,
        failure=next(_failures(status), "") if status else "",
        generation=metadata.generation or 0,
        requeued=(metadata.annotations or {}).get(REQUEUE, ""),
    )


def _claims_gpu(metadata: Metadata, spec: PodSpec | None) -> bool:
    if spec is None:
        return False
    containers = (*(spec.containers or ()), *(spec.init_containers or ()))
    asked = (container.resources for container in containers if container and container.resources)
    names = (name for each in asked for name in (*(each.limits or ()), *(each.requests or ())))
    annotated = any(name in (metadata.annotations or {}) for name in _OTHERS_ANNOTATIONS)
    return bool(spec.resource_claims) or annotated or any(map(_OTHERS_RESOURCE.match, names))


def _failures(status: PodStatus) -> Iterator[str]:
    for condition in status.conditions or ():
        if condition and condition.type == "PodScheduled" and condition.status == "False":
            yield condition.message or "no reason given"


def _owner(metadata: Metadata) -> str:
    for reference in metadata.owner_references or ():
        if reference and reference.controller and reference.kind and reference.name:
            return f"{reference.kind}/{reference.name}"
    return ""


def parse_count(value: object) -> int:
    """Devices that a quantity asks for, rounded up; 0 if it is not a quantity."""
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
    # Init containers first: a sidecar among them runs alongside all that follow.
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
    # The API server sets both to the same value for devices. A manifest that it never saw may have only one.
    asked = {**(resources.requests or {}), **(resources.limits or {})}
    return {name: parse_count(value) for name, value in asked.items() if is_gpu_resource(name)}
