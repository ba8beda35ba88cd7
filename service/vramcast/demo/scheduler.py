"""A small kube-scheduler for the demo: it calls the extender over HTTP as the real one does with nodeCacheCapable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import urllib3

from vramcast.errors import WorldUnavailable


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU in GET /state, or a pool of devices from which the kubelet picks."""

    node: str
    resource: str
    product: str
    index: int
    devices: int
    free_devices: int | None  # None if vramcast picks the GPU
    replicas: int
    size_mib: int
    promised_mib: int
    unmanaged_mib: int
    room_mib: int
    needs_mib: Mapping[str, int | None]  # by pod


@dataclass(frozen=True, slots=True)
class CycleResult:
    """The result of one scheduling cycle. `reasons`: why each of the other nodes was not chosen."""

    node: str = ""
    scores: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


class DemoScheduler:
    """One cycle at a time: count free devices, filter, prioritize, bind."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(timeout=5.0, retries=False)

    def schedule(self, pod: dict[str, Any]) -> CycleResult:
        """Raises WorldUnavailable if the service does not answer."""
        feasible, reasons = self._count_devices(pod)
        if not feasible:
            return CycleResult(reasons=reasons)
        answer = self._post("/filter", {"Pod": pod, "Nodes": None, "NodeNames": feasible})
        reasons = {**reasons, **(answer["FailedNodes"] or {}), **(answer["FailedAndUnresolvableNodes"] or {})}
        names: list[str] = answer["NodeNames"] or []
        if answer["Error"] or not names:
            return CycleResult(reasons=reasons, error=answer["Error"])
        scores = self._prioritize(pod, names)
        node = max(names, key=lambda name: (scores.get(name, 0), name))
        metadata = pod["metadata"]
        bound = self._post("/bind", {
            "PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node,
        })  # fmt: skip
        if bound["Error"]:
            return CycleResult(scores=scores, reasons=reasons, error=bound["Error"])
        return CycleResult(node, scores, reasons)

    def gpus(self) -> list[Gpu]:
        """All GPUs in GET /state."""
        return [
            _gpu(node["name"], pool, gpu)
            for node in self._get("/state")["nodes"]
            for pool in node["pools"]
            for gpu in pool["gpus"]
        ]

    def _prioritize(self, pod: dict[str, Any], names: list[str]) -> dict[str, int]:
        if len(names) == 1:
            return {}  # like kube-scheduler, which skips prioritize for a single node
        answer = self._post("/prioritize", {"Pod": pod, "Nodes": None, "NodeNames": names})
        return {entry["Host"]: entry["Score"] for entry in answer}

    def _count_devices(self, pod: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        """Drops nodes without enough free devices: kube-scheduler's own filters run before the extender."""
        wanted: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
        gpus = self.gpus()
        free = {(gpu.node, gpu.resource): gpu.free_devices for gpu in gpus if gpu.free_devices is not None}
        shared = {gpu.node for gpu in gpus if gpu.free_devices is None}
        short = {
            node: f"Insufficient {resource}"
            for node in sorted({gpu.node for gpu in gpus} - shared)
            for resource, count in wanted.items()
            if (free.get((node, resource)) or 0) < int(count)
        }
        return sorted({gpu.node for gpu in gpus} - short.keys()), short

    def _post(self, path: str, body: object) -> Any:
        return self._call("POST", path, body)

    def _get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, body: object) -> Any:
        try:
            response = self._pool.request(method, self._url + path, json=body)
        except urllib3.exceptions.HTTPError as error:
            raise WorldUnavailable(f"{method} {path}: {error}") from None
        if response.status != 200:
            raise WorldUnavailable(f"{method} {path}: {response.status} {response.data[:200]!r}")
        return response.json()


def _gpu(node: str, pool: Mapping[str, Any], gpu: Mapping[str, Any]) -> Gpu:
    return Gpu(
        node=node,
        resource=pool["resource"],
        product=pool["product"],
        index=gpu["index"],
        devices=pool["devices"],
        free_devices=gpu.get("free_devices"),
        replicas=pool["replicas"],
        size_mib=gpu["size_mib"],
        promised_mib=gpu["promised_mib"],
        unmanaged_mib=gpu["unmanaged_mib"],
        room_mib=gpu["room_mib"],
        needs_mib={pod["pod"]: pod["need_mib"] for pod in gpu["pods"]},
    )
