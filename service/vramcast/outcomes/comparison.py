"""Two models beside each other on the same outcomes: the active one, and a candidate that nobody asks yet.

Both are judged by what they would have promised at that moment, each with what it had learned by then. The measure is
the pinball loss of the bound, in logarithms: at a risk of 0.05, falling short by a tenth costs as much as reserving
nineteen tenths too much. What is too little to tell is not judged.
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

# Of the last outcomes, as many as a calibrator's cell remembers.
WINDOW = 200
# No worse: a loss by so much higher, or a coverage by so much lower, is chance or worth a newer model.
LOSS_MARGIN = 1.02
COVERAGE_MARGIN = 0.02
_UNIT = 1e5


class Standing(StrEnum):
    """Of a candidate; a metric label, so the set is closed."""

    NONE = "none"
    UNUSABLE = "unusable"
    WAITING = "waiting"  # for outcomes
    READY = "ready"  # no worse than the active one
    WORSE = "worse"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One model on one outcome. None: the run was not seen to its end, and proves nothing there."""

    loss: float
    kept: bool
    promised: float  # 1 - risk
    error: float | None  # log of observed over median, without its sign
    reserved: float | None  # log of promise over observed


@dataclass(frozen=True, slots=True)
class Figures:
    """One model on all compared outcomes."""

    outcomes: int
    loss: float
    coverage: float
    promised: float
    error_ratio: float
    over_reservation_ratio: float


def retell(outcome: Outcome, said: Forecast) -> Outcome:
    """The run as it would have been judged under another promise."""
    died = outcome.ending is Ending.OOM
    # With more than what it died at, it is not known whether it would have died.
    spared = died and said.bound_bytes > outcome.peak_bytes
    return replace(
        outcome,
        family=said.family,
        model_version=said.model_version,
        risk=said.risk,
        median_bytes=said.median_bytes,
        bound_bytes=said.bound_bytes,
        ending=Ending.FAILED if spared else outcome.ending,
        adjustment=said.adjustment,
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
        """The same run, as each of them would have promised."""
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
    """What is stored is what was judged."""
    return round(value * _UNIT) / _UNIT


def comparison_json(comparison: Comparison) -> dict[str, list[Any]]:
    """Flat and whole numbers: there are hundreds of them in a ConfigMap."""
    return {
        name: [part for verdict in verdicts for part in _pack(verdict)]
        for name, verdicts in (("active", comparison.active), ("candidate", comparison.candidate))
    }


def read_comparison(document: Mapping[str, Sequence[Any]]) -> Comparison:
    """Raises ValueError, KeyError or TypeError for what is none."""
    comparison = Comparison()
    for name, verdicts in (("active", comparison.active), ("candidate", comparison.candidate)):
        parts = document[name]
        verdicts.extend(_unpack(*parts[start : start + 5]) for start in range(0, len(parts), 5))
    if len(comparison.active) != len(comparison.candidate):
        raise ValueError("active model and candidate: expected as many outcomes of each")
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
