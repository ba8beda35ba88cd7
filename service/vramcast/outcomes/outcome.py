"""The result of a run. Telemetry produces outcomes; accuracy and calibration consume them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vramcast.forecast.forecast import UNADJUSTED, Adjustment
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization
from vramcast.names import PodUid, Product
from vramcast.task.run_status import Ending


class Truth(StrEnum):
    """Where a run's peak is known from, the most trusted first; a metric label, so the set is closed."""

    REPORT = "report"  # the job's exit report: torch's own counters
    ANNOTATION = "annotation"  # the job wrote it on its pod
    AGENT = "agent"  # the driver's memory by process, from the agent on the node
    POD_LABEL = "pod_label"  # samples of an exporter that names the pod
    ALONE = "alone"  # samples of a GPU that the pod had to itself
    ENDING = "ending"  # only that it ran out of memory


@dataclass(frozen=True, slots=True)
class Outcome:
    """One finished run, counted once. Memory is on the pod's fullest GPU, as the driver reports it."""

    uid: PodUid
    pod: str  # namespace/name
    owner: str  # what made the pod ("Job/train-7"), or "" for a bare pod
    fingerprint: str  # of the task description
    family: str  # the task's architecture, as calibration cells name it
    level: str  # of description: name, summary, profile
    product: Product
    model_version: str
    risk: float
    median_bytes: int
    bound_bytes: int  # what was promised, before rounding
    peak_bytes: int
    ending: Ending
    ended_at: float  # seconds since the epoch
    utilization_forecast: Utilization = UNKNOWN_UTILIZATION
    utilization_observed: Utilization = UNKNOWN_UTILIZATION
    adjustment: Adjustment = UNADJUSTED  # already applied to median and bound
    truth: Truth = Truth.ALONE
    regime: str = ""  # of the task: one of REGIMES
    step_seconds_forecast: float | None = None
    step_seconds_observed: float | None = None
    peaks_bytes: Mapping[Truth, int] = field(default_factory=dict)  # by each source that saw the run

    @property
    def covered(self) -> bool:
        """Was the promise enough? For a run that died of OOM it was not, whatever telemetry saw."""
        return self.ending is not Ending.OOM and self.peak_bytes <= self.bound_bytes
