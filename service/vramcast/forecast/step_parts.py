"""A step's time in parts: what each kind of kernel would take at the GPU's peak.

A kernel never runs at the peak, and each kind misses it by a factor of its own: depthwise convolutions by much, large
matrix products by little, norms in mixed precision because they compute in fp32. cuDNN has no depthwise kernel above
5x5: PyTorch runs its own there, at about a thirtieth of the peak. Training fits one weight per part
(`train/speed_weights.py`), and the weighted sum is the first forecast. Kernels are started ahead, so starting them only
counts where it takes longer than running them.

No weight is negative and every part rises with the batch, so the sum does too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.description import CONVOLUTIONS, Description, Op, OpKind
from vramcast.forecast.roofline import (
    HALF,
    START_SECONDS,
    UPDATE_BYTES,
    WEIGHT_BYTES,
    activation_bytes,
    busy_share,
    dense_rate,
)
from vramcast.forecast.saved import Array
from vramcast.forecast.work import FLOPS_PER_MAC, Work, is_linear, passes, work_of
from vramcast.hardware.peaks import PeakRates
from vramcast.task.task import Task
from vramcast.task.vocabulary import Attention, Kind

_ARITHMETIC = (
    "conv", "conv_narrow", "conv_first", "conv_odd", "pointwise", "pointwise_odd", "linear", "linear_odd",
    "grouped_4", "grouped_8", "grouped_16", "grouped_32", "grouped_48", "grouped_wide",
    "grouped_tiles", "depthwise_3", "depthwise_5", "depthwise_7", "depthwise_plain",
)  # fmt: skip
_TRAFFIC = (
    "conv_moves", "pointwise_moves", "linear_moves", "grouped_moves", "depthwise_moves", "batch_norm", "layer_norm",
    "group_norm", "keeps_output", "keeps_input", "dropout", "pool", "softmax", "scale", "strided",
    "other",
)  # fmt: skip
_REST = ("rest_half", "rest_full", "rest_macs", "attention_macs", "attention_moves", "weights")
# The last two are apart: an update happens once, and kernels are started ahead.
PARTS = (*_ARITHMETIC, *_TRAFFIC, *_REST, "update", "start")
_INDEX = {name: index for index, name in enumerate(PARTS)}
_BY_KIND = {
    OpKind.BATCH_NORM: "batch_norm", OpKind.KEEPS_OUTPUT: "keeps_output", OpKind.KEEPS_INPUT: "keeps_input",
    OpKind.DROPOUT: "dropout", OpKind.POOL: "pool", OpKind.SOFTMAX: "softmax",
}  # fmt: skip
_MOVES = {
    OpKind.CONV: "conv_moves", OpKind.POINTWISE: "pointwise_moves", OpKind.GROUPED: "grouped_moves",
    OpKind.DEPTHWISE: "depthwise_moves",
}  # fmt: skip
# Tensor cores take channels in eights, and fill their tiles from this many on.
_EIGHT, _NARROW = 8, 64
# Wider groups are computed in whole tiles of so many channels.
_WIDE_GROUP, _TILE = 48, 128
# A dense convolution's channels are computed in whole blocks of so many, and those that a linear layer writes.
_CONV_BLOCK, _LINEAR_BLOCK = 64, 128
# How sharply the time to start kernels takes over from the time to run them.
_SHARPNESS = 4.0
_NOWHERE = -1


class SpeedCell:
    """Runs whose kernels are chosen alike share their weights."""

    INFERENCE = "inference"
    TRAINING = "training"
    CHANNELS_LAST = "channels-last"
    FULL = "fp32"


CELLS = (SpeedCell.INFERENCE, SpeedCell.TRAINING, SpeedCell.CHANNELS_LAST, SpeedCell.FULL)


def cell_of(task: Task, *, channels_last: bool) -> str:
    if task.precision not in HALF:
        return SpeedCell.FULL
    if task.kind is Kind.INFERENCE:
        return SpeedCell.INFERENCE
    return SpeedCell.CHANNELS_LAST if channels_last else SpeedCell.TRAINING


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """Arrays are (operations,)."""

    arithmetic: NDArray[np.int64]  # index of the part, or nowhere
    traffic: NDArray[np.int64]
    plain: NDArray[np.bool_]  # computed without tensor cores
    linear: NDArray[np.bool_]
    padding: Array  # times more multiplications, because blocks are computed whole
    elements: Array
    out_elements: Array
    in_tiles: float  # multiplications of wide groups, each in whole tiles
    strided: float  # weights of linear layers that read channel by channel
    unlisted_linear: float  # multiplications
    rest: float  # elements that no layer shows
    full_share: float  # of the rest, in fp32 even under mixed precision


def step_parts(
    network: Description, task: Task, peaks: PeakRates, batch: int | None = None, *, channels_last: bool = False
) -> Array | None:
    """Seconds of one batch, (parts,). `batch`: instead of the task's. None if the layers do not tell their work."""
    work = work_of(network)
    if work is None:
        return None
    layers = _sorted_layers(network)
    samples, rounds, trains = batch or task.batch_size, passes(task), task.kind is not Kind.INFERENCE
    bandwidth, dense = 1e9 * peaks.bandwidth_gb_per_second, dense_rate(task, peaks)
    flops, move = FLOPS_PER_MAC * samples * rounds, activation_bytes(task) * samples * rounds / bandwidth
    convolutions = max(dense, 1e12 * (peaks.tf32_tflops or 0.0))
    rates = np.where(layers.linear, dense, np.where(layers.plain, 1e12 * peaks.fp32_tflops, convolutions))
    arithmetic = flops * work.macs * layers.padding / (rates * busy_share(layers.out_elements * samples, peaks))
    parts = np.zeros(len(PARTS) + 1)  # one more for layers that are nowhere
    np.add.at(parts, layers.arithmetic, arithmetic)
    np.add.at(parts, layers.traffic, layers.elements * move)
    parts = parts[:-1]
    eager = task.attention is Attention.EAGER
    kernels = len(network.ops) + work.unlisted_kernels + eager * work.attention_kernels
    parts[_INDEX["dropout"]] *= trains
    parts[_INDEX["strided"]] = layers.strided * move * (trains and not channels_last)
    parts[_INDEX["linear"]] += layers.unlisted_linear * flops / dense
    parts[_INDEX["grouped_tiles"]] = layers.in_tiles * flops / dense
    parts[_INDEX["rest_half"] :] = (
        layers.rest * (1.0 - layers.full_share) * move, layers.rest * layers.full_share * move,
        max(0.0, work.unlisted_macs - layers.unlisted_linear) * flops / dense, work.attention_macs * flops / dense,
        eager * work.attention_elements * move, WEIGHT_BYTES * float(work.weights.sum()) * rounds / bandwidth,
        trains * UPDATE_BYTES * network.parameters / bandwidth, START_SECONDS * rounds * kernels,
    )  # fmt: skip
    return parts


