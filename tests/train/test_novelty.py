"""Novelty: the spread grows with the distance from measured runs as left-out runs show, and the graph says the same."""

from __future__ import annotations

import lightgbm
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from vramcast.forecast.features import FACTS, Regime
from vramcast.train.export import ML_OPSET
from vramcast.train.novelty import HeldOutRuns, Novelty, learned, measured_space, novelty_nodes
from vramcast.train.trees import ML_DOMAIN

ROWS = 400


@pytest.fixture(scope="module")
def space() -> Novelty:
    rng = np.random.default_rng(0)
    facts = rng.normal(size=(ROWS, len(FACTS))).astype(np.float32)
    model = lightgbm.LGBMRegressor(n_estimators=20, verbose=-1).fit(facts, facts[:, 10] + 0.5 * facts[:, 20])
    found = measured_space(facts, [model])
    assert found is not None
    return found


def _left_out(space: Novelty, growth: float) -> HeldOutRuns:
    rng = np.random.default_rng(1)
    distance = rng.uniform(0.0, 2.0, 4000)
    excess = 0.02 * np.exp(growth * distance) * rng.normal(size=4000)
    group = np.array([f"group{number % 40}" for number in range(4000)])
    return HeldOutRuns(distance, excess, np.full(4000, 0.02), group)


def test_what_was_measured_is_near_and_what_is_unlike_it_is_far(space: Novelty) -> None:
    facts = np.zeros((2, len(FACTS)), np.float32)
    facts[1, 10] = 20.0
    near, far = space.distances(facts)
    assert near < far


@pytest.mark.parametrize("growth", [0.0, 1.0, 2.0])
def test_the_growth_is_what_left_out_runs_show(space: Novelty, growth: float) -> None:
    assert learned(space, _left_out(space, growth)).growth == pytest.approx(growth, abs=0.25)


def test_beyond_the_farthest_left_out_run_the_spread_stops_growing(space: Novelty) -> None:
    known = learned(space, _left_out(space, 1.0))
    facts = np.zeros((2, len(FACTS)), np.float32)
    facts[:, :] = np.array([[50.0], [500.0]])
    once, again = known.widening(facts)
    assert once == again
    assert once <= 1.25 * known.farthest


def test_too_few_runs_make_no_space(space: Novelty) -> None:
    assert measured_space(np.zeros((10, len(FACTS)), np.float32), []) is None


def test_the_graph_equals_the_arithmetic(space: Novelty) -> None:
    known = learned(space, _left_out(space, 1.0))
    nodes, constants = novelty_nodes(known, int(Regime.TRACED), "widening")
    given = helper.make_tensor_value_info("facts", onnx.TensorProto.FLOAT, ["rows", len(FACTS)])
    result = helper.make_tensor_value_info("widening", onnx.TensorProto.FLOAT, ["rows", 1])
    graph = helper.make_graph(nodes, "novelty", [given], [result], constants)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    facts = np.random.default_rng(2).normal(size=(30, len(FACTS))).astype(np.float32)
    (found,) = session.run(["widening"], {"facts": facts})
    assert np.abs(found[:, 0] - known.widening(facts)).max() < 1e-4
