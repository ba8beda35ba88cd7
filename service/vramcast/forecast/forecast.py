"""A forecast, and the one seam behind which it is made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from vramcast.forecast.adjustment import UNADJUSTED, Adjustment
from vramcast.names import Product
from vramcast.task.quantity import ceil_mib
from vramcast.task.task import Task


class Source(StrEnum):
    """What a forecast rests on; a metric label, so the set is closed."""

    GIVEN = "given"
    PHYSICS = "physics"
    MODEL = "model"


@dataclass(frozen=True, slots=True)
class Part:
    """One addend of the explanation, with the numbers that went into it."""

    name: str
    size_bytes: int
    because: str


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares of the GPU's time, 0 to 1; None where nothing is known."""

    gpu: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """Memory that the task takes on one GPU of one product: as the driver shows it, CUDA context included."""

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
    adjustment: Adjustment = UNADJUSTED  # by what this cluster's runs taught, in median and bound

    @property
    def need_mib(self) -> int:
        """What is promised: the bound, in whole MiB."""
        return ceil_mib(self.bound_bytes)


class Forecaster(Protocol):
    """The seam: physics today, a trained model tomorrow; callers do not change."""

    def forecast(self, task: Task, product: Product) -> Forecast: ...
