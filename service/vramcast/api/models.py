"""What requests and answers look like: the models of the OpenAPI description.

They describe the wire format and do not carry it. The verbs decode with msgspec (`wire.py`), and inspection encodes
with msgspec: validating a page of 500 nodes with 8 GPUs against `StateAnswer` takes 13 ms, in which the scheduler's
calls would wait. Tests hold every answer to its model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel

from vramcast.forecast.forecast import Source
from vramcast.hardware.vendors import VENDORS, WHOLE_GPU

Mib = Annotated[int, Field(ge=0, description="MiB")]
Bytes = Annotated[int, Field(ge=0)]
Share = Annotated[float | None, Field(description="share of the GPU's time, 0 to 1; null if unknown")]

EXAMPLE_POD: dict[str, Any] = {
    "metadata": {
        "name": "resnet50",
        "namespace": "ml",
        "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
        "annotations": {
            "vramcast.dev/share": "true",
            "vramcast.dev/model": "timm/resnet50",
            "vramcast.dev/batch-size": "128",
            "vramcast.dev/precision": "amp-bf16",
            "vramcast.dev/optimizer": "sgd-momentum",
        },
    },
    "spec": {"containers": [{"name": "train"}]},
}
_EXAMPLE_REASONS = {"node-b": "GPU too small for 11.5 GiB"}


class Answer(BaseModel):
    """Answers have exactly the fields of their model."""

    model_config = ConfigDict(extra="forbid")


class ErrorAnswer(Answer):
    """Why the request got no other answer."""

    error: str = Field(alias="Error", examples=["the body is not what kube-scheduler sends: JSON is malformed"])


# --- pods


class ManifestMeta(BaseModel):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    annotations: dict[str, str] | None = None


class ManifestSpec(BaseModel):
    node_name: str | None = Field(default=None, alias="nodeName")
    containers: list[dict[str, Any]] | None = None


class PodManifest(BaseModel):
    """A Kubernetes Pod. Other fields are ignored."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_POD]})

    metadata: ManifestMeta | None = None
    spec: ManifestSpec | None = None


# --- kube-scheduler's extender protocol (k8s.io/kube-scheduler/extender/v1)


class NodeArgs(BaseModel):
    """With `nodeCacheCapable` the scheduler sends the names of nodes, otherwise whole nodes."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"Pod": EXAMPLE_POD, "Nodes": None, "NodeNames": ["node-a", "node-b"]}]}
    )

    pod: PodManifest = Field(alias="Pod")
    nodes: dict[str, Any] | None = Field(default=None, alias="Nodes", description="a NodeList")
    node_names: list[str] | None = Field(default=None, alias="NodeNames")


class FilterAnswer(Answer):
    """The nodes that fit, and a reason for each of the others."""

    nodes: dict[str, Any] | None = Field(alias="Nodes", description="a NodeList, if the request has one")
    node_names: list[str] | None = Field(alias="NodeNames", examples=[["node-a"]])
    failed: dict[str, str] = Field(
        alias="FailedNodes", description="nodes that fit the pod after evicting others", examples=[{}]
    )
    unresolvable: dict[str, str] = Field(
        alias="FailedAndUnresolvableNodes", description="all other nodes", examples=[_EXAMPLE_REASONS]
    )
    error: str = Field(alias="Error", description="empty if the pod was filtered", examples=[""])


class HostPriority(Answer):
    host: str = Field(alias="Host", examples=["node-a"])
    score: int = Field(alias="Score", ge=0, le=10, examples=[9])


class PrioritizeAnswer(RootModel[list[HostPriority]]):
    """A score for each node."""


class BindArgs(BaseModel):
    pod_name: str = Field(alias="PodName", examples=["resnet50"])
    pod_namespace: str = Field(alias="PodNamespace", examples=["ml"])
    pod_uid: str = Field(alias="PodUID", examples=["1b4e28ba-2fa1-11d2-883f-0016d3cca427"])
    node: str = Field(alias="Node", examples=["node-a"])


class BindAnswer(Answer):
    error: str = Field(alias="Error", description="empty if the pod is bound", examples=[""])


class VictimId(BaseModel):
    uid: str = Field(alias="UID")


class VictimIds(BaseModel):
    pods: list[VictimId] | None = Field(default=None, alias="Pods")
    violations: int = Field(default=0, alias="NumPDBViolations", ge=0, le=2**31)


class VictimPods(BaseModel):
    pods: list[PodManifest] | None = Field(default=None, alias="Pods")
    violations: int = Field(default=0, alias="NumPDBViolations", ge=0, le=2**31)


class PreemptArgs(BaseModel):
    """With `nodeCacheCapable` victims are UIDs, otherwise whole pods."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"Pod": EXAMPLE_POD, "NodeNameToMetaVictims": {"node-a": {"Pods": [{"UID": "u-1"}]}}}]
        }
    )

    pod: PodManifest = Field(alias="Pod")
    victims: dict[str, VictimPods] | None = Field(default=None, alias="NodeNameToVictims")
    meta_victims: dict[str, VictimIds] | None = Field(default=None, alias="NodeNameToMetaVictims")


