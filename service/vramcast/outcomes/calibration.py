"""Bounds that learn from this cluster's runs: adaptive conformal inference per (GPU product, family and regime).

The artifact's bound rests on runs elsewhere. Here each finished run is a score (run_scores.py), and a cell keeps the
latest. The conformal quantile of their excesses moves the artifact's bound, and the typical run moves its median. Three
rules keep that honest while runs are few or conditions change:

- *Reach*: n runs cannot measure a risk below 1/(n+1). The correction at the lowest measurable risk applies below it,
  unless the runs lie so close together that a bound far above them is clearly too wide.
- *Level*: more misses than promised lower the targeted risk, fewer raise it (Gibbs and Candès). That makes up for what
  scores cannot show, such as how far above its bound a run would have gone that died there.
- *Shifts*: if new runs clearly differ from older ones (a new driver, a new framework), the older ones are discarded.
- *No run alone*: the highest run counts as one step above the next, and a few runs lower nothing. What one job says
  about itself may be false, and these bounds are everybody's.

A correction moves up in bounded steps, and down by a share of the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from vramcast.forecast.forecast import RISKS, UNADJUSTED, Adjustment, Forecast
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_scores import (
    Floats,
    Score,
    Scored,
    gather,
    margin_of,
    margin_width,
    score_outcome,
    upper_quantiles,
    upper_rank,
)
from vramcast.task.run_status import Ending
from vramcast.task.vocabulary import Architecture

MEDIAN_RISK = RISKS[0]
# Risks of the bounds, ascending, for interpolation.
_BOUND_RISKS = RISKS[1:]
_LOG_RISKS = tuple(math.log(risk) for risk in reversed(_BOUND_RISKS))
_BOUND_WIDTHS = tuple(margin_width(risk) for risk in RISKS[1:])
_FAMILIES = frozenset(Architecture)
_UNNAMED = "unknown"  # a summary without an architecture, or a profile with an unknown one


@dataclass(frozen=True, slots=True)
class Tuning:
    """Chosen with bench/adaptive.py. docs/benchmarks/adaptive.md has the variants that lost."""

    window: int = 200  # runs that a cell keeps
    trusted: int = 20  # runs after which a cell ignores the prior
    widest_step: float = math.log(1.10)  # a run
    widest_oom_step: float = math.log(1.25)
    tightest_step: float = math.log(1.03)
    tightest_share: float = 0.7  # of the way until near the target, if that is more
    clear_runs: int = 5  # few runs that may show that a bound is clearly too wide
    clear_margin: float = 1.3  # by how much more than a normal law's runs may scatter
    clearly_too_wide: float = math.log(0.67)
    least_spread: float = 0.01
    gain: float = 0.01  # of the level per covered run
    level_range: tuple[float, float] = (0.3, 1.5)
    shift_runs: int = 20  # the newest runs, compared with the older ones
    shift_deviations: float = 4.0  # between their rank sums
    correction_range: tuple[float, float] = (math.log(0.2), math.log(4.0))


DEFAULT_TUNING = Tuning()
_NEAR = math.log(1.08)
_WIDE = math.log(1.5)
# More products and families than a cluster has. Beyond this, the cell that was quiet for longest is dropped.
MAX_CELLS = 96


@dataclass(slots=True)
class CellState:
    """One product and family, with the regime behind a slash if it is not the plain one.

    `corrections` are logarithms: of the median, then of the bound at each smaller risk of RISKS.
    """

    product: str
    family: str
    scores: list[Score] = field(default_factory=list)
    corrections: tuple[float, ...] = (0.0,) * len(RISKS)
    level: float = 1.0
    outcomes: int = 0
    misses: int = 0
    ooms: int = 0
    shifts: int = 0
    _scored: Scored | None = field(default=None, init=False, repr=False, compare=False)  # of `scores`

    def correction(self, risk: float, margin: float = 0.0) -> float:
        """Of a bound with this margin, interpolated linearly in log(risk) and constant beyond the table."""
        rising = _rising(self.corrections[1:], min(margin, self.least_margin))
        if risk in _BOUND_RISKS:
            return rising[_BOUND_RISKS.index(risk)]
        return float(np.interp(math.log(risk), _LOG_RISKS, rising[::-1]))

    @property
    def least_margin(self) -> float:
        """Bounds of runs like these are at least so far apart. It matters where the artifact is far too careful."""
        least = float(self.scored.margin.min()) if self.scores else 0.0
        return least if least >= _WIDE else 0.0

    @property
    def scored(self) -> Scored:
        """The scores as arrays."""
        known = self._scored
        return gather(self.scores) if known is None else known

    @property
    def median_correction(self) -> float:
        return self.corrections[0]

    def learn(self, score: Score, risk: float, *, missed: bool, died: bool, prior: float, tuning: Tuning) -> None:
        """`prior`: the assumed correction while the cell has too few runs."""
        self.outcomes += 1
        self.misses += missed
        self.ooms += died
        self._aim(score, risk, tuning)
        scored = self.scored.with_one_more(score).since(-tuning.window)
        finished = np.flatnonzero(~scored.censored)
        if shifted(scored.ratio[finished], tuning):
            scored = scored.since(int(finished[-tuning.shift_runs]))
            self.shifts += 1
            self.level = 1.0
        self.scores.append(score)
        del self.scores[: -len(scored.ratio)]
        self._scored = scored
        widest = tuning.widest_oom_step if died else tuning.widest_step
        wanted = self._wanted(scored, prior, tuning)
        # A new kind of run comes down fast, and a known one slowly: its last few runs say less than all before them.
        share = tuning.tightest_share if len(self.scores) < tuning.trusted else 0.0
        few = len(self.scores) < tuning.clear_runs
        steps = [
            _clip(target - now, (0.0 if few else -max(tuning.tightest_step, share * (now - target - _NEAR)), widest))
            for target, now in zip(wanted, self.corrections, strict=True)
        ]
        moved = [_clip(now + step, tuning.correction_range) for now, step in zip(self.corrections, steps, strict=True)]
        bounds = _rising(moved[1:], self.least_margin)
        self.corrections = tuple(round(value, 5) for value in (moved[0], *bounds))

    def _aim(self, score: Score, risk: float, tuning: Tuning) -> None:
        """Judge the run by the bound that it would get now: its promise may predate everything learned since.

        A run that was stopped below the bound proves nothing. While a cell learns its first runs, misses are expected.
        """
        missed = score.ratio - margin_width(risk) * score.margin > self.correction(risk, score.margin)
        if len(self.scores) < tuning.trusted or (score.censored and not missed):
            return
        step = tuning.gain * (1.0 - missed / risk)
        self.level = round(_clip(self.level + step, tuning.level_range), 5)

    def _wanted(self, scored: Scored, prior: float, tuning: Tuning) -> list[float]:
        count = len(scored.ratio)
        trust = min(1.0, (1.0 + 4.0 / tuning.trusted) * count / (count + 4.0))
        reach = 1.0 / (count + 1.0)
        wanted = []
        aimed = [max(risk if risk == MEDIAN_RISK else risk * self.level, reach) for risk in RISKS]
        quantiles = _quantiles(scored, [max(risk, reach) for risk in RISKS], aimed, tuning.widest_step)
        for risk, quantile in zip(RISKS, quantiles, strict=True):
            target = trust * quantile + (1.0 - trust) * prior
            if risk != MEDIAN_RISK and tuning.clear_runs <= count < tuning.trusted and not scored.censored.any():
                enough = _clearly_enough(scored, risk, tuning)
                target = min(target, enough) if enough < tuning.clearly_too_wide else target
            wanted.append(target)
        return wanted


def _quantiles(scored: Scored, risks: Sequence[float], aimed: Sequence[float], step: float) -> list[float]:
    """Of the excesses over the bound at each risk, with the highest one at most a step above the next."""
    # (risks, scores): all are put in order at once, because that is most of what learning a run takes.
    widths = np.array([margin_width(risk) for risk in risks])
    excess = scored.ratio - widths[:, np.newaxis] * scored.margin
    count, rows = excess.shape[1], np.arange(len(risks))
    if not scored.censored.any():
        # Nobody asks which run it was, and without that the order takes a third of the time.
        excess.sort(axis=1)
        below = excess[:, -2] if count > 1 else 0.0
        excess[:, -1] = np.minimum(excess[:, -1], below + step)
        return list(map(float, excess[rows, [upper_rank(count, risk) for risk in aimed]]))
    order = excess.argsort(axis=1)
    below = excess[rows, order[:, -2]] if count > 1 else 0.0
    excess[rows, order[:, -1]] = np.minimum(excess[rows, order[:, -1]], below + step)
    return upper_quantiles(excess, scored.censored, aimed)


def _rising(corrections: Sequence[float], margin: float) -> list[float]:
    """Of bounds with this margin, at falling risk: less risk never means less memory."""
    highest, rising = -math.inf, []
    for correction, width in zip(corrections, _BOUND_WIDTHS, strict=True):
        highest = max(highest, correction + margin * width)
        rising.append(highest - margin * width)
    return rising


def _clearly_enough(scored: Scored, risk: float, tuning: Tuning) -> float:
    """The correction that a prediction interval asks for, wider than a normal law's."""
    count = len(scored.ratio)
    spread = max(float(scored.ratio.std(ddof=1)), tuning.least_spread)
    # Close to the quantile of Student's t.
    deviations = NormalDist().inv_cdf(1.0 - risk) * math.sqrt(1.0 + 1.0 / count) * (1.0 + 2.0 / count)
    above = float(scored.ratio.mean()) + tuning.clear_margin * deviations * spread
    return above - margin_width(risk) * float(scored.margin.min())


