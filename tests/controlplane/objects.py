"""Manifests of nodes, labelled as by GPU Feature Discovery, and of pods that ask for GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

PREFIX = "vramcast.dev/"
SHARING_LABEL = f"{PREFIX}gpu-sharing"


@dataclass(frozen=True, slots=True)
class GpuProduct:
    """One GPU product, as its labels describe it."""

    product: str
    memory_mib: int
    family: str


A100 = GpuProduct("NVIDIA-A100-SXM4-80GB", 81_920, "ampere")
A100_40GB = GpuProduct("NVIDIA-A100-SXM4-40GB", 40_960, "ampere")
H100 = GpuProduct("NVIDIA-H100-80GB-HBM3", 81_559, "hopper")
L40S = GpuProduct("NVIDIA-L40S", 46_068, "ada-lovelace")
T4 = GpuProduct("Tesla-T4", 15_360, "turing")


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG profile and the memory that the labels give for a slice."""

    name: str
    memory_mib: int


MIG_1G_10GB = MigProfile("1g.10gb", 9_728)
MIG_3G_40GB = MigProfile("3g.40gb", 40_192)


def sharing_node(name: str, gpu: GpuProduct = A100, count: int = 8, **more: Any) -> Json:
    """GPUs that vramcast shares by memory. No device plugin runs, so there is no `nvidia.com/gpu`."""
    labels = {**_gpu_labels(gpu, count), SHARING_LABEL: "true", **more.pop("labels", {})}
    return _node(name, labels, {}, **more)


def whole_gpu_node(name: str, gpu: GpuProduct = A100, count: int = 8, **more: Any) -> Json:
    """GPUs that the device plugin allocates whole."""
    labels = {**_gpu_labels(gpu, count), **more.pop("labels", {})}
    return _node(name, labels, {"nvidia.com/gpu": str(count)}, **more)


def time_sliced_node(name: str, gpu: GpuProduct = A100, count: int = 8, replicas: int = 4, **more: Any) -> Json:
    """The device plugin advertises every GPU `replicas` times, and the kubelet picks the GPU of a pod."""
    labels = _gpu_labels(gpu, count)
    labels |= {
        "nvidia.com/gpu.product": f"{gpu.product}-SHARED",
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }
    return _node(name, {**labels, **more.pop("labels", {})}, {"nvidia.com/gpu": str(count * replicas)}, **more)


def mig_single_node(
    name: str,
    gpu: GpuProduct = A100,
    slices: int = 7,
    profile: MigProfile = MIG_1G_10GB,
    **more: Any,
) -> Json:
    """All GPUs are partitioned alike, and the slices are advertised as GPUs."""
    labels = _gpu_labels(gpu, slices)
    labels |= {
        "nvidia.com/gpu.product": f"{gpu.product}-MIG-{profile.name}",
        "nvidia.com/gpu.memory": str(profile.memory_mib),
        "nvidia.com/mig.strategy": "single",
    }
    return _node(name, {**labels, **more.pop("labels", {})}, {"nvidia.com/gpu": str(slices)}, **more)


def mig_mixed_node(
    name: str,
    gpu: GpuProduct = A100,
    count: int = 1,
    slices: Mapping[MigProfile, int] | None = None,
    **more: Any,
) -> Json:
    """GPUs partitioned differently: every profile is a resource, and `count` GPUs are whole."""
    labels = _gpu_labels(gpu, count) | {"nvidia.com/mig.strategy": "mixed"}
    resources = {"nvidia.com/gpu": str(count)}
    for profile, number in (slices or {MIG_1G_10GB: 7}).items():
        resource = f"nvidia.com/mig-{profile.name}"
        labels |= {
            f"{resource}.count": str(number),
            f"{resource}.memory": str(profile.memory_mib),
            f"{resource}.product": f"{gpu.product}-MIG-{profile.name}",
            f"{resource}.replicas": "1",
        }
        resources[resource] = str(number)
    return _node(name, {**labels, **more.pop("labels", {})}, resources, **more)


def cpu_node(name: str, **more: Any) -> Json:
    return _node(name, more.pop("labels", {}), {}, **more)


def pod(
    name: str,
    annotations: Mapping[str, str] | None = None,
    *,
    namespace: str = "default",
    scheduler: str = "default-scheduler",
    resources: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod with one container. Annotation keys without a "/" get vramcast's prefix; `spec` adds fields."""
    keys = {key if "/" in key else PREFIX + key: value for key, value in (annotations or {}).items()}
    asked = {"cpu": "10m", "memory": "16Mi", **(resources or {})}
    # Extended resources cannot be overcommitted, so the API server requires limits.
    limits = {key: value for key, value in asked.items() if "/" in key}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": keys,
            "labels": dict(labels or {}),
        },
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": "example/task:1",
                    "resources": {"requests": asked, "limits": limits},
                }
            ],
            **spec,
        },
    }


def shared_pod(
    name: str,
    gpu_memory: str | None = "10Gi",
    gpus: int = 1,
    annotations: Mapping[str, str] | None = None,
    **more: Any,
) -> Json:
    """A pod that may share each of its `gpus` GPUs. Without `gpu_memory` its need must be forecast."""
    keys = {"share": "true"}
    if gpu_memory is not None:
        keys["gpu-memory"] = gpu_memory
    if gpus != 1:
        keys["gpus"] = str(gpus)
    return pod(name, {**keys, **(annotations or {})}, **more)


def whole_gpu_pod(name: str, gpus: int = 1, annotations: Mapping[str, str] | None = None, **more: Any) -> Json:
    resources = {"nvidia.com/gpu": str(gpus), **more.pop("resources", {})}
    return pod(name, annotations, resources=resources, **more)


def _gpu_labels(gpu: GpuProduct, count: int) -> dict[str, str]:
    return {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": gpu.product,
        "nvidia.com/gpu.memory": str(gpu.memory_mib),
        "nvidia.com/gpu.count": str(count),
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.family": gpu.family,
        "nvidia.com/gpu.machine": "KWOK",
        "nvidia.com/gpu.sharing-strategy": "none",
    }


def _node(
    name: str,
    labels: Mapping[str, str],
    extended: Mapping[str, str],
    *,
    cpu: str = "128",
    memory: str = "1Ti",
    pods: str = "250",
    **fields: Any,
) -> Json:
    amounts = {"cpu": cpu, "memory": memory, "pods": pods, **extended}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
            "annotations": fields.pop("annotations", {}),
        },
        "spec": fields.pop("spec", {}),
        # KWOK adds the conditions and keeps these amounts.
        "status": {"capacity": amounts, "allocatable": amounts, **fields.pop("status", {})},
    }
