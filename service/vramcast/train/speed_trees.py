"""Trees that forecast the factor of step times: two kinds of boosted trees, and a forest of random ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto
from sklearn.ensemble import ExtraTreesRegressor

from vramcast.train.speed_network import SpeedArrays
from vramcast.train.trees import Bag, forest_node, regressor_node

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SpeedTrees:
    boosted: Bag
    forest: ExtraTreesRegressor

    def predict(self, facts: Floats) -> tuple[Floats, Floats]:
        """Of the boosted trees, and of the forest: (rows,)."""
        boosted = np.mean([tree.predict(facts) for tree in self.boosted], axis=0)
        return np.asarray(boosted, np.float32), np.asarray(self.forest.predict(facts), np.float32)

    def nodes(self, source: str, boosted: str, forest: str) -> list[NodeProto]:
        return [regressor_node(self.boosted, source, boosted), forest_node(self.forest, source, forest)]


def fit_trees(data: SpeedArrays) -> SpeedTrees:
    boosted = tuple(
        lightgbm.LGBMRegressor(**parameters).fit(data.facts, data.target, sample_weight=data.weight)
        for parameters in boosted_parameters()
    )
    forest = ExtraTreesRegressor(**forest_parameters()).fit(data.facts, data.target, sample_weight=data.weight)
    return SpeedTrees(boosted, forest)


def boosted_parameters() -> tuple[dict[str, Any], dict[str, Any]]:
    """Of two kinds: with random thresholds, and the usual ones.

    Squared errors of logarithms: the few runs that are far off have causes that come again.
    """
    usual = {
        "objective": "l2", "n_estimators": 600, "learning_rate": 0.05, "num_leaves": 31, "min_child_samples": 8,
        "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.3, "reg_lambda": 1.0, "verbose": -1, "n_jobs": 1,
        "random_state": 0, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip
    thresholds = {"extra_trees": True, "n_estimators": 400, "num_leaves": 64, "min_child_samples": 4}
    return usual | thresholds | {"colsample_bytree": 0.4, "reg_lambda": 0.1}, usual


def forest_parameters() -> dict[str, Any]:
    return {"n_estimators": 60, "min_samples_leaf": 2, "max_features": 0.4, "n_jobs": 1, "random_state": 0}
