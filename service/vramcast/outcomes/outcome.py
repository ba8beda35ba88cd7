"""What became of a pod that was forecast: the one noun between telemetry, accuracy and calibration."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.forecast.forecast import UNADJUSTED, Adjustment
from vramcast.names import PodUid, Product
from vramcast.task.run_status import Ending


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run, counted once. Memory is on one GPU (the fullest of the pod's), as the driver shows it."""

    uid: PodUid
    pod: str  # namespace/name
    owner: str  # what made the pod ("Job/train-7"), "" for a bare pod; with the fingerprint it knows a return
    fingerprint: str  # of the task description
    family: str  # the task's architecture, as calibration cells name it
    level: str  # how it was described: name, summary, profile
    product: Product
    model_version: str
    risk: float
    median_bytes: int
    bound_bytes: int  # what was promised, before rounding
    peak_bytes: int
    ending: Ending
    ended_at: float  # seconds since the epoch
    gpu_utilization_forecast: float | None = None
    gpu_utilization_observed: float | None = None
    adjustment: Adjustment = UNADJUSTED  # what had been learned by then, in median and bound

    @property
    def covered(self) -> bool:
        """Did the promise hold? A run that died of OOM needed more than it was promised, whatever was seen of it."""
        return self.ending is not Ending.OOM and self.peak_bytes <= self.bound_bytes
