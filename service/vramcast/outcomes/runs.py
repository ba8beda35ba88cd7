"""Runs: what each pod that was promised memory really took, from the first sample to the last.

A run ends as an outcome, or as one that could not be measured, and both are counted once. Measured is a run that
telemetry saw most of and could tell apart from its neighbours; an out-of-memory needs no telemetry to be one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vramcast.forecast.forecast import UNADJUSTED, Adjustment
from vramcast.names import PodUid, Product
from vramcast.outcomes.attribution import LEAST_USED_MIB
from vramcast.task.pod import PodRecord

# A run whose samples were unclear more often than this is not measured.
_MOST_UNCLEAR = 0.1
# Nor is one of which telemetry saw less than this part.
_LEAST_SEEN = 0.5


class Unmeasured(StrEnum):
    """Why a run is no outcome; a metric label, so the set is closed."""

    TOO_SHORT = "too_short"
    NO_TELEMETRY = "no_telemetry"
    PARTLY_SEEN = "partly_seen"
    UNUSED = "unused"  # it never took memory on its GPU
    UNCLEAR = "unclear"  # on a GPU with others, and nothing says what was whose
    UNKNOWN_END = "unknown_end"  # it is gone, and nobody could be asked how it ended


@dataclass(slots=True)
class Run:
    """One pod's run, as far as it was seen. `gap_seconds`: samples further apart leave a hole."""

    pod: PodRecord
    since: float
    gap_seconds: float
    product: Product
    median_bytes: int | None = None
    bound_bytes: int | None = None
    adjustment: Adjustment = UNADJUSTED
    peak_mib: int = 0
    last_mib: int | None = None
    clear: int = 0
    unclear: int = 0
    seen_seconds: float = 0.0
    utilization_sum: float = 0.0
    utilization_count: int = 0
    last_at: float | None = None

    def observe(self, at: float, used_mib: int, utilization: float | None) -> None:
        """Samples come in order; one that is not newer than the last was seen already."""
        if not self._is_news(at):
            return
        self.clear += 1
        self.last_mib = used_mib
        self.peak_mib = max(self.peak_mib, used_mib)
        # Before its first byte on the GPU the pod pulled its image: no part of its utilization.
        if utilization is not None and used_mib:
            self.utilization_sum += utilization
            self.utilization_count += 1

    def miss(self, at: float) -> None:
        """It was there, and could not be told from its neighbours."""
        if self._is_news(at):
            self.unclear += 1

    def judge(self, ended_at: float, min_run_seconds: float) -> Unmeasured | None:
        """None: it is measured."""
        lasted = ended_at - self.since
        if lasted < min_run_seconds:
            return Unmeasured.TOO_SHORT
        if not self.clear:
            return Unmeasured.UNCLEAR if self.unclear else Unmeasured.NO_TELEMETRY
        if self.unclear > _MOST_UNCLEAR * (self.clear + self.unclear):
            return Unmeasured.UNCLEAR
        if self.seen_seconds < _LEAST_SEEN * lasted:
            return Unmeasured.PARTLY_SEEN
        return Unmeasured.UNUSED if self.peak_mib < LEAST_USED_MIB else None

    @property
    def utilization(self) -> float | None:
        return self.utilization_sum / self.utilization_count if self.utilization_count else None

    def _is_news(self, at: float) -> bool:
        if at < self.since or (self.last_at is not None and at <= self.last_at):
            return False
        # A sample stands for the time up to it, and where there was a hole for no more than a gap.
        self.seen_seconds += min(at - (self.since if self.last_at is None else self.last_at), self.gap_seconds)
        self.last_at = at
        return True


class Counted:
    """The pods that are counted already, the last of them: a restart must not count them again."""

    def __init__(self, most: int = 2048) -> None:
        self._most = most
        self._uids: dict[PodUid, None] = {}

    def __contains__(self, uid: PodUid) -> bool:
        return uid in self._uids

    def add(self, uid: PodUid) -> None:
        self._uids[uid] = None
        while len(self._uids) > self._most:
            del self._uids[next(iter(self._uids))]

    def snapshot(self) -> list[str]:
        return list(self._uids)

    def restore(self, uids: list[str]) -> None:
        for uid in uids:
            self.add(PodUid(uid))
