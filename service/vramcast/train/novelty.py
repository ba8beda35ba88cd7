"""How far a task lies from the measured runs, and how errors on unseen networks grow with that distance.

A run is a point in the space of its facts: standardized, weighted by how much the trees gain from each fact, and turned
so that few axes hold most of the variance. The distance is that to the fifth nearest measured run. Left-out networks
show how far runs exceed their spread at each distance, so what a distance is worth is learned, and is zero in a regime
where it tells nothing. It becomes part of the ONNX graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import lightgbm
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Floats = NDArray[np.float32]
_AXES = 16
_NEIGHBOURS = 5
_CLIP = 4.0
_MIN_ROWS = 200
# What is tried for the growth of log(spread) with the distance.
_GROWTHS = np.arange(0.0, 3.01, 0.25)
_RISK = 0.05


@dataclass(frozen=True, slots=True)
class Novelty:
    """Of one regime."""

    center: Floats  # (facts,)
    scale: Floats  # (facts,)
    axes: Floats  # (facts, axes), weighted
    runs: Floats  # (runs, axes)
    growth: float = 0.0  # of log(spread) per unit of distance
    usual: float = 0.0  # at this distance the spread stays as it is
    farthest: float = 0.0  # of the left-out runs: beyond it nothing is known, and the spread stops growing

    def distances(self, facts: Floats) -> NDArray[np.float64]:
        points = self._project(facts)
        squares = (points**2).sum(1)[:, None] - 2.0 * points @ self.runs.T + (self.runs**2).sum(1)
        nearest = np.partition(squares, min(_NEIGHBOURS, len(self.runs)) - 1, axis=1)
        return np.asarray(np.sqrt(np.maximum(nearest[:, min(_NEIGHBOURS, len(self.runs)) - 1], 0.0)), np.float64)

    def widening(self, facts: Floats) -> NDArray[np.float64]:
        """What is added to the logarithm of the spread."""
        return self.growth * (np.minimum(self.distances(facts), self.farthest) - self.usual)

    def _project(self, facts: Floats) -> Floats:
        return np.clip((facts - self.center) * self.scale, -_CLIP, _CLIP) @ self.axes


def measured_space(facts: Floats, bag: Sequence[lightgbm.LGBMRegressor]) -> Novelty | None:
    """The space of these runs, weighted by what the trees gain from each fact. None for too few runs."""
    if len(facts) < _MIN_ROWS:
        return None
    gains = np.mean([model.booster_.feature_importance("gain") for model in bag], axis=0)
    weights = np.sqrt(gains / max(gains.sum(), 1e-9))
    center, deviation = facts.mean(0), facts.std(0)
    scale = np.where(deviation > 1e-6, 1.0 / np.maximum(deviation, 1e-6), 0.0)
    weighted = np.clip((facts - center) * scale, -_CLIP, _CLIP) * weights
    # The main axes of the weighted points; signs do not matter to distances.
    _, vectors = np.linalg.eigh(np.cov(weighted, rowvar=False).astype(np.float64))
    axes = (weights[:, None] * vectors[:, ::-1][:, :_AXES]).astype(np.float32)
    space = Novelty(center.astype(np.float32), scale.astype(np.float32), axes, np.zeros((0, _AXES), np.float32))
    return replace(space, runs=space._project(facts.astype(np.float32)).astype(np.float32))


@dataclass(frozen=True, slots=True)
class HeldOutRuns:
    """Runs of networks that were left out, in one regime: how far away they were, and how they came out."""

    distance: NDArray[np.float64]
    excess: NDArray[np.float64]  # of log(measured / median)
    spread: NDArray[np.float64]
    group: NDArray[np.str_]


def learned(space: Novelty, left_out: HeldOutRuns) -> Novelty:
    """With the growth that bounds left-out runs with the least loss. Every group counts by the root of its size."""
    usual = float(np.median(left_out.distance))
    weight = group_weights(left_out.group)
    best, growth = np.inf, 0.0
    for tried in _GROWTHS:
        spread = left_out.spread * np.exp(tried * (left_out.distance - usual))
        factor = weighted_quantile(left_out.excess / spread, weight, 1.0 - _RISK)
        beyond = left_out.excess - factor * spread
        loss = float((weight * np.maximum((1.0 - _RISK) * beyond, -_RISK * beyond)).sum())
        if loss < best * (1.0 - 1e-6):
            best, growth = loss, float(tried)
    return replace(space, growth=growth, usual=usual, farthest=float(np.quantile(left_out.distance, 0.99)))


def group_weights(groups: NDArray[np.str_]) -> NDArray[np.float64]:
    """A group of many runs says more than one of few, but not by as many times as it has runs."""
    _, member, count = np.unique(groups, return_inverse=True, return_counts=True)
    return np.asarray(1.0 / np.sqrt(count[member]), np.float64)


def weighted_quantile(values: NDArray[np.float64], weights: NDArray[np.float64], level: float) -> float:
    order = np.argsort(values)
    reached = np.cumsum(weights[order]) / weights.sum()
    return float(values[order][min(int(np.searchsorted(reached, level)), len(values) - 1)])


def novelty_nodes(space: Novelty, regime: int, result: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """The arithmetic of `widening` on `facts`, and its constants."""

    def own(name: str) -> str:
        return f"novelty_{regime}_{name}"

    constants = {
        "center": space.center,
        "scale": space.scale,
        "low": np.array(-_CLIP, np.float32),
        "high": np.array(_CLIP, np.float32),
        "axes": space.axes,
        "runs": np.ascontiguousarray(-2.0 * space.runs.T),
        "squares": (space.runs**2).sum(1),
        "count": np.array([min(_NEIGHBOURS, len(space.runs))], np.int64),
        "zero": np.array(0.0, np.float32),
        "farthest": np.array(space.farthest, np.float32),
        "usual": np.array(space.usual, np.float32),
        "growth": np.array(space.growth, np.float32),
        "columns": np.array([1], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Sub", ["facts", own("center")], [own("moved")]),
        node("Mul", [own("moved"), own("scale")], [own("scaled")]),
        node("Clip", [own("scaled"), own("low"), own("high")], [own("clipped")]),
        node("MatMul", [own("clipped"), own("axes")], [own("point")]),
        node("Mul", [own("point"), own("point")], [own("squared")]),
        node("ReduceSum", [own("squared"), own("columns")], [own("length")], keepdims=1),
        node("MatMul", [own("point"), own("runs")], [own("products")]),
        node("Add", [own("products"), own("squares")], [own("partial")]),
        node("Add", [own("partial"), own("length")], [own("apart")]),
        node("TopK", [own("apart"), own("count")], [own("nearest"), own("at")], axis=1, largest=0),
        node("ReduceMax", [own("nearest"), own("columns")], [own("square")], keepdims=1),
        node("Max", [own("square"), own("zero")], [own("positive")]),
        node("Sqrt", [own("positive")], [own("distance")]),
        node("Min", [own("distance"), own("farthest")], [own("known")]),
        node("Sub", [own("known"), own("usual")], [own("beyond")]),
        node("Mul", [own("beyond"), own("growth")], [result]),
    ]
    return nodes, [numpy_helper.from_array(value, own(name)) for name, value in constants.items()]
