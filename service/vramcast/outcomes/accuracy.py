"""How accurate the forecasts were: counters since the beginning, and a window of recent outcomes per group.

Groups are (family, level, product, truth). Beyond a limit, further groups are counted as `other`, so that the number of
label values stays bounded whatever pods claim.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from vramcast.hardware.utilization import FORECAST_COUNTERS, UtilizationCounter
from vramcast.outcomes.outcome import Outcome, Truth
from vramcast.outcomes.runs import Counted, Unmeasured
from vramcast.task.run_status import Ending
from vramcast.task.vocabulary import Architecture

# Observed peak over the median forecast.
ERROR_BUCKETS = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0)
# Promise over observed peak.
RESERVATION_BUCKETS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0, 3.0, 5.0)
# What one source says over what another says of the same run.
AGREEMENT_BUCKETS = (0.5, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.25, 2.0)
# Forecast minus observed.
UTILIZATION_BUCKETS = (-0.5, -0.3, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.3, 0.5)
# Measured time per step over the forecast.
STEP_BUCKETS = (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0, 10.0)
# About as many outcomes as it takes to tell a coverage of 95 % from 90 %.
WINDOW = 200
MOST_GROUPS = 80
# Single outcomes that are kept to be shown, since the start of this process.
_MOST_LATEST = 500
UNKNOWN = "unknown"
OTHER = "other"
_FAMILIES = frozenset(Architecture)
_LOG_UNIT = 1e-5


@dataclass(frozen=True, slots=True, order=True)
class Group:
    family: str
    level: str
    product: str
    truth: str = OTHER


@dataclass(slots=True)
class Tally:
    """A histogram that can be stored and restored. `counts`: by bucket; the last bucket is +Inf."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[str, int]]:
        running = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            running += count
            yield ("+Inf" if bound == math.inf else repr(float(bound))), running


@dataclass(slots=True)
class GroupAccuracy:
    """One group. `lately`: (log(observed / median), promise kept, 1 - risk) of the last outcomes."""

    endings: Counter[Ending] = field(default_factory=Counter)
    kept: int = 0
    error: Tally = field(default_factory=lambda: Tally(ERROR_BUCKETS))
    reservation: Tally = field(default_factory=lambda: Tally(RESERVATION_BUCKETS))
    utilization: dict[UtilizationCounter, Tally] = field(
        default_factory=lambda: {counter: Tally(UTILIZATION_BUCKETS) for counter in FORECAST_COUNTERS}
    )
    step: Tally = field(default_factory=lambda: Tally(STEP_BUCKETS))
    lately: deque[tuple[float, bool, float]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, outcome: Outcome) -> None:
        self.endings[outcome.ending] += 1
        self.kept += outcome.covered
        peak = max(outcome.peak_bytes, 1)
        ratio = peak / max(outcome.median_bytes, 1)
        # What a run that died of OOM would have used is unknown.
        if outcome.ending is not Ending.OOM:
            self.error.add(ratio)
            self.reservation.add(outcome.bound_bytes / peak)
        # Rounded to the unit in which it is stored, so that a restart restores exactly this value.
        log = round(math.log(ratio) / _LOG_UNIT) * _LOG_UNIT
        self.lately.append((log, outcome.covered, round(1.0 - outcome.risk, 6)))
        for counter, tally in self.utilization.items():
            forecast, observed = outcome.utilization_forecast.of(counter), outcome.utilization_observed.of(counter)
            if forecast is not None and observed is not None:
                tally.add(forecast - observed)
        if outcome.step_seconds_forecast and outcome.step_seconds_observed:
            self.step.add(outcome.step_seconds_observed / outcome.step_seconds_forecast)

    @property
    def bias(self) -> float:
        """Geometric mean of observed over forecast: 1.2 means that runs use 20 % more than forecast."""
        return math.exp(sum(log for log, _, _ in self.lately) / len(self.lately)) if self.lately else 1.0

    @property
    def coverage(self) -> tuple[float, float]:
        """Over the last outcomes: the share of promises kept, and the share that should be kept."""
        if not self.lately:
            return 1.0, 1.0
        count = len(self.lately)
        return sum(kept for _, kept, _ in self.lately) / count, sum(promised for _, _, promised in self.lately) / count


