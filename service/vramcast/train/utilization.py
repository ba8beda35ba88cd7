"""Trees for `sm_active` in the same ONNX graph, for regimes where they were more accurate on unseen runs.

For the share of busy multiprocessors, trees on the same facts beat the network (docs/log.md), so they replace it. The
other two figures stay the network's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import lightgbm
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from vramcast.forecast.features import Regime
from vramcast.train.dataset import Dataset
from vramcast.train.records import TARGETS
from vramcast.train.trees import of_regime, regressor_node

Floats = NDArray[np.float32]
SM_ACTIVE = TARGETS.index("sm_active")
_MIN_ROWS = 60


@dataclass(slots=True)
class UtilizationTrees:
    models: dict[int, lightgbm.LGBMRegressor] = field(default_factory=dict)  # by regime

    def apply(self, utilization: Floats, facts: Floats, regimes: NDArray[np.int64]) -> Floats:
        """The same arithmetic as in the exported graph."""
        predicted = utilization.copy()
        for regime, model in self.models.items():
            rows = regimes == regime
            if rows.any():
                predicted[rows, SM_ACTIVE] = np.clip(model.predict(facts[rows]), 0.0, 1.0)
        return predicted


def correct_utilization(
    data: Dataset, fold: NDArray[np.int64], network: Floats
) -> tuple[NDArray[np.float32], UtilizationTrees]:
    """Predictions for each fold by trees of the other folds, and the trees of all folds, which ship."""
    usable = data.usable & ~np.isnan(data.utilization[:, SM_ACTIVE])
    predicted = network.copy()
    for number in np.unique(fold):
        rows = fold == number
        trees = _fit(data, usable & ~rows, int(number))
        predicted[rows] = trees.apply(network[rows], data.facts[rows], data.regime[rows])
    final = _fit(data, usable, 0)
    measured = data.utilization[:, SM_ACTIVE]
    for regime in list(final.models):
        rows = usable & (data.regime == regime)
        missed = [float(np.abs(of[rows, SM_ACTIVE] - measured[rows]).mean()) for of in (predicted, network)]
        if missed[0] >= missed[1]:
            del final.models[regime]
            predicted[data.regime == regime] = network[data.regime == regime]
    return predicted, final


def _fit(data: Dataset, rows: NDArray[np.bool_], seed: int) -> UtilizationTrees:
    trees = UtilizationTrees()
    for regime in Regime:
        own = rows & (data.regime == regime)
        if regime is not Regime.SUMMARY and np.count_nonzero(own) >= _MIN_ROWS:
            model = lightgbm.LGBMRegressor(
                objective="l1", n_estimators=300, learning_rate=0.04, num_leaves=15, min_child_samples=8, subsample=0.8,
                subsample_freq=1, colsample_bytree=0.3, verbose=-1, n_jobs=1, random_state=seed, deterministic=True,
                force_row_wise=True,
            )  # fmt: skip
            trees.models[int(regime)] = model.fit(data.facts[own], data.utilization[own, SM_ACTIVE])
    return trees


def append_nodes(graph: onnx.GraphProto, trees: UtilizationTrees) -> None:
    """From `network_utilization` to `utilization`."""
    node = helper.make_node
    if not trees.models:
        graph.node.append(node("Identity", ["network_utilization"], ["utilization"]))
        return
    column = np.zeros((1, len(TARGETS)), np.float32)
    column[0, SM_ACTIVE] = 1.0
    constants = {
        "sm_active_index": np.array([SM_ACTIVE], np.int64),
        "sm_active_column": column,
        "no_use": np.array(0.0, np.float32),
        "full_use": np.array(1.0, np.float32),
        **{f"use_flag_{regime}_index": np.array([regime], np.int64) for regime in trees.models},
    }
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.node.append(node("Gather", ["network_utilization", "sm_active_index"], ["network_sm_active"], axis=1))
    for regime, model in trees.models.items():
        graph.node.extend(
            [
                *of_regime(f"use_flag_{regime}", [regressor_node((model,), "facts", f"tree_use_{regime}")]),
                node("Clip", [f"tree_use_{regime}", "no_use", "full_use"], [f"clipped_use_{regime}"]),
                node("Sub", [f"clipped_use_{regime}", "network_sm_active"], [f"use_apart_{regime}"]),
                node("Mul", [f"use_apart_{regime}", f"use_flag_{regime}"], [f"own_use_apart_{regime}"]),
            ]
        )
    graph.node.extend(
        [
            node("Sum", [f"own_use_apart_{regime}" for regime in trees.models], ["use_apart"]),
            node("Mul", ["use_apart", "sm_active_column"], ["use_move"]),
            node("Add", ["network_utilization", "use_move"], ["utilization"]),
        ]
    )
