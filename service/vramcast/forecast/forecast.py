"""A forecast, and the interface behind which it is made."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task

_ADJUSTMENT_DIGITS = 4


class Source(StrEnum):
    """What a forecast rests on; a metric label, so the set is closed."""

    GIVEN = "given"
    PHYSICS = "physics"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Part:
    """One addend of the explanation, with the numbers behind it."""

    name: str
    size_bytes: int
    because: str


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the GPU's time, 0 to 1; None where unknown."""

    gpu: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None


@dataclass(frozen=True, slots=True)
class Adjustment:
    """How calibration moved a forecast: the artifact's median and bound were multiplied by these factors."""

    median: float = 1.0
    bound: float = 1.0
    outcomes: int = 0  # that the factors rest on

    def __str__(self) -> str:
        """As written onto a pod, so that its run can be judged by the promise of its time."""
        digits = _ADJUSTMENT_DIGITS
        return f"{self.median:.{digits}f},{self.bound:.{digits}f},{self.outcomes}"


UNADJUSTED = Adjustment()


def parse_adjustment(text: str | None) -> Adjustment:
    """Never raises. Anybody may edit an annotation, so an unreadable one counts as absent."""
    try:
        median, bound, outcomes = (text or "").split(",")
        adjustment = Adjustment(float(median), float(bound), int(outcomes))
    except ValueError:
        return UNADJUSTED
    usable = all(math.isfinite(factor) and 0.01 <= factor <= 100.0 for factor in (adjustment.median, adjustment.bound))
    return adjustment if usable and adjustment.outcomes >= 0 else UNADJUSTED


@dataclass(frozen=True, slots=True)
class Forecast:
    """The memory that a task takes on one GPU of one product, as the driver reports it: context included."""

    product: Product
    median_bytes: int
    bound_bytes: int
    risk: float
    source: Source
    model_version: str
    parts: tuple[Part, ...] = ()
    assumptions: tuple[str, ...] = ()
    utilization: Utilization = field(default_factory=Utilization)
    family: str = ""  # of the network, as calibration cells name it
    adjustment: Adjustment = UNADJUSTED  # already applied to median and bound
    need_mib: int = field(init=False)  # what is promised: the bound in whole MiB

    def __post_init__(self) -> None:
        object.__setattr__(self, "need_mib", -(-self.bound_bytes // MIB))


class Forecaster(Protocol):
    def forecast(self, task: Task, product: Product) -> Forecast: ...
