"""How far, and how surely, this cluster's runs are from what the artifact was calibrated on.

Calibration makes up for a drift, so that coverage alone does not show it. Here the remembered runs are held against
the artifact's own median and bound: half of them should stay below the one, 95 % below the other. Far without sure is
chance, sure without far is nothing worth a retraining: an alert wants both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vramcast.outcomes.calibration import CellState
from vramcast.outcomes.run_scores import MARGIN_RISK, Scored, gather, survival, upper_quantile

_HALF = 0.5
# Fewer runs than this say nothing: one of them would be a deviation.
LEAST_RUNS = 20


@dataclass(frozen=True, slots=True)
class Drift:
    """`ratio`: the typical run over the artifact's median, and `coverage`: the share that its own bound at a risk of
    0.05 would have held. `deviations`: by how many standard deviations of chance that is not what it should be."""

    runs: int
    ratio: float
    coverage: float
    deviations: float


def measure_drift(cell: CellState) -> Drift:
    """Of the runs that the cell remembers: after a shift, of those since then."""
    if not cell.scores:
        return Drift(0, 1.0, 1.0, 0.0)
    scored = gather(cell.scores)
    _, sure_of_median = _above(scored, _HALF)
    above_bound, sure_of_bound = _above(scored, MARGIN_RISK)
    enough = len(cell.scores) >= LEAST_RUNS
    return Drift(
        runs=len(cell.scores),
        ratio=math.exp(upper_quantile(scored.ratio, scored.censored, _HALF)),
        coverage=1.0 - above_bound,
        deviations=max(abs(sure_of_median), abs(sure_of_bound)) if enough else 0.0,
    )


def _above(scored: Scored, risk: float) -> tuple[float, float]:
    """The share above the artifact's bound at `risk`, and how many deviations that is from `risk`."""
    excess = scored.excess(risk)
    share = survival(excess, scored.censored)
    # A run that was stopped below the bound proves nothing about it.
    telling = int(np.count_nonzero(~scored.censored | (excess > 0)))
    return share, (share - risk) / math.sqrt(risk * (1.0 - risk) / max(telling, 1))
