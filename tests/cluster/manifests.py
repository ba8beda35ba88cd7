"""Minimal objects as the API server sends them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def node(name: str = "n0", gpus: int = 8, memory_mib: int = 81_920, **annotations: str) -> Json:
    labels = {
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
        "nvidia.com/gpu.memory": str(memory_mib),
        "nvidia.com/gpu.count": str(gpus),
        "vramcast.dev/gpu-sharing": "true",
    }
    return {"metadata": {"name": name, "labels": labels, "annotations": annotations}, "status": {"allocatable": {}}}


def shared_pod(name: str, gpu_memory: str = "10Gi", uid: str = "", **metadata: Any) -> Json:
    annotations = {"vramcast.dev/share": "true", "vramcast.dev/gpu-memory": gpu_memory}
    return plain_pod(name, uid, annotations=annotations, **metadata)


def plain_pod(name: str, uid: str = "", **metadata: Any) -> Json:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": uid or f"uid-{name}", **metadata},
        "spec": {"containers": [{"name": "main"}]},
        "status": {"phase": "Pending"},
    }