def weighted_seconds(parts: Array, weights: Array, repeats: int = 1) -> Array:
    """Of an update with so many batches. `parts` and `weights`: (..., parts); the result is (...)."""
    weighted = parts * weights
    running, start = weighted[..., :-2].sum(-1), weighted[..., -1]
    batch = (running**_SHARPNESS + start**_SHARPNESS) ** (1.0 / _SHARPNESS)
    return np.asarray(repeats * batch + weighted[..., -2])


def running_share(parts: Array, weights: Array, repeats: int = 1) -> float:
    """Of an update, the share of the time in which kernels run. `parts` and `weights`: (parts,)."""
    weighted = parts * weights
    return float((repeats * weighted[:-2].sum() + weighted[-2]) / weighted_seconds(parts, weights, repeats))


def part_shares(parts: Array, weights: Array) -> Array:
    """Of the weighted time, (..., parts)."""
    weighted = parts * weights
    return np.asarray(weighted / weighted.sum(-1, keepdims=True))


@lru_cache(maxsize=256)
def _sorted_layers(network: Description) -> _Layers:
    work = work_of(network)
    assert work is not None  # noqa: S101 - the caller asked first
    ops, hidden = network.ops, _hidden_norms(network)
    norm = "batch_norm" if network.buffers else "group_norm"
    arithmetic = np.full(len(ops), _NOWHERE)
    traffic = np.full(len(ops), _NOWHERE)
    elements = work.elements.copy()
    for index, op in enumerate(ops):
        part = _arithmetic_of(op, int(work.channels_in[index]))
        if part == "depthwise_7" and not _follows_layer_norm(ops, index):
            part = "depthwise_plain"
        arithmetic[index] = _INDEX[part] if part else _NOWHERE
        if index in hidden:
            traffic[index], elements[index] = _INDEX[norm], 2.0 * op.out_elements
        elif op.kind is not OpKind.VIEW:
            traffic[index] = _INDEX[_traffic_of(op)]
    rest = work.unlisted_elements - float(elements[list(hidden)].sum())
    full = float(elements[np.isin(traffic, [_INDEX["layer_norm"], _INDEX["group_norm"]])].sum())
    half = float(elements[traffic == _INDEX["batch_norm"]].sum())
    return _Layers(
        arithmetic, traffic,
        plain=np.array([op.kind is OpKind.DEPTHWISE for op in ops]),
        linear=np.array([is_linear(op) for op in ops]),
        padding=np.array([_padding(op, int(channels)) for op, channels in zip(ops, work.channels_in, strict=True)]),
        elements=elements,
        out_elements=np.array([op.out_elements for op in ops], dtype=np.float64),
        in_tiles=sum(map(_in_tiles, ops)),
        strided=_strided_weights(ops),
        unlisted_linear=_unlisted_linear_macs(network, work),
        rest=max(0.0, rest),
        full_share=full / (full + half) if full else 0.0,
    )  # fmt: skip