class Accuracy:
    """A section of the memory: `snapshot` and `restore` carry it over a restart, and with it who was counted."""

    def __init__(self) -> None:
        self.revision = 0
        self.groups: dict[Group, GroupAccuracy] = {}
        self.unmeasured: Counter[Unmeasured] = Counter()
        self.counted = Counted()
        # The same run's peak by two sources: the more trusted over the other.
        self.agreement: dict[tuple[Truth, Truth], Tally] = {}
        self.latest: deque[Outcome] = deque(maxlen=_MOST_LATEST)

    def record(self, outcome: Outcome) -> None:
        self.revision += 1
        self.latest.append(outcome)
        self.counted.add(outcome.uid)
        self.groups.setdefault(self._group(outcome), GroupAccuracy()).add(outcome)
        self._compare({truth: peak for truth, peak in outcome.peaks_bytes.items() if peak})

    def pass_over(self, uid: Any, why: Unmeasured) -> None:
        self.revision += 1
        self.counted.add(uid)
        self.unmeasured[why] += 1

    def _compare(self, peaks: Mapping[Truth, int]) -> None:
        for pair in combinations([truth for truth in Truth if truth in peaks], 2):
            trusted, other = pair
            self.agreement.setdefault(pair, Tally(AGREEMENT_BUCKETS)).add(peaks[trusted] / peaks[other])

    def _group(self, outcome: Outcome) -> Group:
        family = outcome.family if outcome.family in _FAMILIES else UNKNOWN
        group = Group(family, outcome.level, outcome.product or UNKNOWN, outcome.truth)
        if group in self.groups or len(self.groups) < MOST_GROUPS:
            return group
        return Group(OTHER, OTHER, OTHER, OTHER)

    # ------------------------------------------------------------------ over a restart

    def snapshot(self) -> dict[str, Any]:
        return {
            "counted": self.counted.snapshot(),
            "unmeasured": {reason.value: count for reason, count in self.unmeasured.items()},
            "groups": [_pack(group, accuracy) for group, accuracy in self.groups.items()],
        }

    def restore(self, stored: Mapping[str, Any] | None) -> None:
        """As it was; None forgets. Raises on what is damaged, and is as it was before then."""
        fresh = Accuracy()
        if stored is not None:
            fresh.counted.restore([str(uid) for uid in stored["counted"]])
            fresh.unmeasured.update({Unmeasured(reason): int(n) for reason, n in stored["unmeasured"].items()})
            fresh.groups.update(_unpack(entry) for entry in stored["groups"][: MOST_GROUPS + 1])
        self.groups, self.unmeasured, self.counted = fresh.groups, fresh.unmeasured, fresh.counted


def _pack(group: Group, accuracy: GroupAccuracy) -> dict[str, Any]:
    return {
        "group": [group.family, group.level, group.product, str(group.truth)],
        "endings": {ending.value: count for ending, count in accuracy.endings.items()},
        "kept": accuracy.kept,
        **{name: [*tally.counts, tally.total] for name, tally in _tallies(accuracy).items()},
        # A flat list of numbers, because a ConfigMap holds hundreds of them.
        "lately": [
            part for log, kept, promised in accuracy.lately for part in (round(log / _LOG_UNIT) * 2 + kept, promised)
        ],
    }


def _tallies(accuracy: GroupAccuracy) -> dict[str, Tally]:
    """By the name under which each is stored."""
    return {
        "error": accuracy.error,
        "reservation": accuracy.reservation,
        "step": accuracy.step,
        # The name from before there were other counters, so that a rollback can read it.
        "utilization": accuracy.utilization[UtilizationCounter.GPU_UTIL],
        "sm_active": accuracy.utilization[UtilizationCounter.SM_ACTIVE],
        "sm_occupancy": accuracy.utilization[UtilizationCounter.SM_OCCUPANCY],
    }


def _unpack(entry: Mapping[str, Any]) -> tuple[Group, GroupAccuracy]:
    # Versions before exit reports stored no truth.
    group = Group(*map(str, entry["group"]))
    accuracy = GroupAccuracy(
        Counter({Ending(ending): int(count) for ending, count in entry["endings"].items()}), int(entry["kept"])
    )
    for name, tally in _tallies(accuracy).items():
        # Earlier versions stored no step times, and of utilization only gpu_util.
        if name not in entry:
            continue
        *counts, total = entry[name]
        if len(counts) != len(tally.counts):
            raise ValueError(f"{name}: other buckets")
        tally.counts, tally.total = [int(count) for count in counts], float(total)
    lately = entry["lately"]
    accuracy.lately.extend(
        ((int(packed) // 2) * _LOG_UNIT, bool(int(packed) % 2), float(promised))
        for packed, promised in zip(lately[::2], lately[1::2], strict=True)
    )
    return group, accuracy
