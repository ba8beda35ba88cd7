"""A fake cluster, a fake clock and small manifests, used instead of patching."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from vramcast.app import App, build
from vramcast.cluster.seam import BindingWrite, BindResult, Fate, PodEvent, Sink, Stats, SyncHealth
from vramcast.forecast.forecaster import CachingForecaster, PhysicsForecaster
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeSeen, NodesListed, PodsListed
from vramcast.placement.gpus import SHARING_LABEL, NodeGpus, read_node
from vramcast.service import Service
from vramcast.settings import Settings, load_settings
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB
from vramcast.workers import Workers


class FakeCluster:
    """Records every write. Answers binds with the results that a test queued, otherwise with BOUND."""

    def __init__(self) -> None:
        self.writes: list[BindingWrite] = []
        self.events: list[PodEvent] = []
        self.requeued: list[str] = []
        self.pods: dict[str, PodRecord] = {}
        self.results: deque[BindResult] = deque()
        self.stale_seconds = 0.0
        self.before_bind: Callable[[BindingWrite], None] = lambda _write: None

    def start(self, sink: Sink) -> None:
        self.sink = sink

    def stop(self) -> None: ...

    def health(self) -> SyncHealth:
        return SyncHealth(synced=True, stale_seconds=self.stale_seconds, detail="fake")

    def stats(self) -> Stats:
        return Stats()

    def bind(self, write: BindingWrite) -> BindResult:
        self.before_bind(write)
        self.writes.append(write)
        return self.results.popleft() if self.results else BindResult(Fate.BOUND)

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        return self.pods.get(f"{namespace}/{name}")

    def requeue(self, namespace: str, name: str, uid: PodUid) -> None:
        self.requeued.append(f"{namespace}/{name}")

    def post_event(self, event: PodEvent) -> None:
        self.events.append(event)


class FakeClock:
    """Time passes when a test advances it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sharing_node(name: str, gpus: int = 8, memory_mib: int = 40960, product: str = "NVIDIA-A100-SXM4-40GB") -> NodeGpus:
    return read_node(NodeName(name), {**gfd_labels(product, gpus, memory_mib), SHARING_LABEL: "true"}, {}, {})


def whole_node(name: str, gpus: int = 8, memory_mib: int = 40960, product: str = "NVIDIA-A100-SXM4-40GB") -> NodeGpus:
    return read_node(NodeName(name), gfd_labels(product, gpus, memory_mib), {}, {"nvidia.com/gpu": str(gpus)})


def gfd_labels(product: str, gpus: int, memory_mib: int) -> dict[str, str]:
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.memory": str(memory_mib),
    }


def pod_manifest(
    name: str, annotations: dict[str, str] | None = None, limits: dict[str, str] | None = None, **metadata: Any
) -> dict[str, Any]:
    """A pending pod as the API server returns it. Pass annotations without their prefix."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "annotations": {f"vramcast.dev/{key}": value for key, value in (annotations or {}).items()},
            **metadata,
        },
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits or {}}}]},
    }


def shared_pod(name: str, memory: str = "10Gi", **annotations: str) -> dict[str, Any]:
    return pod_manifest(name, {"share": "true", "gpu-memory": memory, **annotations})


def exit_report(reserved_mib: int, *, processes: int = 1, ended: str = "exited") -> str:
    """As vramcast.report writes it. All processes are on one GPU."""
    gpus = {"GPU-0": {"allocated": reserved_mib * MIB // 2, "reserved": reserved_mib * MIB, "ooms": 0}}
    facts = {"ended": ended, "seconds": 60.0, "gpus": gpus, "versions": {"torch": "2.9.0"}}
    ranks = {f"rank {number}": facts for number in range(processes)}
    return json.dumps({"vramcast": 1, "processes": ranks}, separators=(",", ":"))


def new_fake_app(
    nodes: Iterable[NodeGpus] = (),
    *,
    cluster: FakeCluster | None = None,
    clock: Callable[[], float] | None = None,
    wall: Callable[[], float] | None = None,
    synced: bool = True,
    settings: Settings | None = None,
    base: CachingForecaster | None = None,
) -> App:
    """The whole app, wired as in production, on a fake cluster. Blocking calls run inline."""
    settings = settings or load_settings({}, {})

    async def offload(call: Callable[..., Any], *arguments: Any) -> Any:
        await asyncio.sleep(0)
        return call(*arguments)

    clock = clock or FakeClock()
    base = base or PhysicsForecaster(settings.default_oom_risk)
    app = build(settings, cluster or FakeCluster(), Workers.all(offload), base=base, clock=clock, wall=wall or clock)
    asyncio.run(app.learned_state.load())
    changes: list[Change] = [NodeSeen(node) for node in nodes]
    if synced:
        changes += listed([node.node.name for node in changes if isinstance(node, NodeSeen)])
    app.service.apply(changes)
    return app


def new_fake_service(nodes: Iterable[NodeGpus] = (), **options: Any) -> Service:
    """The service of `new_fake_app`. Takes the same options."""
    return new_fake_app(nodes, **options).service


def listed(names: Sequence[NodeName]) -> list[Change]:
    return [NodesListed(frozenset(names)), PodsListed(frozenset(), 0.0)]
