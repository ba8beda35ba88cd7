"""Runs: what each pod with a promise really used, from the first sample to the last.

A run ends as an outcome or as unmeasured, and counts once either way. To be measured, telemetry must have seen most of
it and told it apart from its neighbours. An OOM is an outcome even without telemetry.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vramcast.forecast.forecast import UNADJUSTED, Adjustment
from vramcast.names import PodUid, Product
from vramcast.outcomes.attribution import LEAST_USED_MIB
from vramcast.task.pod import PodRecord

# A run with a larger share of ambiguous samples is not measured.
_MOST_UNCLEAR = 0.1
# Nor is a run of which telemetry saw a smaller part.
_LEAST_SEEN = 0.5


class Unmeasured(StrEnum):
    """Why a run has no outcome; a metric label, so the set is closed."""

    TOO_SHORT = "too_short"
    NO_TELEMETRY = "no_telemetry"
    PARTLY_SEEN = "partly_seen"
    UNUSED = "unused"  # it never used GPU memory
    UNCLEAR = "unclear"  # it shared its GPU, and nothing shows which memory was its own
    UNKNOWN_END = "unknown_end"  # it is gone, and the API server did not show how it ended


@dataclass(slots=True)
class Run:
    """One pod's run so far. `gap_seconds`: samples further apart leave a gap."""

    pod: PodRecord
    since: float
    gap_seconds: float
    product: Product
    median_bytes: int | None = None
    bound_bytes: int | None = None
    adjustment: Adjustment = UNADJUSTED
    peak_mib: int = 0
    peak_by_agent: bool = False
    last_mib: int | None = None
    clear: int = 0
    unclear: int = 0
    seen_seconds: float = 0.0
    utilization_sum: float = 0.0
    utilization_count: int = 0
    last_at: float | None = None

    def observe(self, at: float, used_mib: int, utilization: float | None, *, by_agent: bool = False) -> None:
        """Samples come in order. One that is not newer than the last is a duplicate."""
        if not self._is_news(at):
            return
        self.clear += 1
        self.last_mib = used_mib
        if used_mib > self.peak_mib:
            self.peak_mib, self.peak_by_agent = used_mib, by_agent
        # Until it uses GPU memory, the pod is pulling its image or starting.
        if utilization is not None and used_mib:
            self.utilization_sum += utilization
            self.utilization_count += 1

    def miss(self, at: float) -> None:
        """The pod was there but could not be told apart from its neighbours."""
        if self._is_news(at):
            self.unclear += 1

    def judge(self, ended_at: float, min_run_seconds: float) -> Unmeasured | None:
        """None: the run is measured."""
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
        # A sample covers the time since the last one, up to the length of a gap.
        self.seen_seconds += min(at - (self.since if self.last_at is None else self.last_at), self.gap_seconds)
        self.last_at = at
        return True


class Counted:
    """The latest pods that were counted, so that a restart does not count them again."""

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
