"""A pod as the decisions see it: what it asks for, what it describes, and where it already sits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from vramcast.errors import FieldError, InvalidTask
from vramcast.names import NodeName, PodUid, Resource
from vramcast.outcomes.outcome import Ending
from vramcast.placement.gpus import MAX_GPUS, SHARED_GPU, is_gpu_resource
from vramcast.task.forms import MAX_GPU_MEMORY_MIB
from vramcast.task.quantity import ceil_mib, parse_quantity
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX, Written

# More devices than any node has: counts above it mean the same, and stay far from overflow.
MAX_DEVICES = 4096


@dataclass(frozen=True, slots=True)
class Ask:
    """How many devices of which kind; each must hold the pod's need."""

    resource: Resource
    count: int


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a bind wrote onto the pod: its GPUs by index (none where the kubelet picks) and the need on each."""

    gpu_indices: tuple[int, ...]
    reserved_mib: int


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a bound pod's status and annotations tell of its run. Times: seconds since the epoch."""

    started_at: float | None = None
    ended_at: float | None = None
    ending: Ending | None = None  # None: it runs, or nothing says
    exit_code: int | None = None
    median_mib: int | None = None  # as it was forecast
    model_version: str = ""
    utilization: float | None = None  # as it was forecast
    adjustment: str = ""  # by which calibration had moved the forecast
    observed_mib: int | None = None  # by the job itself


@dataclass(frozen=True, slots=True)
class PodRecord:
    """One pod, parsed once when it is first seen."""

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
    run: RunFacts | None = None  # of a pod that has a node

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def matters(self) -> bool:
        """Does it take, or say anything about, a GPU?"""
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
) -> PodRecord:
    """Never raises: mistakes in the annotations come back as `invalid`."""
    devices = _pod_devices(containers)
    task: Task | None = None
    ask = next((Ask(Resource(resource), count) for resource, count in devices.items()), None)
    invalid: InvalidTask | None = None
    try:
        task = parse_task(annotations)
        if task is not None:
            ask = _described_ask(task, devices)
    except InvalidTask as error:
        invalid = error
        task = None
    assignment = _read_assignment(annotations) if node else None
    if ask is None and assignment is not None and assignment.gpu_indices:
        # Annotations can be edited after the bind; what the bind wrote still says what the pod was given.
        ask = Ask(SHARED_GPU, len(assignment.gpu_indices))
    return PodRecord(uid, namespace, name, task, ask, invalid, node, assignment, finished, resource_version, owner, run)


def _pod_devices(containers: Iterable[ContainerDevices]) -> dict[str, int]:
    """As the scheduler counts: init containers run one after another, sidecars stay beside all that follows."""
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
                FieldError(share_key, "false", 'the pod asks for no GPU: set resources.limits "nvidia.com/gpu", '
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


def _read_assignment(annotations: Mapping[str, str]) -> Assignment | None:
    """What an earlier bind wrote. Unreadable is as good as absent: the pod then counts at its forecast."""
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
