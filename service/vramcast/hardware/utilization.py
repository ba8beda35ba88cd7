"""What utilization means: counters of a GPU, each measured under its own name, and three of them forecast.

They differ by more than forecasts err: on the runs that training has, `gpu_util` and `sm_active` are 0.13 apart on
average, and a forecast misses either by 0.03 or less. So one is never compared with another.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from enum import StrEnum


class UtilizationCounter(StrEnum):
    """A metric label, so the set is closed."""

    GPU_UTIL = "gpu_util"  # share of time in which a kernel runs
    SM_ACTIVE = "sm_active"  # share of time in which a multiprocessor has a warp, mean of all multiprocessors
    SM_OCCUPANCY = "sm_occupancy"  # resident warps over the most that fit, mean of all multiprocessors
    MEMORY_UTIL = "memory_util"  # share of time in which the GPU's memory is read or written; never forecast


# Those with a forecast to be compared with.
FORECAST_COUNTERS = (UtilizationCounter.GPU_UTIL, UtilizationCounter.SM_ACTIVE, UtilizationCounter.SM_OCCUPANCY)


@dataclass(frozen=True, slots=True)
class Utilization:
    """Shares, 0 to 1; None where unknown."""

    gpu_util: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    dram_active: float | None = None
    memory_util: float | None = None  # only measured

    def of(self, counter: UtilizationCounter) -> float | None:
        known: dict[UtilizationCounter, float | None] = {
            UtilizationCounter.GPU_UTIL: self.gpu_util,
            UtilizationCounter.SM_ACTIVE: self.sm_active,
            UtilizationCounter.SM_OCCUPANCY: self.sm_occupancy,
            UtilizationCounter.MEMORY_UTIL: self.memory_util,
        }
        return known[counter]

    def completed(self, other: Utilization) -> Utilization:
        """With what only the other one knows."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Utilization(*(own if own is not None else told for own, told in pairs))


UNKNOWN_UTILIZATION = Utilization()
