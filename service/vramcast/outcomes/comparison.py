"""Compares the active model with a candidate on the same outcomes.

Each is judged by what it would have promised at that moment, with what it had learned by then. The measure is the
pinball loss of the log bound: at a risk of 0.05, falling short by 10 % costs as much as reserving 190 % too much. With
too few outcomes there is no verdict.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import mean, median
from typing import Any

from vramcast.forecast.forecast import Forecast
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_scores import OOM_EXCESS
from vramcast.task.run_status import Ending

# As many outcomes as a calibrator's cell keeps.
WINDOW = 200
# A loss this much higher, or a coverage this much lower, still counts as no worse.
LOSS_MARGIN = 1.02
COVERAGE_MARGIN = 0.02
_UNIT = 1e5


class Standing(StrEnum):
    """A candidate's standing; a metric label, so the set is closed."""

    NONE = "none"
    UNUSABLE = "unusable"
    WAITING = "waiting"  # for outcomes
    READY = "ready"  # no worse than the active one
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One model on one outcome. None: the run did not finish, so it proves nothing about that."""

    loss: float
    kept: bool
    promised: float  # 1 - risk
    error: float | None  # |log(observed / median)|
    reserved: float | None  # log(promise / observed)


@dataclass(frozen=True, slots=True)
class Figures:
    """One model on all compared outcomes."""

    outcomes: int
    loss: float
    coverage: float
    promised: float
    error_ratio: float
    over_reservation_ratio: float


def restate(outcome: Outcome, forecast: Forecast) -> Outcome:
    """The outcome as if this forecast had been promised."""
    died = outcome.ending is Ending.OOM
    # With a larger promise, the run might have survived.
    spared = died and forecast.bound_bytes > outcome.peak_bytes
    return replace(
        outcome,
        family=forecast.family,
        model_version=forecast.model_version,
        risk=forecast.risk,
        median_bytes=forecast.median_bytes,
        bound_bytes=forecast.bound_bytes,
        ending=Ending.FAILED if spared else outcome.ending,
        adjustment=forecast.adjustment,
    )


def judge(outcome: Outcome) -> Verdict:
    finished = outcome.ending is Ending.SUCCEEDED
    log_peak = math.log(max(outcome.peak_bytes, 1)) + (OOM_EXCESS if outcome.ending is Ending.OOM else 0.0)
    room = math.log(max(outcome.bound_bytes, 1)) - log_peak
    price = -(1.0 - outcome.risk) * room if room < 0 else outcome.risk * room * finished
    error = abs(log_peak - math.log(max(outcome.median_bytes, 1)))
    return Verdict(
        _rounded(price),
        outcome.covered,
        round(1.0 - outcome.risk, 5),
        _rounded(error) if finished else None,
        _rounded(room) if finished else None,
    )


@dataclass(slots=True)
class Comparison:
    active: deque[Verdict] = field(default_factory=lambda: deque(maxlen=WINDOW))
    candidate: deque[Verdict] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def __len__(self) -> int:
        return len(self.candidate)

    def add(self, active: Outcome, candidate: Outcome) -> None:
        """The same run, restated for each model."""
        self.active.append(judge(active))
        self.candidate.append(judge(candidate))

    def standing(self, least_outcomes: int) -> Standing:
        if len(self) < least_outcomes:
            return Standing.WAITING
        active, candidate = summarize(self.active), summarize(self.candidate)
        owed = min(active.coverage, candidate.promised) - COVERAGE_MARGIN
        fit = candidate.loss <= LOSS_MARGIN * active.loss + 1 / _UNIT and candidate.coverage >= owed
        return Standing.READY if fit else Standing.WORSE


def summarize(verdicts: Sequence[Verdict] | deque[Verdict]) -> Figures:
    if not verdicts:
        return Figures(0, 0.0, 1.0, 1.0, 0.0, 1.0)
    return Figures(
        outcomes=len(verdicts),
        loss=mean(verdict.loss for verdict in verdicts),
        coverage=mean(float(verdict.kept) for verdict in verdicts),
        promised=mean(verdict.promised for verdict in verdicts),
        error_ratio=math.expm1(_median(verdict.error for verdict in verdicts)),
        over_reservation_ratio=math.exp(_median(verdict.reserved for verdict in verdicts)),
    )


def _median(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return median(known) if known else 0.0


def _rounded(value: float) -> float:
    """What is stored is exactly what was judged."""
    return round(value * _UNIT) / _UNIT


def comparison_json(comparison: Comparison) -> dict[str, list[Any]]:
    """Flat lists of integers, because a ConfigMap holds hundreds of them."""
    return {
        name: [part for verdict in verdicts for part in _pack(verdict)]
        for name, verdicts in (("active", comparison.active), ("candidate", comparison.candidate))
    }


def read_comparison(document: Mapping[str, Sequence[Any]]) -> Comparison:
    """Raises ValueError, KeyError or TypeError if the data is damaged."""
    comparison = Comparison()
    for name, verdicts in (("active", comparison.active), ("candidate", comparison.candidate)):
        parts = document[name]
        verdicts.extend(_unpack(*parts[start : start + 5]) for start in range(0, len(parts), 5))
    if len(comparison.active) != len(comparison.candidate):
        raise ValueError("active and candidate: expected the same number of outcomes")
    return comparison


def _pack(verdict: Verdict) -> tuple[int | None, ...]:
    numbers = (verdict.loss, float(verdict.kept), verdict.promised, verdict.error, verdict.reserved)
    return tuple(None if number is None else round(number * _UNIT) for number in numbers)


def _unpack(loss: int, kept: int, promised: int, error: int | None, reserved: int | None) -> Verdict:
    return Verdict(
        int(loss) / _UNIT,
        bool(kept),
        int(promised) / _UNIT,
        None if error is None else int(error) / _UNIT,
        None if reserved is None else int(reserved) / _UNIT,
    )
