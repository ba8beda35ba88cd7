"""The trees of docs/predictors.md, which forecast the memory of one batch: each batch of a job is a row.

One model for each way that a task may be told, so none has to make do with facts that it will not get. They are fitted
to a draw of the rows: there are hundreds of thousands, of 150 architectures, and AdaBoost would take hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bench.contenders import regressors
from bench.totals.factors import Split
from numpy.typing import NDArray

from vramcast.train.simulated_data import LEVELS, Simulated
from vramcast.train.totals_blend import weights

DRAWN = 6_000
NAMES = tuple(regressors())


def missed_by_batches(split: Split, name: str, levels: tuple[int, ...]) -> NDArray[np.float64]:
    """(rows, LEVELS, batches): log(recorded / forecast) of the runs that were left out."""
    missed = np.full((len(split.held), len(LEVELS), split.held.units.shape[1]), np.nan)
    for level in levels:
        rows, batches = np.nonzero(split.held.units > 0)
        inputs, target = _table(split.held, level, rows, batches)
        missed[rows, level, batches] = target - _fit(split.seen, regressors()[name], level)(inputs)
    return missed


def _fit(data: Simulated, make: Callable[[], Any], level: int) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    rows, batches = np.nonzero(data.units > 0)
    chance = weights(data.group)[rows].astype(np.float64)
    drawn = np.random.default_rng(0).choice(len(rows), min(DRAWN, len(rows)), replace=False, p=chance / chance.sum())
    inputs, target = _table(data, level, rows[drawn], batches[drawn])
    told = inputs.min(0) < inputs.max(0)  # those that this way of telling leaves out would only dilute the others
    model = make().fit(inputs[:, told], target)
    return lambda asked: np.asarray(model.predict(asked[:, told]), np.float64)


def _table(
    data: Simulated, level: int, rows: NDArray[np.int64], batches: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The facts, what the rules say, and how large the step is; and log(recorded / rules)."""
    rules = np.log(data.rules_bytes[rows, batches])
    line = np.log(data.unit_bytes[rows, level] * data.units[rows, batches] / data.held_bytes[rows])
    target = np.log(data.reserved_bytes[rows, batches]) - rules
    return np.column_stack([data.facts[rows, level], rules, line]), target
