"""How far this cluster's runs are from those that the artifact was calibrated on, and how certain that is.

Calibration corrects drift, so coverage alone does not show it. Here recent runs are compared with the artifact's own
median and bound: half should stay below the one, 95 % below the other. A large distance may be chance, and a certain
but small one is not worth retraining. An alert needs both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from vramcast.outcomes.calibration import CellState
from vramcast.outcomes.run_scores import MARGIN_RISK, Scored, gather, survival, upper_quantile

_HALF = 0.5
# With fewer runs, a single one would look like drift.
LEAST_RUNS = 20


@dataclass(frozen=True, slots=True)
class Drift:
    """`ratio`: the typical run over the artifact's median. `coverage`: the share of runs within its own bound at a risk
    of 0.05. `deviations`: the distance from what is expected, in standard deviations."""

    runs: int
    ratio: float
    coverage: float
    deviations: float


def measure_drift(cell: CellState) -> Drift:
    """Of the runs in the cell; after a shift, only of those since then."""
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
    """The share above the artifact's bound at `risk`, and its distance from `risk` in standard deviations."""
    excess = scored.excess(risk)
    share = survival(excess, scored.censored)
    # A run that was stopped below the bound proves nothing.
    telling = int(np.count_nonzero(~scored.censored | (excess > 0)))
    return share, (share - risk) / math.sqrt(risk * (1.0 - risk) / max(telling, 1))
