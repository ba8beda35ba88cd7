"""Boosted trees that correct the network, as operators in the same ONNX graph.

Each regime leaves a different residual, so each has two kinds of ensembles, averaged over seeds. One pulls the median
towards its own. The other predicts how far off the network tends to be, which sharpens the spread behind the common
bounds. The far tail stays the network's. Trees fitted to the network's *residuals* were worse than no trees, because
the networks of different folds have different residuals (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightgbm
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from vramcast.forecast.features import Regime
from vramcast.forecast.forecast import MIN_SPREAD
from vramcast.train.network import MEDIAN, QUANTILES
from vramcast.train.novelty import Novelty

Floats = NDArray[np.float32]
ML_DOMAIN = "ai.onnx.ml"
# Codes of the operator TreeEnsemble. Its predecessor takes a string per node, which costs about ten times the memory.
_SUM, _BRANCH_LEQ = 1, 0
_MIN_ROWS = 60
# Replays without cuDNN are exact to the MiB, so trees would only add noise.
_EXACT = Regime.REPLAYED
# Weight of the trees' median against the network's. Of a summary, the network knows nothing that trees do not.
_BLEND, _SUMMARY_BLEND = 0.8, 0.9
# The same for the logarithm of a distance from the median.
DISTANCE_BLEND = 0.65
# Ensembles of each kind per regime. They differ only in their seed, and their mean varies less than a single one.
BAGS = 3
# Quantiles whose distance from the median the trees sharpen: all above the median except the far tail.
SHARPENED = tuple(0.5 < level < 0.99 for level in QUANTILES)
# A larger distance indicates an unusual network, not a larger error: on unseen runs it did not improve coverage, and
# it bounded a network unlike any measured one at three times its median.
MOST_DISTANCE = 0.2
_FLOOR = 0.004  # added to a distance before its logarithm


def blend_of(regimes: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.where(regimes == Regime.SUMMARY, _SUMMARY_BLEND, _BLEND)


def median_parameters(regime: Regime, seed: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {"n_estimators": 350, "learning_rate": 0.05, "num_leaves": 20}
    if regime is Regime.TRACED:
        # Random thresholds, because this regime mixes many architectures.
        sizes |= {"n_estimators": 300, "num_leaves": 31, "extra_trees": True}
    elif regime is Regime.SUMMARY:
        # A summary has 19 facts: a third of them would be too few for one tree.
        sizes |= {"n_estimators": 500, "num_leaves": 40, "colsample_bytree": 0.7}
    return _parameters(seed) | {"objective": "l1"} | sizes


def distance_parameters(seed: int) -> dict[str, Any]:
    sizes = {"n_estimators": 250, "learning_rate": 0.04, "num_leaves": 31, "min_child_samples": 20}
    return _parameters(seed) | {"objective": "l2"} | sizes


def _parameters(seed: int) -> dict[str, Any]:
    return {
        "min_child_samples": 8, "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.3, "reg_lambda": 1.0,
        "verbose": -1, "n_jobs": 1, "random_state": seed, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip


Bag = tuple[lightgbm.LGBMRegressor, ...]


@dataclass(frozen=True, slots=True)
class TreeOutput:
    """The trees' predictions; zero for rows whose regime has no trees."""

    blend: NDArray[np.float64]  # weight of the trees' median; zero where there are none
    median: NDArray[np.float64]  # of log(measured / prior)
    log_distance: NDArray[np.float64]
    widening: NDArray[np.float64]  # of the logarithm of the spread, by how far the run is from the measured ones


@dataclass(slots=True)
class Correction:
    """Ensembles by regime; a regime with too few rows has none."""

    medians: dict[int, Bag] = field(default_factory=dict)
    distances: dict[int, Bag] = field(default_factory=dict)
    novelty: dict[int, Novelty] = field(default_factory=dict)

    def predict(self, facts: Floats, quantiles: Floats, regimes: NDArray[np.int64]) -> TreeOutput:
        blend = np.where(np.isin(regimes, list(self.medians)), blend_of(regimes), 0.0)
        distances = _by_regime(self.distances, stack_inputs(facts, quantiles), regimes)
        return TreeOutput(blend, self.medians_of(facts, regimes), distances, self._widening(facts, regimes))

    def medians_of(self, facts: Floats, regimes: NDArray[np.int64]) -> NDArray[np.float64]:
        return _by_regime(self.medians, facts, regimes)

    def _widening(self, facts: Floats, regimes: NDArray[np.int64]) -> NDArray[np.float64]:
        widening = np.zeros(len(facts))
        for regime, novelty in self.novelty.items():
            rows = regimes == regime
            if rows.any():
                widening[rows] = novelty.widening(facts[rows])
        return widening

    def correct(self, facts: Floats, quantiles: Floats, regimes: NDArray[np.int64]) -> Floats:
        return apply(quantiles, self.predict(facts, quantiles, regimes))


