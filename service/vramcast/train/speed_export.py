"""Networks and trees of step times as one ONNX graph, and the check that it gives the same results."""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from vramcast.forecast.onnx_session import open_session
from vramcast.forecast.speed_artifact import INPUTS, OUTPUTS, QUANTILES
from vramcast.forecast.speed_features import FACTS, TOKEN_WIDTH, TOKENS
from vramcast.train.export import ML_OPSET, TOLERANCE, ExportDiffers
from vramcast.train.speed_network import Mean, SpeedArrays, SpeedNetwork, predict
from vramcast.train.speed_trees import SpeedTrees
from vramcast.train.trees import ML_DOMAIN

# Weights of the medians: boosted trees, forest, network. Chosen on other folds than those that are reported.
BLEND = (0.45, 0.45, 0.1)
_OPSET = 18
_MEDIAN = QUANTILES.index(0.5)


@dataclass(frozen=True, slots=True)
class Fitted:
    """Networks and trees of one training set."""

    networks: tuple[SpeedNetwork, ...]
    trees: SpeedTrees

    def quantiles(self, data: SpeedArrays) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """What ships, and the network alone: (rows, quantiles)."""
        own = predict(self.networks, data)
        medians = np.stack([*self.trees.predict(data.facts), own[:, _MEDIAN]], axis=1)
        return blend(own, medians), own


def blend(network: NDArray[np.float32], medians: NDArray[np.float32]) -> NDArray[np.float32]:
    """Moves all quantiles alike. `medians`: (rows, predictors)."""
    median = medians @ np.array(BLEND, np.float32)
    return np.asarray(network + (median - network[:, _MEDIAN])[:, None], np.float32)


def export_speed(fitted: Fitted) -> bytes:
    kinds = torch.ones(1, TOKENS, dtype=torch.int64)
    example = (torch.zeros(1, len(FACTS)), torch.zeros(1, TOKENS, TOKEN_WIDTH), kinds)
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter keeps a GRU as one operator
        torch.onnx.export(
            Mean(fitted.networks).eval(), example, file, dynamo=False, opset_version=_OPSET, input_names=list(INPUTS),
            output_names=[OUTPUTS[1]], dynamic_axes={name: {0: "rows"} for name in (*INPUTS, OUTPUTS[1])},
        )  # fmt: skip
    model = onnx.load_from_string(file.getvalue())
    model.opset_import.append(helper.make_opsetid(ML_DOMAIN, ML_OPSET))
    graph, node = model.graph, helper.make_node
    graph.output.append(helper.make_tensor_value_info(OUTPUTS[0], onnx.TensorProto.FLOAT, ["rows", len(QUANTILES)]))
    graph.initializer.extend([
        numpy_helper.from_array(np.array([_MEDIAN], np.int64), "median_index"),
        numpy_helper.from_array(np.array(BLEND, np.float32)[:, None], "blend"),
    ])  # fmt: skip
    graph.node.extend([
        *fitted.trees.nodes("facts", "boosted_median", "forest_median"),
        node("Gather", [OUTPUTS[1], "median_index"], ["network_median"], axis=1),
        node("Concat", ["boosted_median", "forest_median", "network_median"], ["medians"], axis=1),
        node("MatMul", ["medians", "blend"], ["median"]),
        node("Sub", ["median", "network_median"], ["move"]),
        node("Add", [OUTPUTS[1], "move"], [OUTPUTS[0]]),
    ])  # fmt: skip
    onnx.checker.check_model(model)
    return model.SerializeToString()


def check_parity(model: bytes, fitted: Fitted, data: SpeedArrays) -> float:
    """The largest difference on any row. Raises ExportDiffers above the tolerance."""
    exported, network = open_session(model).run(
        list(OUTPUTS), {"facts": data.facts, "tokens": data.tokens, "kinds": data.kinds}
    )
    blended, own = fitted.quantiles(data)
    worst = max(float(np.abs(exported - blended).max()), float(np.abs(network - own).max()))
    if worst > TOLERANCE:
        raise ExportDiffers(f"the exported graph differs by up to {worst:.2g}, the tolerance is {TOLERANCE:g}")
    return worst
