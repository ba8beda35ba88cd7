"""Boosted trees that correct the network, as operators of the same ONNX graph.

Two kinds of ensembles per regime, because each regime leaves another kind of rest: some, averaged over seeds, pull the
median towards their own, others say how far off the network tends to be, which sharpens the spread that the everyday
bounds stand on. The far tail stays the network's. Medians fitted on what the network *missed* were worse than none:
the networks of two folds miss different things (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import lightgbm
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from vramcast.forecast.conformal import MIN_SPREAD
from vramcast.forecast.features import Regime
from vramcast.train.network import MEDIAN, QUANTILES

Floats = NDArray[np.float32]
ML_DOMAIN = "ai.onnx.ml"
# In the words of the operator TreeEnsemble, whose columns are numbers; its forerunner takes a string for every node,
# and a runtime some ten times the memory.
_SUM, _BRANCH_LEQ = 1, 0
_MIN_ROWS = 60
# Replays without cuDNN are right to the MiB: trees would only add noise.
_EXACT = Regime.REPLAYED
# How far the median moves from the network's to the trees'.
BLEND = 0.8
# The same for the logarithm of a distance from the median.
DISTANCE_BLEND = 0.65
# Ensembles of one kind per regime, which differ by their seed alone: their mean wavers less than any of them.
BAGS = 3
# Quantiles whose distance from the median the trees sharpen; the last, the far tail, is not among them.
SHARPENED = tuple(0.5 < level < 0.99 for level in QUANTILES)
# Beyond this a sharpened distance tells oddity and no longer distance: on unseen runs the bounds of those that were
# given more covered no more of them, and a network unlike any measured one would be bounded at thrice its median.
MOST_DISTANCE = 0.2
_FLOOR = 0.004  # of the distance, before its logarithm


def median_parameters(regime: Regime, seed: int) -> dict[str, Any]:
    sizes: dict[str, Any] = {"n_estimators": 350, "learning_rate": 0.05, "num_leaves": 20}
    if regime is Regime.TRACED:
        # Thresholds drawn at random: what the other regimes tell exactly is a jumble of architectures here.
        sizes |= {"n_estimators": 300, "num_leaves": 31, "extra_trees": True}
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
    own = np.maximum(distance, MIN_SPREAD) ** (1.0 - DISTANCE_BLEND)
    sharp = np.minimum(own * np.exp(DISTANCE_BLEND * said.log_distance)[:, None], MOST_DISTANCE)
    distance = np.where(corrected & np.array(SHARPENED), sharp, distance)
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
    """`missed` is by how much networks missed rows that they had not seen.

    What network and trees together missed teaches less: it is more of an accident.
    """
    for regime in correction.medians:
        rows = regimes == regime
        bag = [distance_parameters(BAGS * seed + number) for number in range(BAGS)]
        target = np.log(np.abs(missed[rows]) + _FLOOR)
        correction.distances[regime] = _fit(bag, stacked[rows], target, weights[rows])


def _fit(bag: list[dict[str, Any]], inputs: Floats, target: Floats, weights: Floats) -> Bag:
    return tuple(lightgbm.LGBMRegressor(**one).fit(inputs, target, sample_weight=weights) for one in bag)


def regressor_node(bag: Bag, source: str, result: str) -> onnx.NodeProto:
    """The mean over the bag: one ensemble of all its trees, each with its share."""
    table = _NodeTable(share=1.0 / len(bag))
    for model in bag:
        for tree in model.booster_.dump_model()["tree_info"]:
            table.add_tree(tree["tree_structure"])
    return helper.make_node(
        "TreeEnsemble", [source], [result], domain=ML_DOMAIN, n_targets=1, aggregate_function=_SUM,
        **table.attributes(),
    )  # fmt: skip


@dataclass(slots=True)
class _NodeTable:
    """The operator's columns: one row per branching, one per leaf. Branchings name what they lead to by its row."""

    share: float
    feature: list[int] = field(default_factory=list)
    threshold: list[float] = field(default_factory=list)
    true_row: list[int] = field(default_factory=list)
    true_is_leaf: list[int] = field(default_factory=list)
    false_row: list[int] = field(default_factory=list)
    false_is_leaf: list[int] = field(default_factory=list)
    leaf_weight: list[float] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)

    def add_tree(self, structure: dict[str, Any]) -> None:
        grows = "split_feature" in structure
        # The operator knows no tree without a branching: both ways of this one lead to its only leaf.
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
            "leaf_targetids": [0] * len(self.leaf_weight),
            "leaf_weights": _tensor(np.array(self.leaf_weight, np.float32)),
        }  # fmt: skip


def _tensor(values: NDArray[Any]) -> onnx.TensorProto:
    return numpy_helper.from_array(values)


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
