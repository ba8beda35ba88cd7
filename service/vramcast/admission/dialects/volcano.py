"""Volcano: `volcano.sh/vgpu-memory` beside `volcano.sh/vgpu-number`, or `volcano.sh/gpu-memory` alone. Integers.

Read in Volcano's pkg/scheduler/api/devices/util.go (ExtractResourceRequest, per GPU) and
pkg/scheduler/api/devices/nvidia/gpushare/share.go (getGPUMemoryOfPod, one GPU). Both count in the units of the device
plugin: MiB, or its gpuMemoryFactor.
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.dialects.dialect import Dialect, Number
from vramcast.admission.resources import add_resource, containers_with, has_resource, most_of
from vramcast.hardware.vendors import WHOLE_GPU

_SCHEDULER: Final = "volcano"
_VGPU_COUNT: Final = "volcano.sh/vgpu-number"
_VGPU_MEMORY: Final = "volcano.sh/vgpu-memory"
_VGPU_SHARE: Final = "volcano.sh/vgpu-memory-percentage"
_GPU_COUNT: Final = "volcano.sh/gpu-number"
_GPU_MEMORY: Final = "volcano.sh/gpu-memory"


def _vgpus(pod: AdmittedPod) -> int:
    return most_of(pod, _VGPU_COUNT)


def _vgpu_said(pod: AdmittedPod) -> bool:
    return has_resource(pod, _VGPU_MEMORY, _VGPU_SHARE)


def _write_vgpu(pod: AdmittedPod, number: Number) -> list[Change]:
    return [
        change
        for placed in containers_with(pod, _VGPU_COUNT)
        for change in add_resource(placed, _VGPU_MEMORY, str(number.units), number.told(_VGPU_MEMORY))
    ]  # fmt: skip


def _one_gpu(pod: AdmittedPod) -> int:
    """This form shares one GPU. A pod for several cannot be told in it."""
    otherwise = has_resource(pod, _GPU_COUNT, _VGPU_COUNT, WHOLE_GPU) or pod.asked_gpus > 1
    return int(pod.spec.get("schedulerName") == _SCHEDULER and not otherwise)


def _shared_said(pod: AdmittedPod) -> bool:
    return has_resource(pod, _GPU_MEMORY)


def _write_shared(pod: AdmittedPod, number: Number) -> list[Change]:
    first = next(pod.containers("containers"), None)
    return add_resource(first, _GPU_MEMORY, str(number.units), number.told(_GPU_MEMORY))


VOLCANO: Final = Dialect("volcano", _vgpus, _vgpu_said, _write_vgpu)
VOLCANO_SHARE: Final = Dialect("volcano-share", _one_gpu, _shared_said, _write_shared)
