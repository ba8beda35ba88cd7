"""The arithmetic and the memory traffic of a step, from a network's layers.

A multiply-accumulate (MAC) is two FLOPs. The backward pass does twice the work of the forward pass: it computes the
gradients of the weights and those of the inputs. Layers show convolutions and linear layers. The products of attention
are between modules, where a layer list has nothing: a trace counts them, and without one they follow from the
projections around them. A causal mask saves nothing here: half of the products are thrown away, not left out.

Dropouts of a rate of zero do nothing, and most are: what a dropout moves is in the count only if it has a rate.

A trace runs two samples and halves what it counts. What a network computes once for the whole batch (standardized
weights, tables of positions) is in that count and must come out, or it would grow with the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from vramcast.forecast.description import CONVOLUTIONS, Description, Op, OpKind
from vramcast.forecast.saved import Array
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind

FLOPS_PER_MAC = 2
_BACKWARD = 2  # times the forward pass
# GPT-2's linear layers have this name. Convolutions over time are called Conv1d.
_TRANSPOSED_LINEAR = "Conv1D"
_ACTIVATIONS = frozenset({OpKind.KEEPS_INPUT, OpKind.KEEPS_OUTPUT})
# In the names of convolutions that standardize their weights in each pass. A trace counts the copy as written and read.
_STANDARDIZED = "Std"
# Numbers per output channel that a convolution may have beside its weights.
_EXTRAS = 3
# Operations between the projections of one attention: norms, rotations, identities.
_PROJECTIONS_WITHIN = 8


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Of one sample's forward pass. Arrays are (operations,); what no layer shows is apart."""

    macs: Array
    elements: Array  # read and written
    weights: Array  # elements
    channels_in: Array  # of a convolution's or linear layer's input; otherwise 0
    unlisted_macs: float  # without attention; less than zero where the layers show too many
    unlisted_elements: float
    unlisted_kernels: float
    attention_macs: float
    attention_elements: float  # of attention that no kernel fuses
    attention_kernels: float
    counted: bool  # by a trace; otherwise only what the layers give away

    @property
    def total_macs(self) -> float:
        return float(self.macs.sum()) + self.unlisted_macs + self.attention_macs


@lru_cache(maxsize=256)
def work_of(network: Description) -> Work | None:
    """None: the layers do not tell, because they have no shapes."""
    ops = network.ops
    if not ops or any(op.kind in CONVOLUTIONS and not op.shape for op in ops):
        return None
    once = np.array([network.sequence_length is None and runs_once(op) for op in ops])
    every_macs = np.array([macs_of(op) for op in ops], dtype=np.float64)
    every_element = np.array([op.in_elements + op.out_elements for op in ops], dtype=np.float64)
    every_element[[op.kind is OpKind.VIEW for op in ops]] = 0.0
    macs, elements = np.where(once, 0.0, every_macs), np.where(once, 0.0, every_element)
    weights = np.array([op.parameters for op in ops], dtype=np.float64)
    channels = np.array([channels_in(op) for op in ops], dtype=np.float64)
    counted = network.work
    if counted is None:
        return Work(macs, elements, weights, channels, 0.0, 0.0, 0.0, attention_macs(ops), 0.0, 0.0, counted=False)
    dropouts = np.array([op.kind is OpKind.DROPOUT for op in ops])
    every_element[dropouts] = elements[dropouts] = 0.0
    listed = sum(op.kind not in (OpKind.VIEW, OpKind.DROPOUT) for op in ops)
    standardized = sum(op.parameters for op in ops if _STANDARDIZED in op.type)
    return Work(
        macs, elements, weights, channels,
        unlisted_macs=counted.macs - counted.attention_macs - float(every_macs.sum()),
        unlisted_elements=max(0.0, counted.elements - float(every_element.sum()) - standardized),
        unlisted_kernels=max(0.0, counted.kernels - listed),
        attention_macs=counted.attention_macs,
        attention_elements=counted.attention_elements,
        attention_kernels=counted.attention_kernels,
        counted=True,
    )  # fmt: skip


def runs_once(op: Op) -> bool:
    """Not for each sample: rows without a sample's dimension, as of a layer that makes a table of positions."""
    return op.kind not in CONVOLUTIONS and len(op.shape) == 1 and op.out_elements > op.shape[0]


