"""TensorFusion: the annotations `tensor-fusion.ai/vram-request` and `/vram-limit`, per GPU, as quantities.

Read in tensor-fusion's internal/webhook/v1/tf_parser.go (ParseTensorFusionInfo).
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change, annotate, mapping
from vramcast.admission.dialects.dialect import Dialect, Number
from vramcast.task.pod import parse_count

_PREFIX: Final = "tensor-fusion.ai/"
_ENABLED: Final = _PREFIX + "enabled"
_REQUEST, _LIMIT = _PREFIX + "vram-request", _PREFIX + "vram-limit"
_COUNT: Final = _PREFIX + "gpu-count"


def _gpus(pod: AdmittedPod) -> int:
    labels = mapping(mapping(pod.raw.get("metadata")).get("labels"))
    if labels.get(_ENABLED) != "true":
        return 0
    return parse_count(pod.annotations.get(_COUNT, "")) or pod.asked_gpus


def _said(pod: AdmittedPod) -> bool:
    return bool(pod.annotations.keys() & {_REQUEST, _LIMIT})


def _write(pod: AdmittedPod, number: Number) -> list[Change]:
    quantity = f"{number.mib}Mi"
    return annotate(pod, _REQUEST, quantity, number.told(_REQUEST)) + annotate(pod, _LIMIT, quantity, _LIMIT)


TENSORFUSION: Final = Dialect("tensorfusion", _gpus, _said, _write)
