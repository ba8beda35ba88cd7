"""Finished runs as scores, and the quantile that the next run stays below.

A score is log(peak / the artifact's median), together with the margin of the artifact's own bound. A run that died of
OOM, or was stopped half way, would have gone higher: its score is censored, and the Kaplan-Meier estimate gives its
share to the scores above it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

Floats = NDArray[np.float64]

# Typical margins at these risks, relative to the margin at a risk of 0.05.
_RISKS = tuple(math.log(risk) for risk in (0.001, 0.01, 0.05, 0.1, 0.5))
_WIDTHS = (2.4, 1.8, 1.0, 0.7, 0.0)
_LEAST_WIDTH = 0.05
MARGIN_RISK = 0.05  # the risk of a score's margin
# A run that died of OOM needed more than it had. This much more is assumed.
OOM_EXCESS = math.log(1.1)
# A peak this far from the artifact's median, up or down, is a mistake or a lie.
_LEAST_BELIEVABLE, _MOST_BELIEVABLE = 0.1, 10.0


@dataclass(frozen=True, slots=True)
class Score:
    """Rounded when made, so that stored scores are exactly those that were used."""

    ratio: float  # log(peak / the artifact's median)
    margin: float  # log(the artifact's bound at a risk of 0.05 / its median)
    censored: bool = False


@dataclass(frozen=True, slots=True)
class Scored:
    """Many scores as arrays of shape (scores,)."""

    ratio: Floats
    margin: Floats
    censored: NDArray[np.bool_]

    def excess(self, risk: float) -> Floats:
        """log(peak / the artifact's bound at `risk`) of each run."""
        return self.ratio - margin_width(risk) * self.margin

    def with_one_more(self, score: Score) -> Scored:
        return Scored(
            np.concatenate((self.ratio, (score.ratio,))),
            np.concatenate((self.margin, (score.margin,))),
            np.concatenate((self.censored, (score.censored,))),
        )

    def since(self, first: int) -> Scored:
        return Scored(self.ratio[first:], self.margin[first:], self.censored[first:])


def gather(scores: Sequence[Score]) -> Scored:
    return Scored(
        np.array([s.ratio for s in scores]),
        np.array([s.margin for s in scores]),
        np.array([s.censored for s in scores], dtype=np.bool_),
    )


def score_outcome(outcome: Outcome) -> Score | None:
    """None: nothing can be learned from it."""
    median = outcome.median_bytes / outcome.adjustment.median
    bound = outcome.bound_bytes / outcome.adjustment.bound
    died = outcome.ending is Ending.OOM
    peak = max(outcome.peak_bytes, outcome.bound_bytes) if died else outcome.peak_bytes
    if median <= 0 or bound <= 0 or peak <= 0 or not 0.0 < outcome.risk < 1.0:
        return None
    if not believable(outcome):
        return None
    ratio = math.log(peak / median) + (OOM_EXCESS if died else 0.0)
    margin = margin_of(median, bound, outcome.risk)
    return Score(round(ratio, 4), round(margin, 4), outcome.ending is not Ending.SUCCEEDED)


def believable(outcome: Outcome) -> bool:
    """An out-of-memory always is: its peak is the promise."""
    median = outcome.median_bytes / outcome.adjustment.median
    return outcome.ending is Ending.OOM or _LEAST_BELIEVABLE * median <= outcome.peak_bytes <= _MOST_BELIEVABLE * median


def margin_of_outcome(outcome: Outcome) -> float:
    """0 for a promise without a usable number."""
    median, bound = outcome.median_bytes / outcome.adjustment.median, outcome.bound_bytes / outcome.adjustment.bound
    return margin_of(median, bound, outcome.risk) if median > 0 and bound > 0 else 0.0


def margin_of(median_bytes: float, bound_bytes: float, risk: float) -> float:
    """At MARGIN_RISK, from a bound at any risk."""
    return max(0.0, math.log(bound_bytes / median_bytes)) / max(margin_width(risk), _LEAST_WIDTH)


@lru_cache(maxsize=1024)  # few risks are ever asked for
def margin_width(risk: float) -> float:
    """Interpolated linearly in log(risk)."""
    return float(np.interp(math.log(risk), _RISKS, _WIDTHS))


def upper_quantile(values: Floats, censored: NDArray[np.bool_], risk: float) -> float:
    """The value that the next run exceeds with a probability of at most `risk`; the largest if there are too few runs.

    The next run is counted as one more run above all others, which keeps the risk for any number of runs.
    """
    if not censored.any():
        rank = upper_rank(len(values), risk)
        return float(np.partition(values, rank)[rank])
    return upper_quantiles(values[np.newaxis, :], censored, [risk])[0]


def upper_quantiles(values: Floats, censored: NDArray[np.bool_], risks: Sequence[float]) -> list[float]:
    """The same of several rows at once, where some runs are censored. values: (risks, runs); censored: (runs,)"""
    count, rows = values.shape[1], np.arange(len(risks))
    order = np.lexsort((np.broadcast_to(censored, values.shape), values))
    at_risk = count + 1.0 - np.arange(count)
    survival = np.where(censored[order], 1.0, 1.0 - 1.0 / at_risk).cumprod(axis=1)
    reached = survival <= np.array(risks)[:, np.newaxis] + 1e-9
    # It only falls, so where the last one has not reached the risk none has, and the largest value is the answer.
    place = np.where(reached[:, -1], reached.argmax(axis=1), count - 1)
    return list(map(float, values[rows, order[rows, place]]))


def upper_rank(count: int, risk: float) -> int:
    """Where that value stands among so many whole runs: then the estimate is the share of the runs above."""
    return min(count - 1, max(0, math.ceil((count + 1) * (1.0 - risk - 1e-9)) - 1))


def survival(values: Floats, censored: NDArray[np.bool_]) -> float:
    """The share of these runs above 0, by the same estimate."""
    order = np.lexsort((censored, values))
    at_risk = len(values) - np.arange(len(values))
    ended = ~censored[order] & (values[order] <= 0)
    return float(np.prod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0)))
