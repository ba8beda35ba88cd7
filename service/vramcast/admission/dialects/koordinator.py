"""Koordinator: `koordinator.sh/gpu-memory`, a quantity: the total over the pod's GPUs, which it divides again.

Read in Koordinator's pkg/scheduler/plugins/deviceshare/devicehandler_gpu.go (calcDesiredRequestsAndCountForGPU).
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.dialects.dialect import Dialect, Number
from vramcast.admission.resources import add_resource, containers_with, count_of, has_resource, most_of
from vramcast.hardware.vendors import WHOLE_GPU

_SCHEDULER: Final = "koord-scheduler"
_SHARED: Final = "koordinator.sh/gpu.shared"
_MEMORY: Final = "koordinator.sh/gpu-memory"
_SAID: Final = (_MEMORY, "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu")


def _gpus(pod: AdmittedPod) -> int:
    if pod.spec.get("schedulerName") != _SCHEDULER or has_resource(pod, WHOLE_GPU):
        return 0
    return most_of(pod, _SHARED) or pod.asked_gpus


def _said(pod: AdmittedPod) -> bool:
    return has_resource(pod, *_SAID)


def _write(pod: AdmittedPod, number: Number) -> list[Change]:
    sharing = [(placed, count_of(placed[1], _SHARED)) for placed in containers_with(pod, _SHARED)]
    if sharing:
        return [
            change
            for placed, gpus in sharing
            for change in add_resource(placed, _MEMORY, _total(number, gpus), number.told(_MEMORY))
        ]  # fmt: skip
    first = next(pod.containers("containers"), None)
    several = add_resource(first, _SHARED, str(number.gpus), _SHARED) if number.gpus > 1 else []
    return several + add_resource(first, _MEMORY, _total(number, number.gpus), number.told(_MEMORY))


def _total(number: Number, gpus: int) -> str:
    return f"{number.mib * gpus}Mi"


KOORDINATOR: Final = Dialect("koordinator", _gpus, _said, _write)
