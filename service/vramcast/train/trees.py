"""Boosted trees that correct the network, as operators of the same ONNX graph.

Two kinds of ensembles per regime, because each regime leaves another kind of rest: some, averaged over seeds, pull the
median towards their own, another says how far off the median tends to be, which sharpens the spread that the everyday
bounds stand on. The far tail stays the network's. Trees on what the network *missed* were worse than none: the
networks of two folds miss different things (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightgbm
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from vramcast.core.calibration import MIN_SPREAD
from vramcast.forecast.features import Regime
from vramcast.train.network import MEDIAN, QUANTILES

Floats = NDArray[np.float32]
ML_DOMAIN = "ai.onnx.ml"
_MIN_ROWS = 60
# Replays without cuDNN are right to the MiB: trees would only add noise.
_EXACT = Regime.REPLAYED
# How far the median moves from the network's to the trees'.
BLEND = 0.7
# Ensembles of the median per regime, which differ by their seed alone: their mean wavers less than any of them.
BAGS = 3
# Quantiles whose distance from the median the trees sharpen; the last, the far tail, is not among them.
SHARPENED = tuple(0.5 < level < 0.99 for level in QUANTILES)
_FLOOR = 0.004  # of the distance, before its logarithm


def median_parameters(seed: int) -> dict[str, Any]:
    return _parameters(seed) | {"objective": "l1", "n_estimators": 350, "learning_rate": 0.05, "num_leaves": 20}


def distance_parameters(seed: int) -> dict[str, Any]:
    sizes = {"n_estimators": 250, "learning_rate": 0.04, "num_leaves": 15, "min_child_samples": 20}
    return _parameters(seed) | {"objective": "l2"} | sizes


def _parameters(seed: int) -> dict[str, Any]:
    return {
        "min_child_samples": 8, "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.3, "reg_lambda": 1.0,
        "verbose": -1, "n_jobs": 1, "random_state": seed, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip


Bag = tuple[lightgbm.LGBMRegressor, ...]


@dataclass(frozen=True, slots=True)
class Said:
    """What trees say of rows; zero where their regime has none."""

    corrected: NDArray[np.bool_]
    median: NDArray[np.float64]  # of log(measured / prior)
    log_distance: NDArray[np.float64]


@dataclass(slots=True)
class Correction:
    """Ensembles by regime; a regime with too few rows is left to the network."""

    medians: dict[int, Bag] = field(default_factory=dict)
    distances: dict[int, Bag] = field(default_factory=dict)

    def say(self, facts: Floats, quantiles: Floats, regimes: NDArray[np.int64]) -> Said:
        corrected = np.isin(regimes, list(self.medians))
        stacked = stack_inputs(facts, quantiles)
        return Said(corrected, _by_regime(self.medians, facts, regimes), _by_regime(self.distances, stacked, regimes))

    def correct(self, facts: Floats, quantiles: Floats, regimes: NDArray[np.int64]) -> Floats:
        return apply(quantiles, self.say(facts, quantiles, regimes))


def _by_regime(bags: dict[int, Bag], inputs: Floats, regimes: NDArray[np.int64]) -> NDArray[np.float64]:
    said = np.zeros(len(inputs))
    for regime, bag in bags.items():
        rows = regimes == regime
        if rows.any():
            said[rows] = np.mean([model.predict(inputs[rows]) for model in bag], axis=0)
    return said


def apply(quantiles: Floats, said: Said) -> Floats:
    """The same arithmetic as in the exported graph."""
    median = quantiles[:, MEDIAN : MEDIAN + 1]
    corrected = said.corrected[:, None]
    moved = median + np.where(corrected, BLEND * (said.median[:, None] - median), 0.0)
    distance = quantiles - median
    sharp = np.sqrt(np.maximum(distance, MIN_SPREAD) * np.exp(said.log_distance)[:, None])
    distance = np.where(corrected & np.array(SHARPENED), sharp, distance)
    return (moved + distance).astype(np.float32)


def stack_inputs(facts: Floats, quantiles: Floats) -> Floats:
    return np.concatenate([facts, quantiles], axis=1).astype(np.float32)


def fit_medians(facts: Floats, regimes: NDArray[np.int64], target: Floats, weights: Floats, seed: int) -> Correction:
    correction = Correction()
    for regime in Regime:
        rows = regimes == regime
        if regime is not _EXACT and np.count_nonzero(rows) >= _MIN_ROWS:
            correction.medians[int(regime)] = tuple(
                lightgbm.LGBMRegressor(**median_parameters(BAGS * seed + bag)).fit(
                    facts[rows], target[rows], sample_weight=weights[rows]
                )
                for bag in range(BAGS)
            )
    return correction


def fit_distances(
    correction: Correction, stacked: Floats, regimes: NDArray[np.int64], missed: Floats, weights: Floats, seed: int
) -> None:
    """`missed` is of rows that neither network nor trees had seen."""
    for regime in correction.medians:
        rows = regimes == regime
        model = lightgbm.LGBMRegressor(**distance_parameters(seed))
        target = np.log(np.abs(missed[rows]) + _FLOOR)
        correction.distances[regime] = (model.fit(stacked[rows], target, sample_weight=weights[rows]),)


def regressor_node(bag: Bag, source: str, result: str) -> onnx.NodeProto:
    """The mean over the bag: one ensemble of all its trees, each with its share."""
    table = _NodeTable(share=1.0 / len(bag))
    for model in bag:
        for tree in model.booster_.dump_model()["tree_info"]:
            table.add_tree(tree["tree_structure"])
    return helper.make_node(
        "TreeEnsembleRegressor", [source], [result], domain=ML_DOMAIN, n_targets=1, aggregate_function="SUM",
        post_transform="NONE", **table.attributes(),
    )  # fmt: skip


@dataclass(slots=True)
class _NodeTable:
    """The operator's columns: one row per node, one per leaf."""

    share: float
    tree: list[int] = field(default_factory=list)
    node: list[int] = field(default_factory=list)
    feature: list[int] = field(default_factory=list)
    mode: list[str] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    true_node: list[int] = field(default_factory=list)
    false_node: list[int] = field(default_factory=list)
    leaf_tree: list[int] = field(default_factory=list)
    leaf_node: list[int] = field(default_factory=list)
    leaf_weight: list[float] = field(default_factory=list)
    trees: int = 0

    def add_tree(self, structure: dict[str, Any]) -> None:
        self._add(structure, [0])
        self.trees += 1

    def _add(self, part: dict[str, Any], counter: list[int]) -> int:
        number = counter[0]
        counter[0] += 1
        row = len(self.tree)
        leaf = "split_feature" not in part
        self.tree.append(self.trees)
        self.node.append(number)
        self.feature.append(0 if leaf else int(part["split_feature"]))
        self.mode.append("LEAF" if leaf else "BRANCH_LEQ")
        self.value.append(0.0 if leaf else _at_most(float(part["threshold"])))
        self.true_node.append(0)
        self.false_node.append(0)
        if leaf:
            self.leaf_tree.append(self.trees)
            self.leaf_node.append(number)
            self.leaf_weight.append(self.share * float(part["leaf_value"]))
        else:
            self.true_node[row] = self._add(part["left_child"], counter)
            self.false_node[row] = self._add(part["right_child"], counter)
        return number

    def attributes(self) -> dict[str, Any]:
        return {
            "nodes_treeids": self.tree, "nodes_nodeids": self.node, "nodes_featureids": self.feature,
            "nodes_modes": self.mode, "nodes_values": self.value, "nodes_truenodeids": self.true_node,
            "nodes_falsenodeids": self.false_node, "nodes_missing_value_tracks_true": [0] * len(self.tree),
            "target_treeids": self.leaf_tree, "target_nodeids": self.leaf_node,
            "target_ids": [0] * len(self.leaf_tree), "target_weights": self.leaf_weight,
        }  # fmt: skip


def of_regime(flag: str, regressors: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Runs them only where a row's flag is set: a forecast pays for the trees of its own regime alone.

    Results have the same names; they are zero where no row is of the regime.
    """
    results = [node.output[0] for node in regressors]
    for node in regressors:
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
    """The largest float32 that is not above: `x <= threshold` then means the same for every float32 x."""
    rounded = np.float32(threshold)
    if float(rounded) > threshold:
        rounded = np.nextafter(rounded, np.float32(-np.inf))
    return float(rounded)
