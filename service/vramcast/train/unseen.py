"""Trees for rows that they were not fitted to, and the trees that ship.

Networks never saw the groups of the rows that they predict. Trees cost little, so for them the groups are dealt to
folds in several ways: figures of one dealing depend on which architectures came together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.features import Regime, without_optional
from vramcast.train.crossval import FOLDS, Unseen
from vramcast.train.dataset import Dataset
from vramcast.train.network import MEDIAN, QUANTILES
from vramcast.train.novelty import HeldOutRuns, Novelty, learned, measured_space
from vramcast.train.trees import Correction, TreeOutput, apply, blend_of, fit_distances, fit_medians, stack_inputs

# Keep sources with few rows from being drowned out in a regime that they share.
_TREE_WEIGHTS = {"xmem": 5.0, "gpumemnet-cnn": 2.0}
# Weight of terse summaries against full ones: low enough that layers and architecture keep their influence.
_TERSE_WEIGHT = 0.1
# A smaller gain (in logarithms) does not count: replayed networks are exact, and trees would only add noise.
_LEAST_GAIN = 2e-4
_SPREAD = QUANTILES.index(0.95)
_LEAST_SPREAD = 1e-4


@dataclass(frozen=True, slots=True)
class Corrected:
    """Unseen rows, corrected by trees of the other folds, with the groups dealt in one way."""

    fold: NDArray[np.int64]
    shipped: NDArray[np.float32]  # (rows, quantiles)
    summary: NDArray[np.float32]


def correct_unseen(
    data: Dataset, unseen: Unseen, dealings: Sequence[NDArray[np.int64]]
) -> tuple[list[Corrected], Correction]:
    """One result for each dealing, and the correction fitted on all rows, which ships.

    Corrects each fold by trees of the other folds. A regime that does not gain from trees gets none.
    """
    levels = _levels(data, unseen)
    dealt = [_Dealt(levels, np.tile(fold, 2)) for fold in dealings]
    keeps = _regimes_that_gain(levels, [one.medians for one in dealt])
    left_out = [one.finish(keeps) for one in dealt]
    final = levels.train_medians(levels.usable, FOLDS)
    _finish(final, keeps, levels, levels.usable, FOLDS)
    for regime, space in _spaces(final, levels, levels.usable).items():
        pooled = [known[regime] for known in left_out if regime in known]
        if pooled:
            final.novelty[regime] = learned(space, _joined(pooled))
    return [one.corrected(len(data)) for one in dealt], final


@dataclass(frozen=True, slots=True)
class _Levels:
    """Every run by its layers, then every run by its summary. Arrays over twice the rows."""

    facts: NDArray[np.float32]
    regime: NDArray[np.int64]
    target: NDArray[np.float32]
    quantiles: NDArray[np.float32]
    usable: NDArray[np.bool_]
    weight: NDArray[np.float32]
    group: NDArray[np.str_]

    @property
    def missed(self) -> NDArray[np.float32]:
        return np.asarray(self.target - self.quantiles[:, MEDIAN], np.float32)

    def train_medians(self, rows: NDArray[np.bool_], seed: int) -> Correction:
        """Adds terse summaries, because trees that rely on optional annotations would fail without them."""
        terse = rows & (self.regime == Regime.SUMMARY)
        facts = np.concatenate([self.facts[rows], without_optional(self.facts[terse])])
        regime, target = (np.concatenate([column[rows], column[terse]]) for column in (self.regime, self.target))
        weight = np.concatenate([self.weight[rows], _TERSE_WEIGHT * self.weight[terse]])
        return fit_medians(facts, regime, target, weight, seed)


def _levels(data: Dataset, unseen: Unseen) -> _Levels:
    summaries = np.full(len(data), int(Regime.SUMMARY))
    weights = np.array([_TREE_WEIGHTS.get(str(source), 1.0) for source in data.source], np.float32)
    return _Levels(
        facts=np.concatenate([data.facts, data.summary_facts]),
        regime=np.concatenate([data.regime, summaries]),
        target=np.concatenate([data.target, data.summary_target]),
        quantiles=np.concatenate([unseen.quantiles, unseen.summary_quantiles]),
        usable=np.tile(data.usable, 2),
        weight=np.tile(weights, 2),
        group=np.tile(data.group, 2),
    )


class _Dealt:
    """The folds of one dealing: a correction for each, from the rows of the others."""

    def __init__(self, levels: _Levels, fold: NDArray[np.int64]) -> None:
        self._levels, self._fold = levels, fold
        self._corrections: list[Correction] = []
        by_trees = np.zeros(len(fold))
        for number in range(FOLDS):
            correction = levels.train_medians((fold != number) & levels.usable, number)
            rows = fold == number
            by_trees[rows] = correction.medians_of(levels.facts[rows], levels.regime[rows])
            self._corrections.append(correction)
        network = levels.quantiles[:, MEDIAN]
        self.medians = network + blend_of(levels.regime) * (by_trees - network)
        self._shipped = levels.quantiles.copy()

    def finish(self, keeps: set[int]) -> dict[int, HeldOutRuns]:
        """Adds the trees of spreads, then what is learned about novelty from the other folds."""
        levels, far = self._levels, np.full(len(self._fold), np.nan)
        outputs: list[TreeOutput] = []
        for number, correction in enumerate(self._corrections):
            training, rows = (self._fold != number) & levels.usable, self._fold == number
            _finish(correction, keeps, levels, training, number)
            outputs.append(correction.predict(levels.facts[rows], levels.quantiles[rows], levels.regime[rows]))
            self._shipped[rows] = apply(levels.quantiles[rows], outputs[-1])
            correction.novelty |= _spaces(correction, levels, training)
            for regime, space in correction.novelty.items():
                own = rows & (levels.regime == regime)
                far[own] = space.distances(levels.facts[own])
        everything = self._left_out(far, np.ones(len(far), np.bool_))
        for number, (correction, output) in enumerate(zip(self._corrections, outputs, strict=True)):
            rows = self._fold == number
            known = self._left_out(far, ~rows)
            widening = np.zeros(int(rows.sum()))
            for regime, space in correction.novelty.items():
                if regime in known:
                    own = levels.regime[rows] == regime
                    widening[own] = learned(space, known[regime]).widening(levels.facts[rows][own])
            self._shipped[rows] = apply(levels.quantiles[rows], replace(output, widening=widening))
        return everything

    def _left_out(self, far: NDArray[np.float64], rows: NDArray[np.bool_]) -> dict[int, HeldOutRuns]:
        levels, shipped, found = self._levels, self._shipped, {}
        for regime in Regime:
            own = rows & levels.usable & (levels.regime == regime) & ~np.isnan(far)
            if own.any():
                median = shipped[own, MEDIAN]
                spread = np.maximum(shipped[own, _SPREAD] - median, _LEAST_SPREAD).astype(np.float64)
                excess = (levels.target[own] - median).astype(np.float64)
                found[int(regime)] = HeldOutRuns(far[own], excess, spread, levels.group[own])
        return found

    def corrected(self, rows: int) -> Corrected:
        return Corrected(self._fold[:rows], self._shipped[:rows], self._shipped[rows:])


def _spaces(correction: Correction, levels: _Levels, rows: NDArray[np.bool_]) -> dict[int, Novelty]:
    """Of the regimes that trees correct."""
    made = {
        regime: measured_space(levels.facts[rows & (levels.regime == regime)], bag)
        for regime, bag in correction.medians.items()
    }
    return {regime: space for regime, space in made.items() if space is not None}


def _joined(parts: Sequence[HeldOutRuns]) -> HeldOutRuns:
    return HeldOutRuns(
        np.concatenate([part.distance for part in parts]),
        np.concatenate([part.excess for part in parts]),
        np.concatenate([part.spread for part in parts]),
        np.concatenate([part.group for part in parts]),
    )


def _finish(correction: Correction, keeps: set[int], levels: _Levels, rows: NDArray[np.bool_], seed: int) -> None:
    for regime in set(correction.medians) - keeps:
        del correction.medians[regime]
    stacked = stack_inputs(levels.facts[rows], levels.quantiles[rows])
    fit_distances(correction, stacked, levels.regime[rows], levels.missed[rows], levels.weight[rows], seed)


def _regimes_that_gain(levels: _Levels, dealt: Sequence[NDArray[np.float64]]) -> set[int]:
    gaining = set()
    for regime in Regime:
        rows = levels.usable & (levels.regime == regime)
        if not rows.any():
            continue
        before = np.abs(levels.target[rows] - levels.quantiles[rows, MEDIAN]).mean()
        after = np.mean([np.abs(levels.target[rows] - medians[rows]).mean() for medians in dealt])
        if after < before - _LEAST_GAIN:
            gaining.add(int(regime))
    return gaining
