"""A cluster's history, made up: pods with known peaks, and the samples that dcgm-exporter and kube-state-metrics
would have left of them in a Prometheus. Scraped without honorLabels, as the GPU operator does."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

GPU_SECONDS: Final = 150  # between two samples of a GPU
STATE_SECONDS: Final = 240  # between two samples of kube-state-metrics
HOUR: Final = 3600
GPUS_PER_NODE: Final = 8
MODELS: Final = {
    "NVIDIA A100-SXM4-80GB": 80_000, "NVIDIA A100-SXM4-40GB": 40_000, "NVIDIA L40S": 45_000, "Tesla T4": 14_500,
}  # fmt: skip
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True, slots=True)
class PlayedWorkload:
    namespace: str
    kind: str
    name: str
    model: str
    gpus: int
    typical_mib: int
    scatter: float
    busy_percent: int
    idle_gpus: int = 0  # asked for and never used


@dataclass(frozen=True, slots=True)
class PlayedPod:
    """`batch`: what makes it one run with other pods; `chain`: its owners, the nearest first."""

    workload: PlayedWorkload
    name: str
    uid: str
    batch: str
    chain: tuple[tuple[str, str], ...]
    start: int
    end: int
    peak_mib: int
    failed: bool = False
    places: tuple[tuple[str, str, int], ...] = field(default=())  # node, UUID, index

    @property
    def sampled_at(self) -> range:
        return range(self.start, self.end, GPU_SECONDS)

    @property
    def finishes(self) -> bool:
        return self.workload.kind in ("Job", "CronJob", "PyTorchJob")

    def mib(self, at: int, number: int) -> int:
        """Below the peak except for one sample, in the middle."""
        if number >= len(self.places) - self.workload.idle_gpus:
            return 3
        times = self.sampled_at
        return self.peak_mib if at == times[len(times) // 2] else self.peak_mib * (60 + at % 30) // 100


def workloads(count: int, seed: int) -> list[PlayedWorkload]:
    draw = random.Random(seed)
    kinds = ("Deployment", "CronJob", "Job", "StatefulSet", "PyTorchJob", "Pod")
    found = []
    for number in range(count):
        kind = kinds[number % len(kinds)]
        model = draw.choice(list(MODELS))
        gpus = 2 if kind == "PyTorchJob" and draw.random() < 0.5 else 1
        idle = 3 if number % 29 == 0 else 0
        found.append(
            PlayedWorkload(
                f"team-{number % 5}", kind, f"{kind.lower()}-{number:04d}-net", model, gpus + idle,
                int(MODELS[model] * draw.uniform(0.03, 0.95)), draw.choice((0.0, 0.01, 0.05, 0.2)),
                draw.randrange(2, 100), idle,
            )
        )  # fmt: skip
    return found


def play(count: int, start: int, end: int, seed: int, pods_each: tuple[int, int] = (1, 8), hours: float = 2.0
         ) -> list[PlayedPod]:  # fmt: skip
    """Pods of `count` workloads between `start` and `end`, each on GPUs of its own."""
    draw = random.Random(seed)
    pods: list[PlayedPod] = []
    for workload in workloads(count, seed):
        at = start + draw.randrange(0, (end - start) * 3 // 4)
        for number in range(draw.randint(*pods_each)):
            length = max(900, int(draw.expovariate(1.0 / (hours * HOUR))))
            if number == 0:
                length = min(length, end - at - 1)
            if at + length >= end:
                break
            pods += _run(workload, number, at, at + length, draw)
            at += length + draw.randrange(60, 12 * HOUR)
    return _placed(pods)


def _run(workload: PlayedWorkload, number: int, start: int, end: int, draw: random.Random) -> list[PlayedPod]:
    def suffix(length: int) -> str:
        return "".join(draw.choice(_LETTERS) for _ in range(length))

    top = MODELS[workload.model]
    failed = draw.random() < 0.05 and workload.kind in ("Job", "CronJob", "PyTorchJob")
    peak = min(int(workload.typical_mib * (1.0 + draw.uniform(0.0, workload.scatter))), top)
    name = workload.name
    match workload.kind:
        case "Deployment":
            made = f"{name}-{suffix(9)}"
            rows = [(f"{made}-{suffix(5)}", (("ReplicaSet", made), ("Deployment", name)))]
        case "CronJob":
            made = f"{name}-{29_000_000 + number}"
            rows = [(f"{made}-{suffix(5)}", (("Job", made), ("CronJob", name)))]
        case "Job":
            made = f"{name}-{suffix(5)}"
            rows = [(f"{made}-{suffix(5)}", (("Job", made),))]
        case "StatefulSet":  # the same name every time
            rows = [(f"{name}-0", (("StatefulSet", name),))]
        case "PyTorchJob":
            made = f"{name}-{suffix(5)}"
            rows = [(f"{made}-worker-{worker}", (("PyTorchJob", made),)) for worker in range(2)]
        case _:
            rows = [(f"{name}-{suffix(5)}", ())]
    batch = rows[0][1][0][1] if workload.kind in ("CronJob", "Job", "PyTorchJob") else f"{name}#{number}"
    return [
        PlayedPod(workload, pod, f"uid-{pod}-{number}", batch, chain, start, end, peak - 7 * place, failed)
        for place, (pod, chain) in enumerate(rows)
    ]


def _placed(pods: Sequence[PlayedPod]) -> list[PlayedPod]:
    """The first free GPUs of the product, in the order of time."""
    free_at: dict[str, list[int]] = {}
    placed = []
    for pod in sorted(pods, key=lambda pod: pod.start):
        gpus = free_at.setdefault(pod.workload.model, [])
        free = [number for number, until in enumerate(gpus) if until <= pod.start][: pod.workload.gpus]
        while len(free) < pod.workload.gpus:
            gpus.append(0)
            free.append(len(gpus) - 1)
        for number in free:
            gpus[number] = pod.end
        kind = pod.workload.model.split("-")[-1].split()[-1].lower()
        places = tuple(
            (f"{kind}-node-{number // GPUS_PER_NODE}", f"GPU-{kind}-{number}", number % GPUS_PER_NODE)
            for number in free
        )
        placed.append(
            PlayedPod(pod.workload, pod.name, pod.uid, pod.batch, pod.chain, pod.start, pod.end, pod.peak_mib,
                      pod.failed, places)
        )  # fmt: skip
    return placed


# ------------------------------------------------------------------ as samples


def write_openmetrics(pods: Sequence[PlayedPod], path: Path, start: int, end: int, more: Sequence[str] = ()) -> int:
    """Returns the number of samples. `more`: lines of other series."""
    count = 0
    with path.open("w") as file:
        for lines in (_gpu_samples(pods), _exporter_samples(pods, start, end), _state_samples(pods), more):
            for line in lines:
                file.write(line)
                count += 1
        file.write("# EOF\n")
    return count


def _labels(**labels: object) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _target(node: str) -> dict[str, object]:
    return {"job": "dcgm-exporter", "namespace": "gpu-operator", "pod": f"dcgm-exporter-{node}", "instance": node}


def _gpu(node: str, uuid: str, index: int, model: str) -> dict[str, object]:
    return {"gpu": index, "UUID": uuid, "modelName": model, "Hostname": node, **_target(node)}


def _gpu_samples(pods: Sequence[PlayedPod]) -> Iterator[str]:
    for pod in pods:
        for number, (node, uuid, index) in enumerate(pod.places):
            names = {"exported_namespace": pod.workload.namespace, "exported_pod": pod.name}
            labels = _labels(**_gpu(node, uuid, index, pod.workload.model), **names, exported_container="main")
            for at in pod.sampled_at:
                yield f"DCGM_FI_DEV_FB_USED{labels} {pod.mib(at, number)} {at}\n"
            for at in pod.sampled_at:
                yield f"DCGM_FI_DEV_GPU_UTIL{labels} {pod.workload.busy_percent} {at}\n"


def _exporter_samples(pods: Sequence[PlayedPod], start: int, end: int) -> Iterator[str]:
    """Every node has a GPU that no pod uses: only the exporter's own pod is named."""
    nodes = {node: pod.workload.model for pod in pods for node, _, _ in pod.places}
    for node, model in sorted(nodes.items()):
        idle = _labels(**_gpu(node, f"GPU-idle-{node}", 8, model))
        for at in range(start, end, STATE_SECONDS):
            yield f"DCGM_FI_DEV_FB_USED{idle} 4 {at}\n"
        for at in range(start, end, STATE_SECONDS):
            yield f"up{_labels(**_target(node))} 1 {at}\n"


