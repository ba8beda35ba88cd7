"""Reads the networks in an artifact back into PyTorch, so that fine-tuning can start from them.

An exporter transposes, packs and stacks weights. So we first export a probe, a network in which every weight is a
different number: where a number appears in the probe's graph, the artifact's graph has that weight. Callers check that
the imported networks predict the same as the artifact on every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch import Tensor, nn

from vramcast.errors import InvalidInput
from vramcast.train.export import export
from vramcast.train.network import QUANTILES, UTILIZATIONS, ForecastNetwork, Shape
from vramcast.train.trees import Correction
from vramcast.train.utilization import UtilizationTrees

Floats = NDArray[np.float32]
_NETWORK_OUTPUTS = ("network_quantiles", "network_utilization")


class NotImportable(InvalidInput):
    """The artifact's graph is not what this version exports."""


@dataclass(frozen=True, slots=True)
class ImportedNetworks:
    networks: tuple[ForecastNetwork, ...]
    network_nodes: int  # nodes of the graph before the trees


def import_networks(model: onnx.ModelProto, shape: Shape, count: int) -> ImportedNetworks:
    """Raises NotImportable. Tries again with norms left out, because an exporter may fold them into the next layer."""
    wrong = ""
    for folded in (False, True):
        networks = tuple(ForecastNetwork(shape).eval() for _ in range(count))
        places = _number(networks, folded=folded)
        try:
            probe = _exported(networks)
            nodes = _network_nodes(probe)
            _fill(networks, places, _pairs(probe, model, nodes))
            return ImportedNetworks(networks, nodes)
        except NotImportable as error:
            wrong = str(error)
    raise NotImportable(f"the artifact's networks cannot be imported: {wrong}")


def replace_networks(model: onnx.ModelProto, networks: Sequence[ForecastNetwork], network_nodes: int) -> bytes:
    """The artifact's model with these networks and its own trees."""
    replaced = onnx.ModelProto()
    replaced.CopyFrom(model)
    known = {initializer.name: initializer for initializer in replaced.graph.initializer}
    for name, value, _ in _pairs(_exported(networks), replaced, network_nodes):
        known[name].CopyFrom(numpy_helper.from_array(value.astype(np.float32), name))
    onnx.checker.check_model(replaced)
    return replaced.SerializeToString()


class TreeHead:
    """The part of the artifact's graph after the networks: its trees, applied to any network's quantiles."""

    def __init__(self, model: onnx.ModelProto, network_nodes: int) -> None:
        graph = helper.make_graph(
            list(model.graph.node[network_nodes:]),
            "trees",
            [
                next(value for value in model.graph.input if value.name == "facts"),
                _column("network_quantiles", len(QUANTILES)),
                _column("network_utilization", UTILIZATIONS),
            ],
            [_column("quantiles", len(QUANTILES))],
            list(model.graph.initializer),
        )
        head = helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            head.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def apply(self, facts: Floats, quantiles: Floats) -> Floats:
        unused = np.zeros((len(facts), UTILIZATIONS), np.float32)
        given = {"facts": facts, "network_quantiles": quantiles, "network_utilization": unused}
        wanted = {known.name for known in self._session.get_inputs()}
        (shipped,) = self._session.run(["quantiles"], {name: value for name, value in given.items() if name in wanted})
        return np.asarray(shipped)


def _column(name: str, width: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["rows", width])


def _exported(networks: Sequence[ForecastNetwork]) -> onnx.ModelProto:
    return onnx.load_from_string(export(networks, Correction(), UtilizationTrees()))


def _network_nodes(probe: onnx.ModelProto) -> int:
    """Without trees, the nodes after the networks only rename their outputs."""
    return sum(not set(node.input) & set(_NETWORK_OUTPUTS) for node in probe.graph.node)


@torch.no_grad()  # type: ignore[untyped-decorator]
def _number(networks: Sequence[ForecastNetwork], *, folded: bool) -> list[tuple[Tensor, int]]:
    """Numbers all weights, from 1. Returns each tensor with the number before its first weight."""
    places, start = [], 0
    for network in networks:
        for module in network.modules():
            if folded and isinstance(module, nn.LayerNorm):
                continue  # an untrained norm has no effect
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.copy_(torch.arange(start + 1, start + 1 + tensor.numel(), dtype=torch.float32).view_as(tensor))
                places.append((tensor, start))
                start += tensor.numel()
    return places


def _pairs(first: onnx.ModelProto, second: onnx.ModelProto, nodes: int) -> Iterator[tuple[str, Floats, Floats]]:
    """Weights at the same place in two graphs: the second's name, and both values."""
    ours, theirs = (
        {initializer.name: numpy_helper.to_array(initializer) for initializer in model.graph.initializer}
        for model in (first, second)
    )
    if len(second.graph.node) < nodes:
        raise NotImportable(f"it has {len(second.graph.node)} nodes, expected {nodes} for its networks")
    for here, there in zip(first.graph.node[:nodes], second.graph.node[:nodes], strict=True):
        if here.op_type != there.op_type or len(here.input) != len(there.input):
            raise NotImportable(f"node {there.name!r} is a {there.op_type}, expected a {here.op_type}")
        for ours_name, theirs_name in zip(here.input, there.input, strict=True):
            value, other = ours.get(ours_name), theirs.get(theirs_name)
            if value is None or value.dtype != np.float32 or value.size <= 1:
                continue
            if other is None or other.shape != value.shape:
                raise NotImportable(f"weight {theirs_name!r} does not have the shape {value.shape}")
            yield theirs_name, value, other


@torch.no_grad()  # type: ignore[untyped-decorator]
def _fill(
    networks: Sequence[ForecastNetwork],
    places: Sequence[tuple[Tensor, int]],
    pairs: Iterator[tuple[str, Floats, Floats]],
) -> None:
    total = places[-1][1] + places[-1][0].numel()
    values = np.full(total + 1, np.nan, np.float32)
    for _, numbers, weights in pairs:
        whole = (numbers == np.round(numbers)) & (numbers >= 1) & (numbers <= total)
        values[numbers[whole].astype(np.int64)] = weights[whole]
    for tensor, start in places:
        found = values[start + 1 : start + 1 + tensor.numel()]
        if np.isnan(found).any():
            raise NotImportable(f"{np.isnan(found).sum()} weights of {len(networks)} networks are not in its graph")
        tensor.copy_(torch.as_tensor(found).view_as(tensor))