class PreemptAnswer(Answer):
    """The nodes on which the pod fits after these evictions."""

    victims: dict[str, VictimIds] = Field(alias="NodeNameToMetaVictims")


# --- inspection


class DeviceAsk(Answer):
    resource: str = Field(examples=[WHOLE_GPU])
    count: int = Field(ge=1)


class ForecastPart(Answer):
    """One addend of the forecast, with the numbers behind it."""

    name: str = Field(examples=["weights"])
    size_bytes: int
    because: str = Field(examples=["25,557,032 parameters of 4 B"])


class UtilizationForecast(Answer):
    """Counters that exporters have too. Null where unknown."""

    gpu_util: Share = Field(description="share of time in which a kernel runs")
    sm_active: Share = Field(description="share of time in which a multiprocessor has a warp, mean of all")
    sm_occupancy: Share = Field(description="resident warps over the most that fit, mean of all multiprocessors")
    dram_active: Share
    memory_util: Share = Field(description="share of time in which the memory is read or written; only measured")


class ComparedCounter(Answer):
    """A counter of utilization, and what its forecast is compared with."""

    counter: str = Field(examples=["sm_active"])
    metric: str = Field(description="of the exporter; empty: none is set", examples=[VENDORS[0].exporter.sm_active])
    scraped: bool = Field(description="telemetry shows it, of some GPU")
    missing: str = Field(description="why it is not compared; empty if it is")


class StepForecast(Answer):
    """One update on one GPU. Nine of ten runs are meant to be between `low_seconds` and `high_seconds`."""

    flops: float | None = Field(description="of the update; null if the layers are unknown", examples=[1.3e13])
    seconds: float | None = Field(description="median; null if it is unknown", examples=[0.21])
    low_seconds: float | None
    high_seconds: float | None
    samples_per_second: float | None
    notes: list[str] = Field(description="why the range is wider")
    missing: str = Field(description="why no time is told; empty if it is")


class ProductForecast(Answer):
    """What the task needs on one GPU of one product."""

    product: str = Field(examples=["NVIDIA-A100-SXM4-40GB"])
    median_bytes: Bytes
    bound_bytes: Bytes = Field(description="a run needs more with at most the probability `risk`")
    need_mib: Mib = Field(description="the bound in whole MiB: what is promised")
    risk: float = Field(examples=[0.01])
    bounds_bytes: dict[str, int] = Field(description="the bound by risk")
    source: Source
    model_version: str
    usable_mib: int | None = Field(description="of the product; null if its memory is unknown")
    holds_it: bool | None
    parts: list[ForecastPart]
    assumptions: list[str]
    utilization: UtilizationForecast
    step: StepForecast


class ForecastAnswer(Answer):
    pod: str = Field(examples=["ml/resnet50"])
    level: str = Field(description="of description", examples=["name"])
    ask: DeviceAsk | None
    assumptions: list[str]
    forecasts: list[ProductForecast]


class ExplainedGpu(Answer):
    index: int
    size_mib: Mib
    room_mib: int
    need_mib: Mib
    short_mib: Mib = Field(description="how much room is missing")


