"""What a token adds to a step, by the rules: from layers where they are known, from totals otherwise.

A checkpointed step keeps the hidden state between blocks, recomputes one block at a time and holds the logits whole. So
its memory goes by the width, the blocks and the vocabulary, and hardly by what a plain step saves. Layers tell all
three. Totals do not: blocks save 11 to 38 widths for a token, and what is left for logits is anybody's guess
(docs/log.md), so there the rules' share of the saved elements counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from vramcast.forecast.description import Description, OpKind
from vramcast.forecast.physics import layered_of
from vramcast.forecast.rules import held_share
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Kernels, Kind

# Of a block: leaf modules, and widths that are saved for each token.
_MODULES = 10.0
_SAVED_WIDTHS = 20.0
# Of a block without gradients, at its widest.
_LIVE_WIDTHS = 10.0
# At the loss a logit counts three times in a network's activations.
_LOGIT_COPIES = 3.0
# Logits in 16 bits, their copy in fp32, log-softmax, and the gradients; in fp32 without the copy; without gradients.
_LOGIT_BYTES = 14.0
_FP32_LOGIT_BYTES = 12.0
_INFERRED_LOGIT_BYTES = 6.0
_LEAST_SAVED = 0.1


@dataclass(frozen=True, slots=True)
class Blocks:
    """Elements for each token."""

    width: float
    blocks: float
    vocabulary: float


def unit_bytes(task: Task, network: Description | None) -> float:
    """That a token adds, or a sample where the network reads no tokens."""
    plain_elements = (task.activations or 0) / (task.sequence_length or 1)
    blocks = _blocks(network) if network is not None and task.sequence_length else None
    if blocks is None:
        return 4.0 * held_share(task) * plain_elements
    element_bytes = 4.0 * held_share(replace(task, kind=Kind.TRAINING, gradient_checkpointing=False))
    logit_bytes = _FP32_LOGIT_BYTES if element_bytes >= 4.0 else _LOGIT_BYTES
    logits = 0.0 if task.kernels is not Kernels.NONE else logit_bytes * blocks.vocabulary
    if task.kind is Kind.INFERENCE:
        return max(_INFERRED_LOGIT_BYTES * blocks.vocabulary, element_bytes * _LIVE_WIDTHS * blocks.width)
    if task.gradient_checkpointing:
        boundaries = element_bytes * blocks.blocks * blocks.width
        return boundaries + max(logits, element_bytes * _SAVED_WIDTHS * blocks.width)
    saved = max(plain_elements - _LOGIT_COPIES * blocks.vocabulary, _LEAST_SAVED * plain_elements)
    return element_bytes * saved + logits


@lru_cache(maxsize=256)
def _blocks(network: Description) -> Blocks | None:
    """None for what is no language model."""
    length = network.sequence_length
    if not length or network.family != Architecture.TRANSFORMER:
        return None
    table = layered_of(network).table
    norms = table.out_elements[table.kind == OpKind.LAYER_NORM]
    if not len(norms):
        return None
    linear = np.flatnonzero(table.kind == OpKind.LINEAR)
    vocabulary = float(table.out_elements[linear[-1]]) / length if len(linear) else 0.0  # a loss may come after it
    return Blocks(float(np.median(norms)) / length, max(1.0, len(network.ops) / _MODULES), vocabulary)
