"""KAI: the annotation `gpu-memory`, per GPU, in MiB. A plain integer: KAI ignores `10Gi` without a word.

Read in KAI's pkg/scheduler/api/pod_info/pod_info.go (updatePodAdditionalFields).
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change, annotate
from vramcast.admission.dialects.dialect import Dialect, Number
from vramcast.admission.resources import has_resource
from vramcast.hardware.vendors import WHOLE_GPU
from vramcast.task.pod import parse_count

_SCHEDULER: Final = "kai-scheduler"
_MEMORY: Final = "gpu-memory"
_FRACTION: Final = "gpu-fraction"
_DEVICES: Final = "gpu-fraction-num-devices"


def _gpus(pod: AdmittedPod) -> int:
    """The pod shares: it has no device, and without the annotation no GPU at all."""
    if pod.spec.get("schedulerName") != _SCHEDULER or has_resource(pod, WHOLE_GPU):
        return 0
    return parse_count(pod.annotations.get(_DEVICES, "")) or pod.asked_gpus


def _said(pod: AdmittedPod) -> bool:
    return bool(pod.annotations.keys() & {_MEMORY, _FRACTION})


def _write(pod: AdmittedPod, number: Number) -> list[Change]:
    changes = annotate(pod, _MEMORY, str(number.mib), number.told(_MEMORY))
    return changes + (annotate(pod, _DEVICES, str(number.gpus), _DEVICES) if number.gpus > 1 else [])


KAI: Final = Dialect("kai", _gpus, _said, _write)
