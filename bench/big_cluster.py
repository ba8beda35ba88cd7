"""The real service on a simulated cluster of any size, with every GPU half full, without Kubernetes."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from vramcast.app import run
from vramcast.cluster.seam import BindingWrite, BindResult, Fate, PodEvent, Sink, Stats, SyncHealth
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, PodUid
from vramcast.observe.logs import configure_logs
from vramcast.placement.changes import Change, NodeSeen, NodesListed, PodSeen, PodsListed
from vramcast.placement.gpus import SHARING_LABEL, read_node
from vramcast.settings import LogFormat, LogLevel, load_settings
from vramcast.task.pod import Ask, Assignment, PodRecord
from vramcast.task.task import parse_task

GPUS = 8
PRODUCTS = (("NVIDIA-A100-SXM4-40GB", 40960), ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-L40S", 46068))


def node_name(number: int) -> NodeName:
    return NodeName(f"gpu-worker-{number:05d}.cluster.example")


class BigCluster:
    """Sharing nodes of three products; every GPU has one pod with about half of its memory."""

    def __init__(self, nodes: int, seed: int = 7) -> None:
        self._nodes = nodes
        self._random = random.Random(seed)

    def start(self, sink: Sink) -> None:
        sink(list(self._changes()))

    def _changes(self) -> Iterator[Change]:
        uids = set()
        for number in range(self._nodes):
            product, memory_mib = PRODUCTS[number % len(PRODUCTS)]
            labels = {
                "nvidia.com/gpu.product": product,
                "nvidia.com/gpu.count": str(GPUS),
                "nvidia.com/gpu.memory": str(memory_mib),
                SHARING_LABEL: "true",
            }
            yield NodeSeen(read_node(node_name(number), labels, {}, {}))
            for gpu in range(GPUS):
                pod = self._tenant(number, gpu, round(memory_mib * self._random.uniform(0.4, 0.6)))
                uids.add(pod.uid)
                yield PodSeen(pod)
        yield NodesListed(frozenset(node_name(number) for number in range(self._nodes)))
        yield PodsListed(frozenset(uids), 0.0)

    @staticmethod
    def _tenant(number: int, gpu: int, need_mib: int) -> PodRecord:
        return PodRecord(
            PodUid(f"tenant-{number}-{gpu}"), "default", f"tenant-{number}-{gpu}",
            task=parse_task({"vramcast.dev/share": "true", "vramcast.dev/gpu-memory": f"{need_mib}Mi"}),
            ask=Ask(SHARED_GPU, 1), node=node_name(number), assignment=Assignment((gpu,), need_mib),
        )  # fmt: skip

    def stop(self) -> None: ...

    def health(self) -> SyncHealth:
        return SyncHealth(synced=True, stale_seconds=0.0)

    def stats(self) -> Stats:
        return Stats()

    def bind(self, write: BindingWrite) -> BindResult:
        return BindResult(Fate.REFUSED, f"{write.pod}: nothing is bound in this benchmark")

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        return None

    def requeue(self, namespace: str, name: str, uid: PodUid) -> None: ...

    def post_event(self, event: PodEvent) -> None: ...


if __name__ == "__main__":
    configure_logs(LogFormat.JSON, LogLevel.INFO)
    settings: dict[str, object] = {"port": int(sys.argv[1])}
    if len(sys.argv) > 3:
        settings["assumed_utilization"] = float(sys.argv[3])
    run(load_settings(settings, {}), BigCluster(int(sys.argv[2])))
