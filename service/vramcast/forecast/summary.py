"""A network as its summary: the four numbers that a pod can carry in place of layers."""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.forecast.description import Description
from vramcast.forecast.saved import layer_table, saved_bytes

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Summary:
    architecture: str
    parameters: int
    layers: int
    activations: int  # elements per sample


def summarize(network: Description) -> Summary:
    """`activations` are what autograd keeps, without attention matrices that fused kernels never write."""
    saved = saved_bytes(network, layer_table(network.ops))
    kept_bytes = saved.per_sample_bytes - saved.fused_attention_bytes
    return Summary(network.family, network.parameters, len(network.ops), max(1, round(kept_bytes / _FLOAT_BYTES)))
