"""Boosted trees of totals: the same factors as the network's, fitted to the same memory.

A tree that forecast the memory itself would jump when the batch grows. So each round adds a tree to every factor, along
the gradient of the distance between the memory that they add up to and the recorded one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.totals_model import FACTORS, MOST_FACTOR
from vramcast.task.quantity import GIB
from vramcast.train.simulated_data import LEVELS, Floats, Simulated

# The distance is absolute, so a row counts by the inverse of its own. Nearer than this all count alike.
_NEAR = 0.05
_LEAST_CURVATURE = 1e-3
# What hardly any GPU holds counts less.
_MOST_BYTES = 160 * GIB
_BEYOND = 0.1


@dataclass(frozen=True, slots=True)
class TreeSchedule:
    rounds: int = 200
    learning_rate: float = 0.1
    leaves: int = 24


@dataclass(frozen=True, slots=True)
class FactorTrees:
    """Of one counter."""

    booster: lightgbm.Booster

    def predict(self, facts: Floats) -> NDArray[np.float64]:
        """(rows, factors) in logarithms."""
        return np.asarray(self.booster.predict(facts, raw_score=True)).reshape(len(facts), FACTORS)


def fit_trees(
    data: Simulated, counter_bytes: NDArray[np.float64], weight: Floats, schedule: TreeSchedule, seed: int,
    start: NDArray[np.float64] | None = None,
) -> FactorTrees:  # fmt: skip
    """Each row is described in one of the ways that a task may be.

    `start`: factors (rows, LEVELS, factors) that these trees add to.
    """
    way = np.random.default_rng(seed).integers(len(LEVELS), size=len(data))
    facts, unit_bytes = (every[np.arange(len(data)), way] for every in (data.facts, data.unit_bytes))
    there = data.units > 0
    target = np.log(np.where(there, counter_bytes, 1.0))
    of_line = unit_bytes[:, None] * data.units
    share = np.where(there, (weight / np.maximum(1, there.sum(1)))[:, None], 0.0)
    share = np.where(counter_bytes > _MOST_BYTES, _BEYOND * share, share)

    def descend(raw: NDArray[np.float64], _: lightgbm.Dataset) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        factors = np.exp(np.clip(raw.reshape(len(data), FACTORS, order="F"), -MOST_FACTOR, MOST_FACTOR))
        held = data.held_bytes[:, None]
        floor, start, slope = factors[:, :1] * held, factors[:, 1:2] * held, factors[:, 2:] * of_line
        total = np.maximum(floor, start + slope)
        missed = np.log(total) - target
        steep = share / np.maximum(np.abs(missed), _NEAR)
        on_line = start + slope >= floor
        parts = np.stack([~on_line * 1.0, on_line * start / total, on_line * slope / total], axis=1)
        gradient = (parts * (steep * missed)[:, None]).sum(2)
        curvature = (parts**2 * steep[:, None]).sum(2) + _LEAST_CURVATURE
        return gradient.reshape(raw.shape, order="F"), curvature.reshape(raw.shape, order="F")

    parameters: dict[str, Any] = {
        "objective": descend, "num_class": FACTORS, "learning_rate": schedule.learning_rate,
        "num_leaves": schedule.leaves, "min_data_in_leaf": 20, "min_sum_hessian_in_leaf": 1.0, "bagging_fraction": 0.7,
        "bagging_freq": 1, "feature_fraction": 0.5, "feature_pre_filter": False, "lambda_l2": 1.0, "verbose": -1,
        "num_threads": 1, "seed": seed, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    begun = None if start is None else start[np.arange(len(data)), way].ravel(order="F")
    return FactorTrees(lightgbm.train(parameters, lightgbm.Dataset(facts, init_score=begun), schedule.rounds))
