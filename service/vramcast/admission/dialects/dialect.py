"""Another system that asks for GPU memory, and how it wants to be told.

vramcast does not place the pods of another system. It fills in the number that a human would have to guess, in the
field and unit that the system reads, where the field is absent and the pod has a description.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.context import Needs
from vramcast.task.quantity import MIB, ceil_div


@dataclass(frozen=True, slots=True)
class Number:
    """What the pod needs on each GPU: the most over the products that can hold it."""

    need_bytes: int
    gpus: int
    unit_mib: int  # of the systems that count in units of their own
    note: str  # which product the number is for, where needs differ

    @property
    def mib(self) -> int:
        return ceil_div(self.need_bytes, MIB)

    @property
    def units(self) -> int:
        return ceil_div(self.mib, self.unit_mib)

    def told(self, field: str) -> str:
        return f"{field}{self.note}"


def number(needs: Needs, unit_mib: int) -> Number:
    note = f"({needs.widest})" if len({needs.by_product[product] for product in needs.fits}) > 1 else ""
    return Number(needs.reserved_bytes, needs.gpus, unit_mib, note)


@dataclass(frozen=True, slots=True)
class Dialect:
    """`gpus`: how many GPUs a pod asks this system for; 0: the pod is not for this system.

    `said`: whether the pod says itself what it needs. `write`: the number, in the fields that this system reads.
    """

    name: str
    gpus: Callable[[AdmittedPod], int]
    said: Callable[[AdmittedPod], bool]
    write: Callable[[AdmittedPod, Number], list[Change]]
    unit_mib: int = 1  # unless the setting says otherwise
