"""Finished runs as scores, some of them only floors, and the quantile that a next run stays below.

A score is by how much a run exceeded the artifact's median, in logarithms, beside the margin that the artifact's own
bound had left. A run that died of OOM, or was stopped half way, would have gone higher: its score is censored, and its
share counts for the scores above it (Kaplan and Meier's estimate).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

Floats = NDArray[np.float64]

# A margin at one risk in terms of that at another: their usual proportions, the margin at a risk of 0.05 being 1.
_RISKS = tuple(math.log(risk) for risk in (0.001, 0.01, 0.05, 0.1, 0.5))
_WIDTHS = (2.4, 1.8, 1.0, 0.7, 0.0)
_LEAST_WIDTH = 0.05
MARGIN_RISK = 0.05  # that of a score's margin
# Who died of OOM needed more than what it died at; by so much it is believed to have been.
OOM_EXCESS = math.log(1.1)
# No run takes a hundredth or a hundredfold of its forecast: telemetry does.
_LARGEST_RATIO = math.log(100.0)


@dataclass(frozen=True, slots=True)
class Score:
    """Rounded when made, so that what is stored is what was used."""

    ratio: float  # log(peak / the artifact's median)
    margin: float  # log(the artifact's bound at a risk of 0.05 / its median)
    censored: bool = False


@dataclass(frozen=True, slots=True)
class Scored:
    """Many of them, as arrays of shape (scores,)."""

    ratio: Floats
    margin: Floats
    censored: NDArray[np.bool_]

    def excess(self, risk: float) -> Floats:
        """By how much each run exceeded the artifact's bound at `risk`, in logarithms."""
        return self.ratio - margin_width(risk) * self.margin


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
    ratio = math.log(peak / median) + (OOM_EXCESS if died else 0.0)
    if abs(ratio) > _LARGEST_RATIO:
        return None
    margin = max(0.0, math.log(bound / median)) / max(margin_width(outcome.risk), _LEAST_WIDTH)
    return Score(round(ratio, 4), round(margin, 4), outcome.ending is not Ending.SUCCEEDED)


def margin_width(risk: float) -> float:
    """Between the table's risks, straight on a logarithmic scale."""
    return float(np.interp(math.log(risk), _RISKS, _WIDTHS))


def upper_quantile(values: Floats, censored: NDArray[np.bool_], risk: float) -> float:
    """What the next run exceeds with probability `risk` at most; the largest where there are too few to say.

    The next run stands among the others, above them all: that keeps the risk with any number of runs.
    """
    order = np.lexsort((censored, values))
    at_risk = len(values) + 1.0 - np.arange(len(values))
    survival = np.cumprod(np.where(censored[order], 1.0, 1.0 - 1.0 / at_risk))
    reached = np.flatnonzero(survival <= risk + 1e-9)
    return float(values[order[reached[0]]] if len(reached) else values[order[-1]])


def survival(values: Floats, censored: NDArray[np.bool_]) -> float:
    """The share of runs above 0, by the same estimate, of the runs alone."""
    order = np.lexsort((censored, values))
    at_risk = len(values) - np.arange(len(values))
    ended = ~censored[order] & (values[order] <= 0)
    return float(np.prod(np.where(ended, 1.0 - 1.0 / at_risk, 1.0)))
