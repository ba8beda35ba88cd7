"""Fake dcgm-exporters for nodes without GPUs. They report the pods that run on the control plane.

Each node's exporter is a path of one server (`/NODE/metrics`). Every scrape asks the API server for the running pods:
each of them uses the need that the test set, and a finished pod uses nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from tests.cluster.telemetry_server import serving
from tests.controlplane import Api
from tests.controlplane.objects import GpuProduct

Json = dict[str, Any]
PREFIX = "vramcast.dev/"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
RESERVED_MIB = 450
# The fraction of its need that a pod uses on every other scrape, so that the last sample may not be the peak.
RESTING = 0.8

_METRICS = {
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB).",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB).",
    "DCGM_FI_DEV_FB_RESERVED": "Framebuffer memory reserved (in MiB).",
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %).",
}
# The list of counters that the exporter is installed with leaves these out.
_PROFILED_METRICS = {
    "DCGM_FI_PROF_SM_ACTIVE": "The ratio of cycles an SM has at least 1 warp assigned.",
    "DCGM_FI_PROF_SM_OCCUPANCY": "The ratio of number of warps resident on an SM.",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the exporter's output."""

    metric: str
    value: float
    labels: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        text = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.metric}{{{text}}} {self.value:g}"


def utilization_percent(gpu: int) -> int:
    """The utilization of a GPU in use. It is constant."""
    return 40 + 5 * (gpu % 8)


def profiled_shares(gpu: int) -> dict[str, float]:
    """The same for the counters of its multiprocessors."""
    return {"DCGM_FI_PROF_SM_ACTIVE": 0.3 + 0.02 * (gpu % 8), "DCGM_FI_PROF_SM_OCCUPANCY": 0.1 + 0.01 * (gpu % 8)}


# Damages the lines that a node's exporter prints.
Damage = Callable[[str, list[str]], list[str]]


@dataclass(slots=True)
class FakeExporter:
    """Use as a context manager. `needs_mib` is by pod name, `unmanaged_mib` by node and GPU.

    `names_pods`: as if the kubelet had given every pod its device. A real exporter does not name a pod that shares by
    annotation, because the kubelet gave it none. `profiled`: nodes whose exporter also has the counters of
    multiprocessors, which somebody has to switch on.
    """

    api: Api
    nodes: dict[str, tuple[GpuProduct, int]]
    needs_mib: dict[str, int] = field(default_factory=dict)
    unmanaged_mib: dict[tuple[str, int], int] = field(default_factory=dict)
    damage: Damage = lambda _node, lines: lines
    names_pods: bool = True
    profiled: set[str] = field(default_factory=set)
    url: str = ""
    _scrapes: Counter[str] = field(default_factory=Counter)
    _server: AbstractContextManager[str] | None = None

    def __enter__(self) -> FakeExporter:
        self._server = serving(lambda path, _query, _headers: self._answer(path), TEXT)
        self.url = self._server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.__exit__(kind, error, trace)

    def _answer(self, path: str) -> tuple[int, bytes]:
        node = path.split("/")[1]
        if node not in self.nodes:
            return 404, b"no such node"
        return 200, "\n".join([*self.damage(node, self._lines(node)), ""]).encode()

    def _lines(self, node: str) -> list[str]:
        samples = defaultdict(list)
        for sample in self._samples(node):
            samples[sample.metric].append(sample)
        lines = []
        for metric, text in (_METRICS | (_PROFILED_METRICS if node in self.profiled else {})).items():
            lines += [f"# HELP {metric} {text}", f"# TYPE {metric} gauge", *map(str, samples[metric])]
        return lines

    def _samples(self, node: str) -> Iterator[Sample]:
        product, count = self.nodes[node]
        used = self._used_mib(node)
        for gpu in range(count):
            labels = _gpu_labels(node, gpu, product)
            here = used.get(gpu, {})
            total = sum(here.values()) + self.unmanaged_mib.get((node, gpu), 0)
            busy: dict[str, float] = {"DCGM_FI_DEV_GPU_UTIL": utilization_percent(gpu)}
            busy |= profiled_shares(gpu) if node in self.profiled else {}
            shown = {metric: value if total else 0 for metric, value in busy.items()}
            yield Sample("DCGM_FI_DEV_FB_RESERVED", RESERVED_MIB, labels)
            yield Sample("DCGM_FI_DEV_FB_FREE", product.memory_mib - RESERVED_MIB - total, labels)
            yield Sample("DCGM_FI_DEV_FB_USED", total, labels)
            yield from (Sample(metric, value, labels) for metric, value in shown.items())
            for pod, mib in here.items() if self.names_pods else ():
                named = (*labels, ("container", "main"), ("namespace", "default"), ("pod", pod))
                yield Sample("DCGM_FI_DEV_FB_USED", mib, named)
                yield from (Sample(metric, value, named) for metric, value in shown.items())

    def _used_mib(self, node: str) -> dict[int, dict[str, int]]:
        found: dict[int, dict[str, int]] = defaultdict(dict)
        selector = f"spec.nodeName={node},status.phase=Running"
        for pod in self.api.get("/api/v1/pods", fieldSelector=selector)["items"]:
            name = pod["metadata"]["name"]
            need = self.needs_mib.get(name, 0)
            if need:
                self._scrapes[name] += 1
                mib = need if self._scrapes[name] % 2 == 0 else round(RESTING * need)
                for gpu in pod["metadata"]["annotations"].get(f"{PREFIX}gpu-indices", "0").split(","):
                    found[int(gpu)][name] = mib
        return found


def _gpu_labels(node: str, gpu: int, product: GpuProduct) -> tuple[tuple[str, str], ...]:
    return (
        ("gpu", str(gpu)),
        ("UUID", f"GPU-{node}-{gpu}"),
        ("pci_bus_id", f"00000000:{gpu:02X}:00.0"),
        ("device", f"nvidia{gpu}"),
        ("modelName", product.product.replace("-", " ")),
        ("Hostname", node),
    )
