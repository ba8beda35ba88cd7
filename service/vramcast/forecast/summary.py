"""A network as its summary: the four numbers that a pod can carry in place of layers.

Training shows the learned part these very numbers, `vramcast profile` prints them and the catalog holds them: one
function, so that they mean the same everywhere. `activations` are the elements of one sample that live at once: what
autograd keeps (attention that fused kernels never write left out) with the gradients, or a language model's logits,
around its peak.
"""

from __future__ import annotations

from dataclasses import dataclass

from vramcast.forecast.description import CONVOLUTIONS, Description, OpKind
from vramcast.forecast.physics import sample_peak_bytes

_FLOAT_BYTES = 4
_KEEPS_INPUT = frozenset({OpKind.KEEPS_INPUT, OpKind.BATCH_NORM, OpKind.LAYER_NORM, OpKind.LINEAR, *CONVOLUTIONS})
_KEEPS_OUTPUT = frozenset({OpKind.KEEPS_OUTPUT, OpKind.SOFTMAX})


@dataclass(frozen=True, slots=True)
class Summary:
    architecture: str
    parameters: int
    layers: int
    activations: int  # elements per sample


def summarize(network: Description) -> Summary:
    kept_bytes = _graph_bytes(network) if network.replayable else sample_peak_bytes(network)
    return Summary(
        architecture=network.family,
        parameters=network.parameters,
        layers=len(network.ops),
        activations=max(1, round(kept_bytes / _FLOAT_BYTES)),
    )


def _graph_bytes(network: Description) -> float:
    """Where every operation's inputs are known, what is kept twice is counted once."""
    kept: dict[int, int] = {}
    masks = 0
    made_by = {-1: -1}  # a view keeps what it looks at
    for index, op in enumerate(network.ops):
        source = made_by[op.inputs[0]]
        made_by[index] = source if op.kind is OpKind.VIEW else index
        if op.kind in _KEEPS_INPUT:
            kept[source] = op.in_elements
        if op.kind in _KEEPS_OUTPUT:
            kept[index] = op.out_elements
        if op.kind is OpKind.DROPOUT:
            masks += op.out_elements  # a byte each
    return float(_FLOAT_BYTES * sum(kept.values()) + masks)
