"""The answers behind the page, as models of the OpenAPI description."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vramcast.api.models import Answer, Bytes, ComparedCounter, Mib

PodState = Literal["waiting", "placed", "running", "done"]
Epoch = float


class MemorySums(Answer):
    gpus: int
    size_mib: Mib
    promised_mib: Mib
    used_mib: Mib = Field(description="of what is promised, as telemetry shows it now")
    unmanaged_mib: Mib


class ProductSums(MemorySums):
    product: str
    nodes: int


class ServiceStatus(Answer):
    """What every view shows in its header."""

    version: str
    mode: str
    leading: bool = Field(description="false: a replica on standby, which knows no holds and counts no outcomes")
    now: Epoch = Field(description="the clock of the service")
    synced: bool
    stale_seconds: float
    telemetry: bool
    telemetry_age_seconds: float | None
    pods: dict[str, int] = Field(description="pods by state")


class Holder(Answer):
    pod: str
    need_mib: int | None = Field(description="null for a pod that describes no task")
    used_mib: int | None
    state: str
    since: Epoch | None


class GpuBar(Answer):
    index: int
    size_mib: Mib
    promised_mib: Mib
    used_mib: Mib
    unmanaged_mib: Mib
    held_mib: Mib
    room_mib: Mib
    whole: bool = Field(description="taken by a pod that describes no task")
    holders: list[Holder]


class PoolBars(Answer):
    resource: str
    product: str
    picked_by_kubelet: bool
    devices: int
    replicas: int
    gpus: list[GpuBar]


class NodeBars(Answer):
    name: str
    sharing: bool
    problem: str
    pools: list[PoolBars]


class ClusterBars(Answer):
    status: ServiceStatus
    nodes_total: int
    totals: MemorySums
    products: list[ProductSums]
    matching: int = Field(description="nodes that the filters keep")
    offset: int
    nodes: list[NodeBars]


class ReasonCount(Answer):
    reason: str
    text: str
    nodes: int
    remedy: str = Field(description="what to do about it")


class PodLine(Answer):
    pod: str
    state: PodState
    task: str
    level: str
    resource: str
    devices: int
    node: str
    gpus: list[int]
    product: str
    need_mib: int | None
    median_mib: int | None
    used_mib: int | None
    peak_mib: int | None
    since: Epoch | None
    ending: str
    kept: bool | None = Field(description="of a measured run: was the promise enough?")
    reasons: list[ReasonCount] = Field(description="why a waiting pod fits nowhere, most frequent first")


class PodsView(Answer):
    status: ServiceStatus
    matching: int
    offset: int
    pods: list[PodLine]


class Advice(Answer):
    """One thing that would let a waiting pod start."""

    kind: Literal["wait", "batch", "setting", "share", "product", "annotation", "fits"]
    text: str = Field(examples=["It fits with batch-size 16."])
    detail: str = ""


class PodView(Answer):
    status: ServiceStatus
    pod: PodLine
    annotations: dict[str, str]
    needs_mib: dict[str, int] = Field(description="by GPU product of the cluster")
    owner: str
    advice: list[Advice]
    error: str = Field(description="what is wrong with the description of the task")


class ModelLine(Answer):
    model: str
    architecture: str
    parameters: int
    layers: int
    activations: int
    input_size: list[int] | None
    sequence_length: int | None


class ModelsView(Answer):
    known: int
    matching: int
    models: list[ModelLine]


class SweepPoint(Answer):
    value: int
    median_bytes: Bytes
    bound_bytes: Bytes


class LargestValue(Answer):
    product: str
    usable_mib: int
    value: int | None = Field(description="null if not even 1 fits")
    median_bytes: int | None
    bound_bytes: int | None
    next_bound_bytes: int | None


class SweepView(Answer):
    sweep: str
    risk: float
    product: str = Field(description="of the points")
    points: list[SweepPoint]
    largest: list[LargestValue]
    assumptions: list[str]


class PhaseMark(Answer):
    phase: Literal["step", "forward", "backward", "update"]
    event: int


class RecordedStep(Answer):
    """Memory over the recorded steps. Between two points the fullest moment is shown."""

    events: list[int]
    reserved_bytes: list[int]
    by_role_bytes: dict[str, list[int]]
    phases: list[PhaseMark]
    total_events: int


class StepView(Answer):
    step: RecordedStep | None = Field(description="null if the task is not described by a recording")


class GroupLine(Answer):
    family: str
    level: str
    product: str
    outcomes: int
    ooms: int
    coverage: float
    promised: float = Field(description="the coverage that was promised")
    bias: float = Field(description="observed over forecast, geometric mean")
    over_reservation: float | None = Field(description="promise over observed peak, mean")


class OutcomeLine(Answer):
    pod: str
    family: str
    level: str
    product: str
    median_bytes: Bytes
    bound_bytes: Bytes
    peak_bytes: Bytes
    risk: float
    ending: str
    kept: bool
    ended_at: Epoch


class CellLine(Answer):
    product: str
    family: str
    outcomes: int
    misses: int
    ooms: int
    median_factor: float
    bound_factor: float


class OomLine(Answer):
    namespace: str
    owner: str
    short_bytes: Bytes
    floor_mib: Mib
    died_at: Epoch


class CounterLine(ComparedCounter):
    runs: int = Field(description="that were compared")
    mean_error: float | None = Field(description="forecast minus observed; null without a run")


class AccuracyView(Answer):
    status: ServiceStatus
    calibration: str = Field(description="setting calibration")
    models: dict[str, str] = Field(description="version by role")
    groups: list[GroupLine]
    counters: list[CounterLine] = Field(description="of utilization")
    unmeasured: dict[str, int]
    outcomes: list[OutcomeLine] = Field(description="since the start of the process, newest first")
    cells: list[CellLine]
    ooms: list[OomLine]
