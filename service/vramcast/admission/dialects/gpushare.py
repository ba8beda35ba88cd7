"""gpushare (Alibaba Cloud): limits `aliyun.com/gpu-mem`, in the unit of its device plugin: GiB, or MiB. One GPU.

Read in gpushare-scheduler-extender's pkg/utils/pod.go (GetGPUMemoryFromPodResource).
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.dialects.dialect import Dialect, Number
from vramcast.admission.inject import DEFAULT_SCHEDULER
from vramcast.admission.resources import add_resource, has_resource
from vramcast.hardware.vendors import WHOLE_GPU

_MEMORY: Final = "aliyun.com/gpu-mem"
_COUNT: Final = "aliyun.com/gpu-count"


def _gpus(pod: AdmittedPod) -> int:
    """An extender of the default scheduler, so nothing but the memory marks its pods."""
    otherwise = has_resource(pod, _COUNT, WHOLE_GPU) or pod.spec.get("resourceClaims") or pod.asked_gpus > 1
    return int(pod.spec.get("schedulerName") == DEFAULT_SCHEDULER and not otherwise)


def _said(pod: AdmittedPod) -> bool:
    return has_resource(pod, _MEMORY)


def _write(pod: AdmittedPod, number: Number) -> list[Change]:
    first = next(pod.containers("containers"), None)
    return add_resource(first, _MEMORY, str(number.units), number.told(_MEMORY))


GPUSHARE: Final = Dialect("gpushare", _gpus, _said, _write, unit_mib=1024)