def shifted(ratios: Floats, tuning: Tuning) -> bool:
    """Do the newest runs clearly differ from the older ones? A rank-sum test (Mann and Whitney)."""
    new, old = tuning.shift_runs, len(ratios) - tuning.shift_runs
    if old < new:
        return False
    older, newer = np.sort(ratios[:old]), ratios[old:]
    # How many older runs are below each new one; an equal one is half below.
    below = (older.searchsorted(newer, "left") + older.searchsorted(newer, "right")).sum() / 2.0
    deviation = math.sqrt(new * old * (len(ratios) + 1) / 12)
    return abs(float(below) - new * old / 2) > tuning.shift_deviations * deviation


class Calibrator:
    """All cells for one version of the artifact: scores against another model do not apply to it.

    `record` belongs to one thread; `adjustment` may be called from any.
    """

    def __init__(self, model_version: str, tuning: Tuning = DEFAULT_TUNING) -> None:
        self.model_version = model_version
        self.revision = 0
        self.ignored = 0  # outcomes of other models, or without a usable number
        self._tuning = tuning
        self._cells: dict[tuple[str, str], CellState] = {}
        self._priors: dict[str, float] = {}

    def adjustment_of(self, forecast: Forecast, regime: str) -> Adjustment:
        margin = margin_of(forecast.median_bytes, forecast.bound_bytes, forecast.risk)
        return self.adjustment(forecast.product, forecast.family, forecast.risk, regime, margin)

    def adjustment(self, product: str, family: str, risk: float, regime: str = "", margin: float = 0.0) -> Adjustment:
        """`margin`: of the artifact's bound, at MARGIN_RISK."""
        cell = self._cells.get((product, cell_family(family, regime)))
        if cell is not None:
            median, bound = cell.median_correction, cell.correction(risk, margin)
            return Adjustment(round(math.exp(median), 4), round(math.exp(bound), 4), cell.outcomes)
        prior = self._priors.get(product, 0.0)
        if prior == 0.0:
            return UNADJUSTED
        factor = round(math.exp(prior), 4)
        return Adjustment(factor, factor, 0)

    def record(self, outcome: Outcome) -> bool:
        """False: there was nothing to learn."""
        score = score_outcome(outcome) if outcome.model_version == self.model_version else None
        if score is None:
            self.ignored += 1
            return False
        key = (str(outcome.product), cell_family(outcome.family, outcome.regime))
        # Removed and added again, so that the dict is in the order of the last update.
        cell = self._cells.pop(key, None) or CellState(*key)
        prior = self._priors.get(key[0], 0.0)
        died = outcome.ending is Ending.OOM
        cell.learn(score, outcome.risk, missed=not outcome.covered, died=died, prior=prior, tuning=self._tuning)
        if len(self._cells) >= MAX_CELLS:
            del self._cells[next(iter(self._cells))]
        self._cells[key] = cell
        self._priors[key[0]] = self._prior(key[0])
        self.revision += 1
        return True

    def cells(self) -> Iterator[CellState]:
        return iter(list(self._cells.values()))

    def put(self, cells: Sequence[CellState]) -> None:
        """Replace all cells with stored ones."""
        self._cells = {(cell.product, cell.family): cell for cell in cells[-MAX_CELLS:]}
        self._priors = {product: self._prior(product) for product, _ in self._cells}
        self.revision += 1

    def _prior(self, product: str) -> float:
        """For a family that has not run on this product yet. It can only raise a forecast."""
        ratios = np.concatenate([cell.scored.ratio for cell in self._cells.values() if cell.product == product])
        return max(0.0, round(_median(ratios), 4)) if len(ratios) >= self._tuning.trusted else 0.0


