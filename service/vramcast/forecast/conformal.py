"""From a median and a spread to a bound whose risk is kept: one-sided conformal factors.

A score is by how many spreads a run exceeded its median forecast (in logarithms). The factor for a risk is the
quantile of the scores of runs that the model had not seen. Runs that died of OOM count with the score that their
GPU's size proves, which is a floor. Cells are (product, family, what is known), and where a cell has seen too little
the next wider one answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

RISKS = (0.5, 0.1, 0.05, 0.01, 0.001)
# The correction for small samples keeps the risk with any number of scores; fewer than this rest on one or two nets.
MIN_SCORES = 40
# A spread narrower than this is rounding: one allocator block of a small run.
MIN_SPREAD = 0.0008
# From here on a forecast says that it looks beyond what the model was trained on.
NOVEL = 0.5
NOVEL_MARGIN = 0.3
_ANY = "*"


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a run belongs; wider cells are made by forgetting."""

    product: str
    family: str
    knowledge: str

    def widening(self) -> Iterable[str]:
        yield f"{self.product}/{self.family}/{self.knowledge}"
        yield f"{self.product}/{_ANY}/{self.knowledge}"
        yield f"{_ANY}/{self.family}/{self.knowledge}"
        yield f"{_ANY}/{_ANY}/{self.knowledge}"
        yield f"{_ANY}/{_ANY}/{_ANY}"


@dataclass(frozen=True, slots=True)
class Factors:
    """By risk, how many spreads above the median the bound stands; `scores` says on how many runs that rests."""

    scores: int
    by_risk: Mapping[float, float]

    def margin(self, spreads: Spreads, risk: float) -> float:
        """In logarithms; never less for less risk. Between the table's risks, straight on a logarithmic scale."""
        risks = sorted(self.by_risk, reverse=True)
        margins = list(accumulate((spreads.at(known) * self.by_risk[known] for known in risks), max))
        clamped = min(max(risk, risks[-1]), risks[0])
        for (high, less), (low, more) in pairwise(zip(risks, margins, strict=True)):
            if clamped >= low:
                return less + math.log(high / clamped) / math.log(high / low) * (more - less)
        return margins[-1]


@dataclass(frozen=True, slots=True)
class Calibration:
    cells: Mapping[str, Factors]

    def factors(self, cell: Cell) -> Factors:
        """The narrowest cell that has seen enough."""
        for key in cell.widening():
            found = self.cells.get(key)
            if found is not None:
                return found
        raise KeyError(f"no calibration for {cell}, not even a pooled one")


@dataclass(frozen=True, slots=True)
class Spreads:
    """Widths of the upper tail in logarithms, by risk; bounds at other risks use the nearest."""

    by_risk: Mapping[float, float]

    def at(self, risk: float) -> float:
        nearest = min(self.by_risk, key=lambda known: abs(math.log(known) - math.log(max(risk, 1e-6))))
        return max(self.by_risk[nearest], MIN_SPREAD)


def bound(median_bytes: float, spreads: Spreads, factors: Factors, risk: float, novelty: float) -> float:
    """Never below the median; a description far from the training data gets a wider spread.

    Beyond `NOVEL` a margin comes on top: where replays are exact the spread is next to nothing, and any multiple of it
    would still be.
    """
    log_margin = factors.margin(spreads, risk) * (1.0 + novelty) + NOVEL_MARGIN * max(0.0, novelty - NOVEL)
    return median_bytes * math.exp(max(0.0, log_margin))


def calibrate(scored: Iterable[tuple[Cell, Mapping[float, float]]]) -> Calibration:
    """From runs outside the training data: their cell, and their score at each risk's spread."""
    gathered: dict[str, list[Mapping[float, float]]] = {}
    for cell, scores in scored:
        for key in cell.widening():
            gathered.setdefault(key, []).append(scores)
    pooled = f"{_ANY}/{_ANY}/{_ANY}"
    return Calibration({
        key: Factors(len(scores), {risk: conformal_quantile([s[risk] for s in scores], risk) for risk in RISKS})
        for key, scores in gathered.items()
        if len(scores) >= MIN_SCORES or key == pooled
    })  # fmt: skip


def conformal_quantile(scores: Sequence[float], risk: float) -> float:
    """The score that a new run exceeds with probability `risk` at most; the largest where there are too few."""
    ordered = sorted(scores)
    rank = math.ceil((len(ordered) + 1) * (1.0 - risk))
    return ordered[min(rank, len(ordered)) - 1]
