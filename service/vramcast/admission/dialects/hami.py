"""HAMi: `nvidia.com/gpumem` beside `nvidia.com/gpu`, per GPU, in MiB or in units of its memoryFactor.

Read in HAMi's pkg/device/nvidia/device.go (GenerateResourceRequests). An integer: `10Gi` would be 10 GiB of MiB.
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.dialects.dialect import Dialect, Number
from vramcast.admission.resources import add_resource, containers_with, has_resource, most_of

_COUNT: Final = "nvidia.com/gpu"
_MEMORY: Final = "nvidia.com/gpumem"
_SHARE: Final = "nvidia.com/gpumem-percentage"


def _gpus(pod: AdmittedPod) -> int:
    return most_of(pod, _COUNT)


def _said(pod: AdmittedPod) -> bool:
    return has_resource(pod, _MEMORY, _SHARE)


def _write(pod: AdmittedPod, number: Number) -> list[Change]:
    return [
        change
        for placed in containers_with(pod, _COUNT)
        for change in add_resource(placed, _MEMORY, str(number.units), number.told(_MEMORY))
    ]  # fmt: skip


HAMI: Final = Dialect("hami", _gpus, _said, _write)