def _median(values: Floats) -> float:
    """Five times as fast as numpy's, which costs more than the rest of learning a run."""
    ascending, middle = np.sort(values), len(values) // 2
    return float(ascending[middle] if len(values) % 2 else (ascending[middle - 1] + ascending[middle]) / 2.0)


def _clip(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def cell_family(family: str, regime: str) -> str:
    """A LoRA in 16 bits errs in other ways than the same network in fp32."""
    known = family if family in _FAMILIES else _UNNAMED
    return f"{known}/{regime}" if regime else known


# ------------------------------------------------------------------ as JSON
# A cell's scores are one string. `1823:953` is a run that took e^0.1823 of its median where the bound left e^0.0953.
# `+` marks a run that would have gone higher.

_UNIT = 1e4


def cell_json(cell: CellState) -> dict[str, Any]:
    return {
        "product": cell.product,
        "family": cell.family,
        "outcomes": cell.outcomes,
        "misses": cell.misses,
        "ooms": cell.ooms,
        "shifts": cell.shifts,
        "factors": {f"{risk:g}": round(math.exp(c), 3) for risk, c in zip(RISKS, cell.corrections, strict=True)},
        "corrections": list(cell.corrections),
        "level": cell.level,
        "scores": " ".join(_encode(score) for score in cell.scores),
    }


def read_cell(document: Mapping[str, Any]) -> CellState:
    """Raises ValueError, KeyError or TypeError if the data is damaged."""
    corrections = tuple(float(value) for value in document["corrections"])
    level = float(document["level"])
    if len(corrections) != len(RISKS) or not all(map(math.isfinite, (*corrections, level))):
        raise ValueError(f"corrections: expected {len(RISKS)} numbers, got {document['corrections']!r}")
    counts = (int(document[name]) for name in ("outcomes", "misses", "ooms", "shifts"))
    scores = [_decode(text) for text in str(document["scores"]).split()]
    return CellState(str(document["product"]), str(document["family"]), scores, corrections, level, *counts)


def _encode(score: Score) -> str:
    return f"{round(score.ratio * _UNIT)}:{round(score.margin * _UNIT)}{'+' if score.censored else ''}"


def _decode(text: str) -> Score:
    ratio, margin = text.removesuffix("+").split(":")
    return Score(round(int(ratio) / _UNIT, 4), round(int(margin) / _UNIT, 4), text.endswith("+"))