def _arithmetic_of(op: Op, channels_in: int) -> str:
    """Empty: it multiplies nothing."""
    if is_linear(op):
        return "linear_odd" if op.shape[-1] % _EIGHT or channels_in % _EIGHT else "linear"
    if op.kind not in CONVOLUTIONS or not op.shape:
        return ""
    out, per_group = op.shape[0], channels_in // op.groups
    odd = channels_in % _EIGHT or out % _EIGHT
    match op.kind:
        case OpKind.POINTWISE:
            part = "pointwise_odd" if odd else "pointwise"
        case OpKind.DEPTHWISE:
            part = f"depthwise_{3 if op.kernel <= 3 else 5 if op.kernel <= 5 else 7}"
        case OpKind.GROUPED:
            part = f"grouped_{next((width for width in (4, 8, 16, 32, _WIDE_GROUP) if per_group <= width), 'wide')}"
        case _ if channels_in < _EIGHT:
            part = "conv_first"
        case _:
            part = "conv_odd" if odd else "conv_narrow" if min(channels_in, out) < _NARROW else "conv"
    return part


def _traffic_of(op: Op) -> str:
    if op.kind is OpKind.LAYER_NORM:
        return "group_norm" if "Group" in op.type else "layer_norm"
    if is_linear(op):
        return "linear_moves"
    if op.kind is OpKind.OTHER and ("Scale" in op.type or "Affine" in op.type):
        return "scale"
    return _MOVES.get(op.kind) or _BY_KIND.get(op.kind, "other")


def _hidden_norms(network: Description) -> frozenset[int]:
    """A norm that is fused with its activation is not a leaf module: it leaves an identity after the convolution.

    Other identities are there too. The parameters that no leaf has tell whether these are norms.
    """
    ops = network.ops
    found = [
        index
        for index in range(1, len(ops))
        if ops[index].type == "Identity"
        and ops[index - 1].kind in CONVOLUTIONS
        and ops[index - 1].shape
        and ops[index].out_elements == ops[index - 1].out_elements
    ]
    unlisted = network.parameters - sum(op.parameters for op in ops)
    expected = 2 * sum(ops[index - 1].shape[0] for index in found)
    return frozenset(found) if unlisted >= 0.5 * expected else frozenset()


def _padding(op: Op, channels_in: int) -> float:
    """How many times more a layer multiplies than it needs to: tensor cores compute blocks of channels, full or not.

    The gradient of a convolution's input writes the channels that the forward pass reads, so both sides are in blocks.
    """
    if is_linear(op):
        return _in_blocks(op.shape[-1], _LINEAR_BLOCK) if op.shape else 1.0
    if op.kind is not OpKind.CONV or not op.shape or channels_in < _EIGHT:
        return 1.0
    return _in_blocks(channels_in, _CONV_BLOCK) * _in_blocks(op.shape[0], _CONV_BLOCK)


def _in_blocks(channels: int, block: int) -> float:
    return block * math.ceil(channels / block) / channels


def _in_tiles(op: Op) -> float:
    """Multiplications of a wide group, computed in whole tiles: without tensor cores' grouped kernels, which channels
    last lacks for such widths, each group is a matrix product of its own."""
    width = op.shape[0] // op.groups if op.kind is OpKind.GROUPED and op.shape else 0
    return op.out_elements * op.area * width * _in_blocks(width, _TILE) if width > _WIDE_GROUP else 0.0


def _follows_layer_norm(ops: Sequence[Op], index: int) -> bool:
    """A layer norm over the channels leaves them as the innermost dimension, and the next convolution reads them so."""
    norms = (op for op in reversed(ops[:index]) if op.kind in (OpKind.BATCH_NORM, OpKind.LAYER_NORM))
    last = next(norms, None)
    return last is not None and last.kind is OpKind.LAYER_NORM and "Group" not in last.type


def _unlisted_linear_macs(network: Description, work: Work) -> float:
    """By weights of a linear layer that is not called: attention that adds its own biases uses them so."""
    unlisted = network.parameters - sum(op.parameters for op in network.ops)
    tokens = max((op.out_elements // op.shape[-1] for op in network.ops if is_linear(op)), default=0)
    return float(min(max(0.0, work.unlisted_macs), unlisted * tokens)) if tokens > 1 else 0.0


def _strided_weights(ops: Sequence[Op]) -> float:
    """Of linear layers that read patches as the convolution left them, channel by channel.

    PyTorch 1.12, which the timed runs had, then multiplies sample by sample, so it writes the gradient of such a weight
    for each sample and sums afterwards. A norm, a class token or channels last would have left the patches in the order
    that a matrix product reads. A residual keeps the order of its first operand, so all later layers that read it are
    concerned too.
    """
    first = next((index for index, op in enumerate(ops) if op.kind is OpKind.CONV and op.kernel > 1 and op.shape), None)
    if first is None:
        return 0.0
    width, patches = ops[first].shape[0], ops[first].out_elements // ops[first].shape[0]
    later = [op for op in ops[first + 1 :] if op.kind not in (OpKind.VIEW, OpKind.DROPOUT)]
    if not later or later[0].kind is OpKind.LAYER_NORM or len(later[0].shape) != 2 or later[0].shape[0] != patches:
        return 0.0
    total, after_linear = 0.0, False
    for op in later:
        reads = is_linear(op) and op.shape[:1] == (patches,) and op.in_elements == patches * width
        if reads and not after_linear:
            total += op.shape[-1] * width
        after_linear = is_linear(op)
    return total
