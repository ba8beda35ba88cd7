"""Trees of totals as an ONNX graph, and the check that it gives the same results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper

from vramcast.forecast.totals_features import FACTS
from vramcast.forecast.totals_model import FACTORS, INPUTS, OUTPUTS, open_session
from vramcast.train.export import ML_OPSET, TOLERANCE, ExportDiffers
from vramcast.train.simulated_data import Floats
from vramcast.train.totals_trees import FactorTrees, mean_factors
from vramcast.train.trees import ML_DOMAIN, factor_node

_OPSET = 18


def export_totals(trees: Mapping[str, Sequence[FactorTrees]]) -> bytes:
    """By output."""
    info, real = helper.make_tensor_value_info, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [factor_node([one.booster for one in trees[name]], INPUTS[0], name, FACTORS) for name in OUTPUTS],
        "totals",
        [info(INPUTS[0], real, ["rows", len(FACTS)])],
        [info(name, real, ["rows", FACTORS]) for name in OUTPUTS],
    )
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(ML_DOMAIN, ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def check_totals(model: bytes, trees: Mapping[str, Sequence[FactorTrees]], facts: Floats) -> float:
    """The largest difference on any row. Raises ExportDiffers above the tolerance."""
    found = open_session(model).run(list(OUTPUTS), {INPUTS[0]: facts})
    worst = max(
        float(np.abs(np.asarray(factors) - mean_factors(trees[name], facts)).max())
        for name, factors in zip(OUTPUTS, found, strict=True)
    )
    if worst > TOLERANCE:
        raise ExportDiffers(f"the exported graph differs by up to {worst:.2g}, the tolerance is {TOLERANCE:g}")
    return worst