def channels_in(op: Op) -> int:
    """Zero for everything but convolutions and linear layers."""
    if is_linear(op):
        return _inputs(op)
    return _channels_per_group(op) * op.groups if op.kind in CONVOLUTIONS and op.shape else 0


def macs_of(op: Op) -> float:
    """Zero for everything but convolutions and linear layers."""
    if is_linear(op):
        return float(op.out_elements * _inputs(op))
    if op.kind not in CONVOLUTIONS or not op.area or not op.shape:
        return 0.0
    weights = _channels_per_group(op) * op.shape[0] * op.area
    if "Transpose" in op.type:
        # Every input element meets every weight of its channel. Such a layer has [in, out / groups] weights.
        return float(op.in_elements * op.shape[0] // op.groups * op.area)
    return float(weights * (op.out_elements // max(1, op.shape[0])))


def is_linear(op: Op) -> bool:
    return (op.kind is OpKind.LINEAR or op.type == _TRANSPOSED_LINEAR) and op.parameters > 0


def _inputs(op: Op) -> int:
    width = op.shape[-1] if op.shape else op.channels_out
    return max(1, round(op.in_elements * width / max(1, op.out_elements)))


def _channels_per_group(op: Op) -> int:
    """Of the input. The number of weights tells it: without or with a bias, a gain and a scale, whichever divides the
    input."""
    row = max(1, op.shape[0] * op.area)
    for extra in range(_EXTRAS + 1):
        channels, rest = divmod(op.parameters - extra * op.shape[0], row)
        if not rest and channels > 0 and op.in_elements % (channels * op.groups) == 0:
            return channels
    return max(1, (op.parameters - op.shape[0]) // row)


# ---------------------------------------------------------------------- attention, from the projections around it


def attention_macs(ops: Sequence[Op]) -> float:
    """Queries by keys, and the result by values, for every attention that the layers give away."""
    return sum((_attention_at(ops, index) for index, op in enumerate(ops) if is_linear(op) and len(op.shape) > 1), 0.0)


def _attention_at(ops: Sequence[Op], index: int) -> float:
    """Zero unless this layer makes the queries."""
    op, after = ops[index], ops[index + 1 : index + 1 + _PROJECTIONS_WITHIN]
    linears = [other for other in after if is_linear(other)]
    if not linears or (after[0].kind in _ACTIVATIONS):
        return 0.0
    inputs, width, following = _inputs(op), op.shape[-1], linears[0]
    if width == 3 * inputs:  # queries, keys and values in one
        gated = (_inputs(following), following.shape[-1]) == (inputs, width) or _inputs(following) == width
        return 0.0 if gated else 2.0 * op.shape[-2] * op.out_elements / 3.0
    if len(linears) < 2 or len(following.shape) < 2:
        return 0.0
    keys_at_once = following.shape[-1] == 2 * width and _inputs(linears[1]) == width
    if keys_at_once or _are_keys_and_values(following, linears[1:], width, after):
        return 2.0 * following.shape[-2] * op.out_elements
    return 0.0


def _are_keys_and_values(keys: Op, others: Sequence[Op], width: int, after: Sequence[Op]) -> bool:
    """Two equal layers, no wider than the queries, and then one that reads what the queries' width gives."""
    if len(others) < 2:
        return False
    values, output = others[0], others[1]
    alike = (keys.in_elements, keys.out_elements, keys.shape) == (values.in_elements, values.out_elements, values.shape)
    between = after[: list(after).index(values)]
    activated = any(other.kind in _ACTIVATIONS for other in between)
    return alike and width % keys.shape[-1] == 0 and _inputs(output) == width and not activated


# ---------------------------------------------------------------------- of a step


def step_flops(network: Description, task: Task) -> float | None:
    """Of one update on one GPU: all batches that it accumulates. None if the layers do not tell."""
    work = work_of(network)
    if work is None or not math.isfinite(work.total_macs):
        return None
    return FLOPS_PER_MAC * work.total_macs * task.batch_size * task.gradient_accumulation * passes(task)


def passes(task: Task) -> float:
    """How often a step does the work of a forward pass."""
    if task.kind is Kind.INFERENCE:
        return 1.0
    # Frozen weights have no gradients, and a checkpointed forward pass runs twice.
    backward = _BACKWARD if task.lora_rank is None else 1
    return 1.0 + backward + task.gradient_checkpointing
