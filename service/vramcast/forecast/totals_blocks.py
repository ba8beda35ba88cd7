"""What a token adds to a step, by the rules: from layers where they are known, from totals otherwise.

A checkpointed step keeps the hidden state between blocks, recomputes one block at a time and holds the logits whole. So
its memory goes by the width, the blocks and the vocabulary, and hardly by what a plain step saves. Layers tell all
three. Totals do not: blocks save 11 to 38 widths for a token, and what is left for logits is anybody's guess
(docs/log.md), so there the rules' share of the saved elements counts.

Eager attention keeps a score for every pair of tokens, so what a token adds grows with the length. Layers tell how many
heads there are; totals do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from vramcast.forecast.description import Description, OpKind
from vramcast.forecast.physics import layered_of
from vramcast.forecast.rules import held_share
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Attention, Kernels, Kind

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
# Of a score: the softmax in fp32, and its copy in 16 bits.
_SCORE_BYTES = 6.0
_FP32_SCORE_BYTES = 4.0
# What a block with eager attention takes while it is recomputed, over what it would keep.
_RECOMPUTED_SCORES = 2.0


@dataclass(frozen=True, slots=True)
class Blocks:
    """Elements for each token."""

    width: float
    blocks: float
    vocabulary: float
    scores: float  # for each token before it, over all blocks


def unit_bytes(task: Task, network: Description | None) -> float:
    """That a token adds, or a sample where the network reads no tokens."""
    plain_elements = (task.activations or 0) / (task.sequence_length or 1)
    blocks = _blocks(network) if network is not None and task.sequence_length else None
    if blocks is None:
        return 4.0 * held_share(task) * plain_elements
    element_bytes = 4.0 * held_share(replace(task, kind=Kind.TRAINING, gradient_checkpointing=False))
    logit_bytes = _FP32_LOGIT_BYTES if element_bytes >= 4.0 else _LOGIT_BYTES
    logits = 0.0 if task.kernels is not Kernels.NONE else logit_bytes * blocks.vocabulary
    scores = _scores_bytes(task, blocks, fp32=element_bytes >= 4.0)
    one_block = _RECOMPUTED_SCORES * scores / blocks.blocks
    if task.kind is Kind.INFERENCE:
        return max(_INFERRED_LOGIT_BYTES * blocks.vocabulary, element_bytes * _LIVE_WIDTHS * blocks.width + one_block)
    if task.gradient_checkpointing:
        boundaries = element_bytes * blocks.blocks * blocks.width
        return boundaries + max(logits, element_bytes * _SAVED_WIDTHS * blocks.width + one_block)
    saved = max(plain_elements - _LOGIT_COPIES * blocks.vocabulary, _LEAST_SAVED * plain_elements)
    return element_bytes * saved + logits + scores


def _scores_bytes(task: Task, blocks: Blocks, *, fp32: bool) -> float:
    """That a token adds to all blocks."""
    if task.attention is not Attention.EAGER or not task.sequence_length:
        return 0.0
    return (_FP32_SCORE_BYTES if fp32 else _SCORE_BYTES) * blocks.scores * task.sequence_length


@lru_cache(maxsize=256)
def _blocks(network: Description) -> Blocks | None:
    """None for what is no language model."""
    length = network.sequence_length
    if not length or network.family != Architecture.TRANSFORMER:
        return None
    layered = layered_of(network)
    table = layered.table
    norms = table.out_elements[table.kind == OpKind.LAYER_NORM]
    if not len(norms):
        return None
    linear = np.flatnonzero(table.kind == OpKind.LINEAR)
    vocabulary = float(table.out_elements[linear[-1]]) / length if len(linear) else 0.0  # a loss may come after it
    scores = layered.saved.fused_attention_bytes / 4.0 / length**2
    return Blocks(float(np.median(norms)) / length, max(1.0, len(network.ops) / _MODULES), vocabulary, scores)