def _by_regime(bags: dict[int, Bag], inputs: Floats, regimes: NDArray[np.int64]) -> NDArray[np.float64]:
    predicted = np.zeros(len(inputs))
    for regime, bag in bags.items():
        rows = regimes == regime
        if rows.any():
            predicted[rows] = np.mean([model.predict(inputs[rows]) for model in bag], axis=0)
    return predicted


def apply(quantiles: Floats, trees: TreeOutput) -> Floats:
    """The same arithmetic as in the exported graph."""
    median = quantiles[:, MEDIAN : MEDIAN + 1]
    blend = trees.blend[:, None]
    moved = median + blend * (trees.median[:, None] - median)
    distance = quantiles - median
    own = np.maximum(distance, MIN_SPREAD) ** (1.0 - DISTANCE_BLEND)
    log_sharper = DISTANCE_BLEND * trees.log_distance + trees.widening
    sharp = np.minimum(own * np.exp(log_sharper)[:, None], MOST_DISTANCE)
    distance = np.where((blend > 0.0) & np.array(SHARPENED), sharp, distance)
    return (moved + distance).astype(np.float32)


def stack_inputs(facts: Floats, quantiles: Floats) -> Floats:
    return np.concatenate([facts, quantiles], axis=1).astype(np.float32)


def fit_medians(facts: Floats, regimes: NDArray[np.int64], target: Floats, weights: Floats, seed: int) -> Correction:
    correction = Correction()
    for regime in Regime:
        rows = regimes == regime
        if regime is not _EXACT and np.count_nonzero(rows) >= _MIN_ROWS:
            bag = [median_parameters(regime, BAGS * seed + number) for number in range(BAGS)]
            correction.medians[int(regime)] = _fit(bag, facts[rows], target[rows], weights[rows])
    return correction


def fit_distances(
    correction: Correction, stacked: Floats, regimes: NDArray[np.int64], missed: Floats, weights: Floats, seed: int
) -> None:
    """`missed` is the networks' error on rows that they had not seen.

    The error of networks and trees together is more random, and so teaches less.
    """
    for regime in correction.medians:
        rows = regimes == regime
        bag = [distance_parameters(BAGS * seed + number) for number in range(BAGS)]
        target = np.log(np.abs(missed[rows]) + _FLOOR)
        correction.distances[regime] = _fit(bag, stacked[rows], target, weights[rows])


def _fit(bag: list[dict[str, Any]], inputs: Floats, target: Floats, weights: Floats) -> Bag:
    return tuple(lightgbm.LGBMRegressor(**one).fit(inputs, target, sample_weight=weights) for one in bag)


def regressor_node(bag: Bag, source: str, result: str) -> onnx.NodeProto:
    """The bag's mean, as one ensemble of all its trees with scaled leaves."""
    table = _NodeTable(share=1.0 / len(bag))
    for model in bag:
        for tree in model.booster_.dump_model()["tree_info"]:
            table.add_tree(tree["tree_structure"])
    return helper.make_node(
        "TreeEnsemble", [source], [result], domain=ML_DOMAIN, n_targets=1, aggregate_function=_SUM,
        **table.attributes(),
    )  # fmt: skip


def forest_node(forest: Any, source: str, result: str) -> onnx.NodeProto:
    """The mean of scikit-learn's trees."""
    table = _NodeTable(share=1.0 / len(forest.estimators_))
    for tree in forest.estimators_:
        table.add_tree(_structure(tree.tree_))
    return helper.make_node(
        "TreeEnsemble", [source], [result], domain=ML_DOMAIN, n_targets=1, aggregate_function=_SUM,
        **table.attributes(),
    )  # fmt: skip


def _structure(tree: Any, at: int = 0) -> dict[str, Any]:
    """As LightGBM dumps it, from node `at` on."""
    left, right = int(tree.children_left[at]), int(tree.children_right[at])
    if left == right:  # a leaf has neither
        return {"leaf_value": float(tree.value[at, 0, 0])}
    return {
        "split_feature": int(tree.feature[at]),
        "threshold": float(tree.threshold[at]),
        "left_child": _structure(tree, left),
        "right_child": _structure(tree, right),
    }


