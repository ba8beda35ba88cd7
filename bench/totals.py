"""Compares predictors of totals on simulated runs of architectures that were left out, and prints one table.

    python -m bench.totals --work model_artifacts/work

The runs are those that `vramcast train --totals` simulated. All predictors get the same rows, facts and folds: the
rules, trees that forecast the memory of one batch, trees of factors (what ships), and the BiGRU-Transformer with its
ablations. `--folds 2` judges
on two fifths of the architectures only, which is quicker.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.forecast.totals_model import OUTPUTS
from vramcast.train.progress import Progress
from vramcast.train.simulated_data import LEVELS, Simulated, Tokens, deal
from vramcast.train.totals import FOLDS, cross_validate, missed_by, rules_missed, simulated_data, weights
from vramcast.train.totals_network import TotalsSchedule, TotalsShape, fit_network, predict
from vramcast.train.totals_trees import TreeSchedule

Missed = NDArray[np.float64]  # (rows, LEVELS, batches)
_SHAPES = {
    "BiGRU-Transformer": TotalsShape(),
    "BiGRU alone": TotalsShape(attention=False),
    "Transformer alone": TotalsShape(recurrent=False),
    "facts alone": TotalsShape(recurrent=False, attention=False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("model_artifacts/work"))
    parser.add_argument("--steps", type=int, default=TotalsSchedule().steps)
    parser.add_argument("--folds", type=int, default=FOLDS, help="of the five, those that are judged")
    parser.add_argument("--only", default="", help="predictors whose name has this word")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    progress = Progress()
    _, data, tokens, _ = simulated_data(asked.work, progress)
    compare(data, tokens, asked.steps, asked.folds, asked.only, progress)


def compare(data: Simulated, tokens: Tokens, steps: int, folds: int, only: str, progress: Progress) -> None:
    fold = deal(data.group, FOLDS)
    judged = (fold < folds) & data.unfamiliar
    rules = np.repeat(rules_missed(data)[:, None], len(LEVELS), axis=1)
    show("rules", rules, judged)
    if "trees of factors".find(only) >= 0:
        factors = cross_validate(data, TreeSchedule(), progress).factors[OUTPUTS[1]]
        show("trees of factors", missed_by(data, factors, data.reserved_bytes), judged)
    if "trees of memory".find(only) >= 0:
        show("trees of memory", trees_of_memory(data, fold, folds), judged)
    schedule = replace(TotalsSchedule(), steps=steps)
    for name, shape in _SHAPES.items():
        if name.find(only) >= 0:
            show(name, by_network(data, tokens, fold, folds, shape, schedule), judged)


def by_network(
    data: Simulated, tokens: Tokens, fold: NDArray[np.int64], folds: int, shape: TotalsShape, schedule: TotalsSchedule
) -> Missed:
    factors = np.zeros((len(data), len(LEVELS), 3))
    for number in range(folds):
        held, weight = fold == number, weights(data.group[fold != number])
        network = fit_network(data.where(~held), tokens, weight, shape, schedule, 1)
        for level in range(len(LEVELS)):
            shown = np.where(level == 0, data.network[held], 0)
            factors[held, level] = predict([network], data.facts[held, level], shown, tokens)[:, 1]
    return missed_by(data, factors, data.reserved_bytes)


def trees_of_memory(data: Simulated, fold: NDArray[np.int64], folds: int) -> Missed:
    """Each batch is a row, and the size of its step a fact; one model for each way to be told."""
    rows, batches = np.nonzero(data.units > 0)
    rules = np.log(data.rules_bytes[rows, batches])
    held = np.log(data.unit_bytes[rows] * data.units[rows, batches] / data.held_bytes[rows])
    target = np.log(data.reserved_bytes[rows, batches]) - rules
    weight = weights(data.group)[rows]
    missed = np.full((len(data), len(LEVELS), data.units.shape[1]), np.nan)
    for level in range(len(LEVELS)):
        facts = np.column_stack([data.facts[rows, level], rules, held])
        for number in range(folds):
            seen = fold[rows] != number
            trees = lightgbm.LGBMRegressor(
                objective="l1", n_estimators=300, learning_rate=0.06, num_leaves=31, min_child_samples=20,
                subsample=0.7, subsample_freq=1, colsample_bytree=0.5, verbose=-1, n_jobs=1, random_state=0,
                deterministic=True, force_row_wise=True,
            ).fit(facts[seen], target[seen], sample_weight=weight[seen])  # fmt: skip
            missed[rows[~seen], level, batches[~seen]] = target[~seen] - np.asarray(trees.predict(facts[~seen]))
    return missed


def show(name: str, missed: Missed, judged: NDArray[np.bool_]) -> None:
    for level, told in enumerate(LEVELS):
        found = missed[judged, level]
        error = np.abs(np.expm1(-found[~np.isnan(found)]))
        high, far = (float(np.quantile(found[~np.isnan(found)], share)) for share in (0.95, 0.99))
        print(f"| {name} | {told} | {np.median(error):.1%} | {error.mean():.1%} | {np.quantile(error, 0.9):.1%} "
              f"| {high:+.2f} | {far:+.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
