"""Predictors of measured runs: from simulated runs, from other measured ones, or from both in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from bench.totals.measured import COUNTERS, MeasuredRows, counted_alone, without_layers
from numpy.typing import NDArray

from vramcast.forecast.features import TOKEN_WIDTH, TOKENS
from vramcast.forecast.totals_model import FACTORS, MOST_FACTOR, OUTPUTS
from vramcast.train.simulated_data import LEVELS, Simulated, Tokens
from vramcast.train.totals_blend import SEED, Blend, blended, weights
from vramcast.train.totals_kept import Kept
from vramcast.train.totals_network import TotalsNetwork, TotalsSchedule, TotalsShape, fit_network, predict
from vramcast.train.totals_trees import FactorTrees, TreeSchedule, fit_trees

Factors = NDArray[np.float64]  # (rows, counters, factors)
# Measured runs are a hundredth of the simulated ones, so they get fewer steps, and smaller ones after those.
_ALONE = TotalsSchedule(steps=600, networks=16)
_AFTER = TotalsSchedule(steps=200, networks=16, learning_rate=5e-4, average=0.98)
_TREES_ALONE = TreeSchedule(rounds=100)
_TREES_AFTER = TreeSchedule(rounds=40, learning_rate=0.05)
_SUMMARY = 1


def measured_factors(
    rows: MeasuredRows, fold: NDArray[np.int64], blends: Sequence[Blend], kept: Kept
) -> dict[str, Factors]:
    """By predictor."""
    makers = {
        "trees, simulated runs": _trees_simulated,
        "trees, measured runs": _trees_measured,
        "trees, simulated then measured": _trees_both,
        "network, simulated runs": _network_simulated,
        "network, measured runs": _network_measured,
        "network, simulated then measured": _network_both,
    }
    found: dict[str, Factors] = {}
    for name, make in makers.items():
        found[name] = kept.array(
            f"measured-{name.replace(' ', '-').replace(',', '')}", lambda make=make: _unseen(rows, fold, blends, make)
        )
    for told in ("simulated runs", "measured runs", "simulated then measured"):
        found[f"trees and network, {told}"] = blended(found[f"trees, {told}"], found[f"network, {told}"])
    return found


_Make = Callable[[MeasuredRows, NDArray[np.bool_], NDArray[np.bool_], Blend], Factors]


def _unseen(rows: MeasuredRows, fold: NDArray[np.int64], blends: Sequence[Blend], make: _Make) -> Factors:
    """Each architecture by models that saw none of its runs, simulated or measured."""
    factors = np.zeros((len(rows), len(COUNTERS), FACTORS))
    for number in sorted(set(fold.tolist())):
        held = fold == number
        factors[held] = make(rows, held, ~held & rows.trains, blends[number])
    return factors


def _trees_simulated(rows: MeasuredRows, held: NDArray[np.bool_], _: NDArray[np.bool_], models: Blend) -> Factors:
    return _of_trees(models.trees, rows.data.where(held))


def _trees_measured(rows: MeasuredRows, held: NDArray[np.bool_], seen: NDArray[np.bool_], _: Blend) -> Factors:
    return _of_trees(_fit_trees(rows.data.where(seen), _TREES_ALONE, None), rows.data.where(held))


def _trees_both(rows: MeasuredRows, held: NDArray[np.bool_], seen: NDArray[np.bool_], models: Blend) -> Factors:
    added = _fit_trees(rows.data.where(seen), _TREES_AFTER, models.trees)
    asked = rows.data.where(held)
    return _of_trees(models.trees, asked) + _of_trees(added, asked)


def _fit_trees(
    data: Simulated, schedule: TreeSchedule, before: Mapping[str, FactorTrees] | None
) -> dict[str, FactorTrees]:
    fitted = {}
    for counter, name in enumerate(OUTPUTS):
        known, _ = counted_alone(data, counter)
        bytes_of = (known.active_bytes, known.reserved_bytes)[counter]
        start = None
        if before is not None:
            start = np.repeat(before[name].predict(known.facts[:, _SUMMARY])[:, None], len(LEVELS), axis=1)
        fitted[name] = fit_trees(known, bytes_of, weights(known.group), schedule, 0, start)
    return fitted


def _of_trees(trees: Mapping[str, FactorTrees], data: Simulated) -> Factors:
    return np.stack([trees[name].predict(data.facts[:, _SUMMARY]) for name in OUTPUTS], axis=1)


def _network_simulated(rows: MeasuredRows, held: NDArray[np.bool_], _: NDArray[np.bool_], models: Blend) -> Factors:
    return _of_network(models.network, rows.data.where(held))


def _network_measured(rows: MeasuredRows, held: NDArray[np.bool_], seen: NDArray[np.bool_], _: Blend) -> Factors:
    return _of_network(_fit_network(rows.data.where(seen), _ALONE, None), rows.data.where(held))


def _network_both(rows: MeasuredRows, held: NDArray[np.bool_], seen: NDArray[np.bool_], models: Blend) -> Factors:
    return _of_network(_fit_network(rows.data.where(seen), _AFTER, models.network), rows.data.where(held))


def _fit_network(data: Simulated, schedule: TotalsSchedule, before: TotalsNetwork | None) -> TotalsNetwork:
    asked = without_layers(data)
    return fit_network(asked, _no_layers(data), weights(data.group), TotalsShape(), schedule, SEED, before)


def _of_network(network: TotalsNetwork, data: Simulated) -> Factors:
    return predict(network, data, _no_layers(data), _SUMMARY)


def _no_layers(data: Simulated) -> Tokens:
    networks = int(data.network.max()) + 1
    return Tokens(np.zeros((networks, TOKENS, TOKEN_WIDTH), np.float32), np.zeros((networks, TOKENS), np.int64))


def missed_of(rows: MeasuredRows, factors: Factors) -> NDArray[np.float64]:
    """log(measured / forecast) of each run's own counter, without the context."""
    own = factors[np.arange(len(rows)), rows.figure]
    floor, start, slope = np.exp(np.clip(own, -MOST_FACTOR, MOST_FACTOR)).T
    data = rows.data
    line = start * data.held_bytes + slope * data.unit_bytes[:, _SUMMARY] * data.units[:, 0]
    return np.log(figures(rows)) - np.log(np.maximum(floor * data.held_bytes, line))


def rules_missed_of(rows: MeasuredRows) -> NDArray[np.float64]:
    return np.log(figures(rows)) - np.log(np.maximum(rows.data.rules_bytes[:, 0], 1.0))


def figures(rows: MeasuredRows) -> NDArray[np.float64]:
    both = np.column_stack([rows.data.active_bytes[:, 0], rows.data.reserved_bytes[:, 0]])
    return np.asarray(both[np.arange(len(rows)), rows.figure])
