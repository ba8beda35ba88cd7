"""Trees for `sm_active`: the exported graph equals the trees, for their own regimes only."""

from __future__ import annotations

import lightgbm
import numpy as np
import onnx
import onnxruntime
from onnx import helper

from vramcast.forecast.features import FACTS, Regime
from vramcast.train.export import ML_OPSET
from vramcast.train.trees import ML_DOMAIN
from vramcast.train.utilization import SM_ACTIVE, UtilizationTrees, append_nodes

ROWS = 200


def _rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    facts = rng.normal(size=(ROWS, len(FACTS))).astype(np.float32)
    regimes = rng.integers(0, len(Regime), ROWS)
    facts[:, : len(Regime)] = np.eye(len(Regime))[regimes]
    return facts, regimes, rng.random((ROWS, 3)).astype(np.float32)


def _run(trees: UtilizationTrees, facts: np.ndarray, network: np.ndarray) -> np.ndarray:
    shapes = {"facts": ["rows", len(FACTS)], "network_utilization": ["rows", 3], "utilization": ["rows", 3]}
    info = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph([], "use", [info["facts"], info["network_utilization"]], [info["utilization"]])
    append_nodes(graph, trees)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["utilization"], {"facts": facts, "network_utilization": network})[0])


def test_the_graph_equals_the_trees() -> None:
    facts, regimes, network = _rows()
    target = 3.0 * facts[:, 10]  # outside 0 to 1, so both sides must clip
    model = lightgbm.LGBMRegressor(n_estimators=20, verbose=-1).fit(facts, target)
    trees = UtilizationTrees({int(Regime.REPLAYED): model, int(Regime.TRACED): model})
    predicted = trees.apply(network, facts, regimes)
    assert np.abs(_run(trees, facts, network) - predicted).max() < 1e-5
    own = np.isin(regimes, [Regime.REPLAYED, Regime.TRACED])
    assert np.array_equal(predicted[~own], network[~own])
    assert (predicted[own, SM_ACTIVE] != network[own, SM_ACTIVE]).any()
    assert predicted.min() >= 0.0
    assert predicted.max() <= 1.0


def test_without_trees_the_networks_output_is_unchanged() -> None:
    facts, _, network = _rows()
    assert np.array_equal(_run(UtilizationTrees(), facts, network), network)
