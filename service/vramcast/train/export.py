"""Exports networks and trees as one ONNX graph, and compares it with PyTorch and LightGBM on every row."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from vramcast.errors import VramcastError
from vramcast.forecast.features import FACTS, TOKEN_WIDTH, TOKENS
from vramcast.forecast.forecast import MIN_SPREAD
from vramcast.forecast.model import INPUTS, OUTPUTS
from vramcast.train.dataset import Dataset
from vramcast.train.network import MEDIAN, QUANTILES, UTILIZATIONS, ForecastNetwork
from vramcast.train.novelty import novelty_nodes
from vramcast.train.stacked import Stacked
from vramcast.train.trees import (
    DISTANCE_BLEND,
    ML_DOMAIN,
    MOST_DISTANCE,
    SHARPENED,
    Correction,
    blend_of,
    of_regime,
    regressor_node,
)
from vramcast.train.utilization import UtilizationTrees, append_nodes

TOLERANCE = 1e-4
_OPSET = 18
ML_OPSET = 5  # the first with TreeEnsemble
_ROWS = "rows"
_NETWORK_OUTPUTS = ("network_quantiles", "network_utilization")


class ExportDiffers(VramcastError):
    """The exported graph and the trained model give different results."""


class Ensemble(nn.Module):
    """The mean of the networks."""

    def __init__(self, networks: Sequence[ForecastNetwork]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, Tensor]:
        outputs = [network(facts, tokens, kinds) for network in self.networks]
        quantiles = torch.stack([quantiles for quantiles, _, _ in outputs]).mean(0)
        return quantiles, torch.stack([utilization for _, utilization, _ in outputs]).mean(0)


def export(networks: Sequence[ForecastNetwork], correction: Correction, utilization: UtilizationTrees) -> bytes:
    model = _export_networks(Stacked(networks).eval())
    if correction.medians or utilization.models:
        model.opset_import.append(helper.make_opsetid(ML_DOMAIN, ML_OPSET))
    _append_trees(model, correction)
    shape = [_ROWS, UTILIZATIONS]
    model.graph.output.append(helper.make_tensor_value_info("utilization", onnx.TensorProto.FLOAT, shape))
    append_nodes(model.graph, utilization)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _export_networks(stacked: Stacked) -> onnx.ModelProto:
    example = (
        torch.zeros(1, len(FACTS)),
        torch.zeros(1, TOKENS, TOKEN_WIDTH),
        torch.ones(1, TOKENS, dtype=torch.int64),
    )
    file = io.BytesIO()
    with warnings.catch_warnings():
        # The older exporter keeps a GRU as one operator, where the newer one unrolls it, and warns about its age.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            stacked, example, file, dynamo=False, opset_version=_OPSET, input_names=list(INPUTS),
            output_names=list(_NETWORK_OUTPUTS),
            dynamic_axes={name: {0: _ROWS} for name in (*INPUTS, *_NETWORK_OUTPUTS)},
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def _append_trees(model: onnx.ModelProto, correction: Correction) -> None:
    """The arithmetic of `trees.apply`, for rows whose regime has trees."""
    graph = model.graph
    shape = [_ROWS, len(QUANTILES)]
    graph.output.append(helper.make_tensor_value_info("quantiles", onnx.TensorProto.FLOAT, shape))
    if not correction.medians:
        graph.node.append(helper.make_node("Identity", ["network_quantiles"], ["quantiles"]))
        return
    constants = {
        "median_index": np.array([MEDIAN], np.int64),
        "least_distance": np.array([MIN_SPREAD], np.float32),
        "most_distance": np.array([MOST_DISTANCE], np.float32),
        "distance_blend": np.array([DISTANCE_BLEND], np.float32),
        "distance_rest": np.array([1.0 - DISTANCE_BLEND], np.float32),
        "sharpened": np.array([SHARPENED], np.float32),
        **{f"flag_{regime}_index": np.array([regime], np.int64) for regime in correction.medians},
        **{f"blend_{regime}": blend_of(np.array([regime])).astype(np.float32) for regime in correction.medians},
    }
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    graph.node.extend([
        helper.make_node("Concat", ["facts", "network_quantiles"], ["stacked"], axis=1),
        helper.make_node("Gather", ["network_quantiles", "median_index"], ["network_median"], axis=1),
        *(node for regime in sorted(correction.medians) for node in _regime_nodes(graph, correction, regime)),
        *_combining_nodes(sorted(correction.medians), sorted(set(correction.novelty) & set(correction.medians))),
    ])  # fmt: skip


def _regime_nodes(graph: onnx.GraphProto, correction: Correction, regime: int) -> list[onnx.NodeProto]:
    """Results are zero for rows of other regimes."""
    flag = f"flag_{regime}"
    results = [f"tree_median_{regime}", f"tree_distance_{regime}"]
    run = [
        regressor_node(correction.medians[regime], "facts", results[0]),
        regressor_node(correction.distances[regime], "stacked", results[1]),
    ]
    if regime in correction.novelty:
        results.append(f"any_widening_{regime}")
        nodes, constants = novelty_nodes(correction.novelty[regime], regime, results[-1])
        run += nodes
        graph.initializer.extend(constants)
    return [
        *of_regime(flag, run, results),
        helper.make_node("Sub", [f"tree_median_{regime}", "network_median"], [f"apart_{regime}"]),
        helper.make_node("Mul", [flag, f"blend_{regime}"], [f"weight_{regime}"]),
        helper.make_node("Mul", [f"apart_{regime}", f"weight_{regime}"], [f"move_{regime}"]),
        helper.make_node("Mul", [f"tree_distance_{regime}", flag], [f"own_distance_{regime}"]),
        *([helper.make_node("Mul", [results[-1], flag], [f"widening_{regime}"])] if len(results) > 2 else []),
    ]


def _combining_nodes(regimes: list[int], with_novelty: list[int]) -> list[onnx.NodeProto]:
    def each(name: str) -> list[str]:
        return [f"{name}_{regime}" for regime in regimes]

    node = helper.make_node
    return [
        node("Sum", each("move"), ["move"]),
        node("Sum", each("own_distance"), ["log_distance"]),
        node("Sum", each("flag"), ["corrected"]),
        node("Add", ["network_median", "move"], ["median"]),
        node("Sub", ["network_quantiles", "network_median"], ["distance"]),
        node("Max", ["distance", "least_distance"], ["some_distance"]),
        node("Pow", ["some_distance", "distance_rest"], ["own_part"]),
        node("Mul", ["log_distance", "distance_blend"], ["blended_distance"]),
        node("Sum", ["blended_distance", *(f"widening_{regime}" for regime in with_novelty)], ["widened_distance"]),
        node("Exp", ["widened_distance"], ["tree_part"]),
        node("Mul", ["own_part", "tree_part"], ["any_sharp"]),
        node("Min", ["any_sharp", "most_distance"], ["sharp"]),
        node("Mul", ["corrected", "sharpened"], ["use_sharp"]),
        node("Sub", ["sharp", "distance"], ["sharper"]),
        node("Mul", ["sharper", "use_sharp"], ["sharpening"]),
        node("Sum", ["median", "distance", "sharpening"], ["quantiles"]),
    ]


def run(model: bytes, data: Dataset, *, summary: bool = False) -> tuple[NDArray[np.float32], ...]:
    """Quantiles, utilization and network quantiles of every row."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    blank = 0 if summary else 1
    inputs = {
        "facts": data.summary_facts if summary else data.facts,
        "tokens": data.tokens * blank,
        "kinds": data.kinds * blank,
    }
    return tuple(session.run(list(OUTPUTS), inputs))


def check_parity(
    model: bytes,
    networks: Sequence[ForecastNetwork],
    correction: Correction,
    trees: UtilizationTrees,
    data: Dataset,
) -> float:
    """Returns the largest difference on any row. Raises ExportDiffers above the tolerance."""
    exported, utilization, network_quantiles = run(model, data)
    with torch.no_grad():
        expected, expected_utilization = Ensemble(networks).eval()(
            torch.as_tensor(data.facts), torch.as_tensor(data.tokens), torch.as_tensor(data.kinds)
        )
    worst = max(
        float(np.abs(network_quantiles - expected.numpy()).max()),
        float(np.abs(utilization - trees.apply(expected_utilization.numpy(), data.facts, data.regime)).max()),
        float(np.abs(exported - correction.correct(data.facts, network_quantiles, data.regime)).max()),
    )
    if worst > TOLERANCE:
        raise ExportDiffers(f"the exported graph differs by up to {worst:.2g}, the tolerance is {TOLERANCE:g}")
    return worst