def _state_samples(pods: Sequence[PlayedPod]) -> Iterator[str]:
    owned: dict[tuple[str, str, str], tuple[tuple[str, str], int, int]] = {}
    for pod in pods:
        who = {"namespace": pod.workload.namespace, "pod": pod.name, "uid": pod.uid}
        kind, name = pod.chain[0] if pod.chain else ("", "")
        asks = {**who, "container": "main", "node": "n"}
        requests = "kube_pod_container_resource_requests"
        series = {
            f"kube_pod_created{_labels(**who)}": pod.start - 30,
            f"kube_pod_owner{_labels(**who, owner_kind=kind, owner_name=name, owner_is_controller='true')}": 1,
            f"{requests}{_labels(**asks, resource='nvidia_com_gpu', unit='integer')}": pod.workload.gpus,
            f"{requests}{_labels(**asks, resource='cpu', unit='core')}": 8,
            f"kube_pod_status_phase{_labels(**who, phase='Failed')}": None,
        }
        for text, value in series.items():
            for at in range(pod.start - 20, pod.end + 2 * STATE_SECONDS, STATE_SECONDS):
                known = int(pod.failed and at >= pod.end) if value is None else value
                yield f"{text} {known} {at}\n"
        if pod.finishes:
            for at in range(pod.end + 10, pod.end + 2 * STATE_SECONDS, STATE_SECONDS):
                yield f"kube_pod_completion_time{_labels(**who)} {pod.end} {at}\n"
        if len(pod.chain) > 1:
            owned[pod.workload.namespace, kind, name] = (pod.chain[1], pod.start, pod.end)
    for (namespace, kind, name), ((root_kind, root_name), start, end) in owned.items():
        metric, label = {"ReplicaSet": ("kube_replicaset_owner", "replicaset"), "Job": ("kube_job_owner", "job_name")}[
            kind
        ]
        labels = _labels(namespace=namespace, **{label: name}, owner_kind=root_kind, owner_name=root_name)
        for at in range(start - 20, end, STATE_SECONDS):
            yield f"{metric}{labels} 1 {at}\n"
