"""What ships: the factors of boosted trees and of the network, averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import lightgbm
import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.totals_model import OUTPUTS
from vramcast.train.simulated_data import LEVELS, Floats, Simulated, Tokens
from vramcast.train.totals_kept import Kept
from vramcast.train.totals_network import TotalsNetwork, TotalsSchedule, TotalsShape, fit_network, predict
from vramcast.train.totals_trees import FactorTrees, TreeSchedule, fit_trees

# Of the trees. Not tuned.
BLEND = 0.5
SEED = 1
Factors = NDArray[np.float64]  # (rows, LEVELS, counters, factors)


@dataclass(frozen=True, slots=True)
class Blend:
    trees: Mapping[str, FactorTrees]  # by output
    network: TotalsNetwork

    def factors(self, data: Simulated, tokens: Tokens) -> Factors:
        return blended(by_trees(self.trees, data), by_network(self.network, data, tokens))


@dataclass(frozen=True, slots=True)
class Schedules:
    trees: TreeSchedule = field(default_factory=TreeSchedule)
    network: TotalsSchedule = field(default_factory=TotalsSchedule)


def fit_blend(data: Simulated, tokens: Tokens, schedules: Schedules, kept: Kept, name: str) -> Blend:
    """`name` tells what it is fitted to; what is kept under it is not fitted again."""
    return Blend(
        kept_trees(data, schedules.trees, kept, name),
        kept_network(data, tokens, TotalsShape(), schedules.network, kept, f"network-{name}"),
    )


def kept_trees(data: Simulated, schedule: TreeSchedule, kept: Kept, name: str) -> dict[str, FactorTrees]:
    def fit(counter: int) -> str:
        read = (data.active_bytes, data.reserved_bytes)[counter]
        return str(fit_trees(data, read, weights(data.group), schedule, 0).booster.model_to_string())

    found = {
        output: kept.text(f"trees-{output}-{name}", lambda counter=counter: fit(counter))  # type: ignore[misc]
        for counter, output in enumerate(OUTPUTS)
    }
    return {output: FactorTrees(lightgbm.Booster(model_str=text)) for output, text in found.items()}


def kept_network(
    data: Simulated, tokens: Tokens, shape: TotalsShape, schedule: TotalsSchedule, kept: Kept, name: str
) -> TotalsNetwork:
    def fit() -> TotalsNetwork:
        return fit_network(data, tokens, weights(data.group), shape, schedule, SEED)

    found = kept.network(name, fit)
    assert isinstance(found, TotalsNetwork)  # noqa: S101 - training wrote it
    return found


def blended(of_trees: Factors, of_network: Factors) -> Factors:
    return BLEND * of_trees + (1.0 - BLEND) * of_network


def by_trees(trees: Mapping[str, FactorTrees], data: Simulated) -> Factors:
    return np.stack(
        [np.stack([trees[name].predict(data.facts[:, level]) for name in OUTPUTS], axis=1)
         for level in range(len(LEVELS))], axis=1,
    )  # fmt: skip


def by_network(network: TotalsNetwork, data: Simulated, tokens: Tokens) -> Factors:
    return np.stack([predict(network, data, tokens, level) for level in range(len(LEVELS))], axis=1)


def weights(group: NDArray[np.str_]) -> Floats:
    """An architecture counts by the root of its runs: large families must not drown the others."""
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[index])
    return np.asarray(weight / weight.mean(), np.float32)