def factor_node(bag: Sequence[lightgbm.Booster], source: str, result: str, targets: int) -> onnx.NodeProto:
    """The same of boosters that grow one tree for each target in turn."""
    table = _NodeTable(share=1.0 / len(bag))
    for booster in bag:
        for number, tree in enumerate(booster.dump_model()["tree_info"]):
            table.add_tree(tree["tree_structure"], number % targets)
    return helper.make_node(
        "TreeEnsemble", [source], [result], domain=ML_DOMAIN, n_targets=targets, aggregate_function=_SUM,
        **table.attributes(),
    )  # fmt: skip


@dataclass(slots=True)
class _NodeTable:
    """The operator's columns, with one row per branch or leaf. A branch refers to its children by row."""

    share: float
    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    true_row: list[int] = field(default_factory=list)
    true_is_leaf: list[int] = field(default_factory=list)
    false_row: list[int] = field(default_factory=list)
    false_is_leaf: list[int] = field(default_factory=list)
    leaf_weight: list[float] = field(default_factory=list)
    leaf_target: list[int] = field(default_factory=list)
    target: int = 0  # of the tree that is being added
    roots: list[int] = field(default_factory=list)

    def add_tree(self, structure: dict[str, Any], target: int = 0) -> None:
        self.target = target
        grows = "split_feature" in structure
        # The operator needs a branch in every tree, so both sides of this one lead to the only leaf.
        self.roots.append(self._branch(structure) if grows else self._append(0, 0.0, *self._leaf(structure) * 2))

    def _branch(self, part: dict[str, Any]) -> int:
        row = self._append(int(part["split_feature"]), _at_most(float(part["threshold"])), 0, 0, 0, 0)
        self.true_row[row], self.true_is_leaf[row] = self._child(part["left_child"])
        self.false_row[row], self.false_is_leaf[row] = self._child(part["right_child"])
        return row

    def _child(self, part: dict[str, Any]) -> tuple[int, int]:
        return (self._branch(part), 0) if "split_feature" in part else self._leaf(part)

    def _leaf(self, part: dict[str, Any]) -> tuple[int, int]:
        self.leaf_weight.append(self.share * float(part["leaf_value"]))
        self.leaf_target.append(self.target)
        return len(self.leaf_weight) - 1, 1

    def _append(
        self, feature: int, threshold: float, true_row: int, true_is_leaf: int, false_row: int, false_is_leaf: int
    ) -> int:
        self.feature.append(feature)
        self.threshold.append(threshold)
        self.true_row.append(true_row)
        self.true_is_leaf.append(true_is_leaf)
        self.false_row.append(false_row)
        self.false_is_leaf.append(false_is_leaf)
        return len(self.feature) - 1

    def attributes(self) -> dict[str, Any]:
        return {
            "tree_roots": self.roots, "nodes_featureids": self.feature,
            "nodes_splits": _tensor(np.array(self.threshold, np.float32)),
            "nodes_modes": _tensor(np.full(len(self.feature), _BRANCH_LEQ, np.uint8)),
            "nodes_truenodeids": self.true_row, "nodes_trueleafs": self.true_is_leaf,
            "nodes_falsenodeids": self.false_row, "nodes_falseleafs": self.false_is_leaf,
            "leaf_targetids": self.leaf_target,
            "leaf_weights": _tensor(np.array(self.leaf_weight, np.float32)),
        }  # fmt: skip


def _tensor(values: NDArray[Any]) -> onnx.TensorProto:
    return numpy_helper.from_array(values)


def of_regime(flag: str, regressors: list[onnx.NodeProto], results: list[str] | None = None) -> list[onnx.NodeProto]:
    """Runs the nodes only if some row has the regime's flag, so a forecast pays only for its own regime's trees.

    The results, by default what each node gives, keep their names. They are zero if no row has the flag.
    """
    results = [node.output[0] for node in regressors] if results is None else results
    for node in regressors:
        if node.output[0] in results:
            node.output[0] += "_run"
    run = helper.make_graph(regressors, f"of_{flag}", [], [_column(f"{result}_run") for result in results])
    zeros = [helper.make_node("Identity", [flag], [f"{result}_none"]) for result in results]
    none = helper.make_graph(zeros, f"none_of_{flag}", [], [_column(f"{result}_none") for result in results])
    return [
        helper.make_node("Gather", ["facts", f"{flag}_index"], [flag], axis=1),
        helper.make_node("ReduceMax", [flag], [f"{flag}_any"], keepdims=0),
        helper.make_node("Cast", [f"{flag}_any"], [f"{flag}_met"], to=onnx.TensorProto.BOOL),
        helper.make_node("If", [f"{flag}_met"], results, then_branch=run, else_branch=none),
    ]


def _column(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 1])


def _at_most(threshold: float) -> float:
    """The largest float32 up to the threshold, so that `x <= threshold` is the same for every float32 x."""
    rounded = np.float32(threshold)
    if float(rounded) > threshold:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)
