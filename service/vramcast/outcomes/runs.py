"""Runs: what each pod with a promise really used, from the first sample to the last.

A run ends as an outcome or as unmeasured, and counts once either way. To be measured, telemetry must have seen most of
it and told it apart from its neighbours. An OOM is an outcome even without telemetry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from vramcast.forecast.forecast import UNADJUSTED, Adjustment
from vramcast.hardware.utilization import FORECAST_COUNTERS, Utilization, UtilizationCounter
from vramcast.names import PodUid, Product
from vramcast.outcomes.attribution import LEAST_USED_MIB
from vramcast.outcomes.outcome import Truth
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
class Watched:
    """What one source has seen of a run. `gap_seconds`: samples further apart leave a gap."""

    since: float
    gap_seconds: float
    seen_seconds: float = 0.0
    last_at: float | None = None
    peak_mib: int = 0

    def see(self, at: float) -> bool:
        """Samples come in order. False: it is not newer than the last, so it is a duplicate."""
        if at < self.since or (self.last_at is not None and at <= self.last_at):
            return False
        # A sample covers the time since the last one, up to the length of a gap.
        self.seen_seconds += min(at - (self.since if self.last_at is None else self.last_at), self.gap_seconds)
        self.last_at = at
        return True

    def saw_most(self, ended_at: float) -> bool:
        return self.seen_seconds >= _LEAST_SEEN * (ended_at - self.since)


@dataclass(slots=True)
class Run:
    """One pod's run so far. `watched`: by the samples that count; `sources`: by each kind, whether it counts or not."""

    pod: PodRecord
    since: float
    gap_seconds: float
    product: Product
    median_bytes: int | None = None
    bound_bytes: int | None = None
    adjustment: Adjustment = UNADJUSTED
    peak_truth: Truth = Truth.ENDING
    last_mib: int | None = None
    clear: int = 0
    unclear: int = 0
    # By counter: the sum and the number of samples.
    busy: dict[UtilizationCounter, tuple[float, int]] = field(default_factory=dict)
    watched: Watched = field(init=False)
    sources: dict[Truth, Watched] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watched = Watched(self.since, self.gap_seconds)

    def observe(self, at: float, used_mib: int, utilization: Utilization, truth: Truth = Truth.ALONE) -> None:
        if not self.watched.see(at):
            return
        self.clear += 1
        self.last_mib = used_mib
        if used_mib > self.peak_mib:
            self.watched.peak_mib, self.peak_truth = used_mib, truth
        self.compare(at, used_mib, truth)
        # Until it uses GPU memory, the pod is pulling its image or starting.
        for counter in FORECAST_COUNTERS if used_mib else ():
            share = utilization.of(counter)
            if share is not None:
                total, count = self.busy.get(counter, (0.0, 0))
                self.busy[counter] = total + share, count + 1

    def miss(self, at: float) -> None:
        """The pod was there but could not be told apart from its neighbours."""
        if self.watched.see(at):
            self.unclear += 1

    def compare(self, at: float, used_mib: int, truth: Truth) -> None:
        """What one source says, whether or not it counts."""
        source = self.sources.setdefault(truth, Watched(self.since, self.gap_seconds))
        if source.see(at):
            source.peak_mib = max(source.peak_mib, used_mib)

    def peaks_mib(self, ended_at: float) -> dict[Truth, int]:
        """By each source that saw most of the run."""
        return {
            truth: source.peak_mib
            for truth, source in self.sources.items()
            if source.peak_mib >= LEAST_USED_MIB and source.saw_most(ended_at)
        }

    def judge(self, ended_at: float, min_run_seconds: float) -> Unmeasured | None:
        """None: the run is measured."""
        lasted = ended_at - self.since
        if lasted < min_run_seconds:
            return Unmeasured.TOO_SHORT
        if not self.clear:
            return Unmeasured.UNCLEAR if self.unclear else Unmeasured.NO_TELEMETRY
        if self.unclear > _MOST_UNCLEAR * (self.clear + self.unclear):
            return Unmeasured.UNCLEAR
        if not self.watched.saw_most(ended_at):
            return Unmeasured.PARTLY_SEEN
        return Unmeasured.UNUSED if self.peak_mib < LEAST_USED_MIB else None

    @property
    def peak_mib(self) -> int:
        return self.watched.peak_mib

    @property
    def last_at(self) -> float | None:
        return self.watched.last_at

    @property
    def utilization(self) -> Utilization:
        """The mean of every counter that was seen."""
        return Utilization(**{counter.value: total / count for counter, (total, count) in self.busy.items()})


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
