"""Trees and network of totals as one ONNX graph, and the check that it gives the same results."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from vramcast.forecast.features import TOKEN_WIDTH, TOKENS
from vramcast.forecast.onnx_session import open_session
from vramcast.forecast.totals_features import FACTS
from vramcast.forecast.totals_model import FACTORS, INPUTS, OUTPUTS
from vramcast.train.export import ML_OPSET, TOLERANCE, ExportDiffers
from vramcast.train.simulated_data import LEVELS, Simulated, Tokens
from vramcast.train.totals_blend import BLEND, Blend
from vramcast.train.totals_network import TotalsNetwork
from vramcast.train.trees import ML_DOMAIN, factor_node

_OPSET = 18


class _Weighed(nn.Module):
    """The network's part of each output."""

    def __init__(self, network: TotalsNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, facts: Tensor, tokens: Tensor, kinds: Tensor) -> tuple[Tensor, ...]:
        return tuple(((1.0 - BLEND) * self.network(facts, tokens, kinds)).unbind(1))


def export_totals(blend: Blend) -> bytes:
    model = _export_network(blend.network)
    model.opset_import.append(helper.make_opsetid(ML_DOMAIN, ML_OPSET))
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([BLEND], np.float32), "blend"))
    for name in OUTPUTS:
        info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", FACTORS])
        graph.output.append(info)
        graph.node.extend(
            [
                factor_node([blend.trees[name].booster], INPUTS[0], f"{name}_of_trees", FACTORS),
                helper.make_node("Mul", [f"{name}_of_trees", "blend"], [f"{name}_weighed"]),
                helper.make_node("Add", [f"{name}_weighed", f"{name}_of_network"], [name]),
            ]
        )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _export_network(network: TotalsNetwork) -> onnx.ModelProto:
    kinds = torch.ones(1, TOKENS, dtype=torch.int64)
    example = (torch.zeros(1, len(FACTS)), torch.zeros(1, TOKENS, TOKEN_WIDTH), kinds)
    names = [f"{name}_of_network" for name in OUTPUTS]
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older exporter keeps a GRU as one operator
        torch.onnx.export(
            _Weighed(network).eval(), example, file, dynamo=False, opset_version=_OPSET, input_names=list(INPUTS),
            output_names=names, dynamic_axes={name: {0: "rows"} for name in (*INPUTS, *names)},
        )  # fmt: skip
    model = onnx.load_from_string(file.getvalue())
    del model.graph.output[:]  # the network's part alone is of no use
    return model


def check_totals(model: bytes, blend: Blend, data: Simulated, tokens: Tokens) -> float:
    """The largest difference on any row, told in any way. Raises ExportDiffers above the tolerance."""
    expected = blend.factors(data, tokens)
    session, worst = open_session(model), 0.0
    for level in range(len(LEVELS)):
        shown = data.network if level == 0 else np.zeros(len(data), np.int64)
        given = (data.facts[:, level], tokens.tokens[shown], tokens.kinds[shown])
        found = session.run(list(OUTPUTS), dict(zip(INPUTS, given, strict=True)))
        worst = max(worst, float(np.abs(np.stack(found, axis=1) - expected[:, level]).max()))
    if worst > TOLERANCE:
        raise ExportDiffers(f"the exported graph differs by up to {worst:.2g}, the tolerance is {TOLERANCE:g}")
    return worst