class ScoreTerms(Answer):
    """The worth is (1 - slowdown_weight) x p + slowdown_weight x (1 - 2 x above), and at least 0.

    above is max(0, slowdown - harmless_slowdown).

    p is (1 - node_weight) x packing + node_weight x node_packing. The nodes of the highest worth score 10, the others
    10 x worth, rounded, but at most 9.
    """

    packing: float = Field(description="share of the chosen GPU that would be taken")
    node_packing: float = Field(description="1: nothing would be left on the node; 0: eight GPUs or more")
    slowdown: float = Field(ge=1, description="how many times as long as alone the pod is expected to run there")
    slowdown_weight: float = Field(description="setting slowdown_weight")
    harmless_slowdown: float = Field(description="setting harmless_slowdown")
    node_weight: float = Field(description="setting node_weight")
    worth: float = Field(ge=0, le=1, description="all of them weighed: nodes are ranked by it")


class ExplainedNode(Answer):
    node: str
    fits: bool
    reason: str = Field(examples=["no_room"])
    text: str = Field(examples=["GPU memory promised to other pods, 11.5 GiB needed"])
    problem: str = Field(description="why vramcast cannot use the node's GPUs")
    score: int = Field(ge=0, le=10)
    terms: ScoreTerms | None = Field(description="what the score is made of; null where the pod does not fit")
    gpus: list[ExplainedGpu]


class Explanation(Answer):
    """What filter would answer now."""

    pod: str
    ask: DeviceAsk
    needs_mib: dict[str, int] = Field(description="by GPU product")
    utilization: dict[str, UtilizationForecast] = Field(description="by GPU product")
    counters: list[ComparedCounter] = Field(description="what those forecasts will be compared with")
    feasible: int = Field(ge=0, description="nodes of this page that fit")
    nodes: list[ExplainedNode]
    next_after: str | None = Field(description="`after` of the next page")


class Unexplained(Answer):
    """The pod describes no task, or not correctly."""

    pod: str
    error: str
    policy: str = Field(description="setting undescribed", examples=["pass"])
    nodes: list[ExplainedNode] = Field(max_length=0)


class ExplainAnswer(RootModel[Explanation | Unexplained]):
    """What filter would answer now, for every GPU of every node."""


class PromisedPod(Answer):
    pod: str
    need_mib: int | None = Field(description="null for a pod that describes no task")
    state: Literal["binding", "unconfirmed", "bound"]
    devices: int


class GpuState(Answer):
    index: int
    size_mib: Mib
    promised_mib: Mib
    held_mib: Mib
    unmanaged_mib: Mib
    room_mib: int
    free_devices: int | None = Field(default=None, description="only where the kubelet picks the device")
    pods: list[PromisedPod]


class PoolState(Answer):
    resource: str
    product: str
    devices: int
    replicas: int
    gpus: list[GpuState]


class MisplacedPod(Answer):
    pod: str
    resource: str
    devices: int


class NodeState(Answer):
    name: str
    sharing: bool
    tainted: bool | None = Field(default=None, description="only of a sharing node")
    problem: str
    pools: list[PoolState]
    misplaced_pods: list[MisplacedPod]


class HoldState(Answer):
    pod: str
    resource: str
    need_mib: Mib
    nodes: int
    expires_in_seconds: float


class StateAnswer(Answer):
    synced: bool
    stale_seconds: float
    nodes_total: int
    next_after: str | None = Field(description="`after` of the next page")
    nodes: list[NodeState]
    holds_total: int
    holds: list[HoldState]
    unschedulable_total: int
    unschedulable: list[str]


class RunRecord(Answer):
    """A measured run, as training data."""

    run: str = Field(description="distinguishes runs without naming their owner")
    product: str
    level: str
    task: dict[str, str]
    profile: str
    shared: bool
    ending: str
    peak_bytes: Bytes
    promised_bytes: Bytes
    median_bytes: Bytes
    gpu_util: Share
    sm_active: Share
    sm_occupancy: Share
    ended_at: float
    model_version: str
    pod: str | None = Field(default=None, description="only with names=true")


class RecordsAnswer(Answer):
    runs: list[RunRecord]
    profiles: dict[str, str] = Field(description="by hash")
