"""A run as numbers for the forecast of its step time: facts about the whole network, and one token per few layers.

All of them are told at one fixed batch. The batch of the run counts in the weighted parts alone, so the factor that is
learned is the same for every batch, and a larger batch never takes less time. `VERSION` names this layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.description import CONVOLUTIONS, Description, OpKind, among
from vramcast.forecast.roofline import HALF, Roofline, roofline
from vramcast.forecast.saved import Array
from vramcast.forecast.step_parts import PARTS, cell_of, part_shares, step_parts
from vramcast.hardware.peaks import PeakRates
from vramcast.task.task import Task
from vramcast.task.vocabulary import Kind, Precision

VERSION = "speed-3"
TOKENS = 32
TOKEN_WIDTH = 14
_BATCH = 128
_KINDS = tuple(OpKind)
_WEIGHTED = among(*CONVOLUTIONS, OpKind.LINEAR)
_IS_CONVOLUTION = among(*CONVOLUTIONS)
_TOKEN_HEADS = among(*CONVOLUTIONS, OpKind.LINEAR, OpKind.POOL)
_KIND_NAMES = tuple(kind.name.lower() for kind in OpKind)
_ELEMENTWISE = among(OpKind.BATCH_NORM, OpKind.LAYER_NORM, OpKind.KEEPS_INPUT, OpKind.KEEPS_OUTPUT, OpKind.OTHER,
                     OpKind.DROPOUT, OpKind.SOFTMAX)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SpeedFeatures:
    plain_facts: NDArray[np.float32]  # (PLAIN_FACTS,)
    tokens: NDArray[np.float32]  # (TOKENS, TOKEN_WIDTH)
    kinds: NDArray[np.int64]  # (TOKENS,), 0 is padding
    cell: str  # whose weights apply
    parts: Array  # (PARTS,), seconds of one batch of the task
    usual_parts: Array  # (PARTS,), of the fixed batch
    repeats: int  # batches in an update
    roofline_seconds: float  # of the task's own update


def describe_speed(
    network: Description, task: Task, peaks: PeakRates, *, channels_last: bool = False
) -> SpeedFeatures | None:
    """None if the layers do not tell their work."""
    own, parts = roofline(network, task, peaks), step_parts(network, task, peaks, channels_last=channels_last)
    usual = roofline(network, task, peaks, _BATCH)
    usual_parts = step_parts(network, task, peaks, _BATCH, channels_last=channels_last)
    if own is None or usual is None or parts is None or usual_parts is None or own.total_seconds <= 0.0:
        return None
    facts = _run_facts(task, peaks, channels_last) | _network_facts(network, usual)
    tokens, kinds = _make_tokens(usual)
    return SpeedFeatures(
        np.array([facts[name] for name in PLAIN_FACTS], np.float32), tokens, kinds,
        cell_of(task, channels_last=channels_last), parts, usual_parts, task.gradient_accumulation, own.total_seconds,
    )  # fmt: skip


def with_shares(plain_facts: NDArray[np.float32], usual_parts: Array, weights: Array) -> NDArray[np.float32]:
    """(..., facts): what the weights make of the parts is a fact too."""
    return np.concatenate([plain_facts, part_shares(usual_parts, weights).astype(np.float32)], axis=-1)


def _run_facts(task: Task, peaks: PeakRates, channels_last: bool) -> dict[str, float]:
    half = task.precision in HALF
    dense = (peaks.fp16_tflops if half else None) or peaks.fp32_tflops
    return {
        "inference": float(task.kind is Kind.INFERENCE),
        "half": float(half),
        "tf32": float(task.precision is Precision.TF32),
        "channels_last": float(channels_last),
        "flops_per_byte": math.log(dense / peaks.bandwidth_gb_per_second),
        "tensor_over_plain": math.log(dense / peaks.fp32_tflops),
        "flops_per_sm": math.log(dense / peaks.sms),
    }


def _network_facts(network: Description, usual: Roofline) -> dict[str, float]:
    work, table = usual.work, usual.table
    total, elements = usual.pass_seconds, float(work.elements.sum()) + work.unlisted_elements
    macs = max(work.total_macs, 1.0)
    return {
        "log_macs": math.log(macs),
        "log_elements": math.log(elements + 1.0),
        "log_parameters": math.log(network.parameters + 1.0),
        "log_operations": math.log1p(len(network.ops)),
        "intensity": math.log(macs / (elements + 1.0)),
        "log_input": math.log(network.input_elements + 1.0),
        "unlisted_macs": work.unlisted_macs / macs,
        "unlisted_share": usual.unlisted / total,
        "unlisted_kernels": math.log1p(work.unlisted_kernels),
        "attention_macs": work.attention_macs / macs,
        "attention_elements": math.log1p(work.attention_elements) / (math.log1p(elements)),
        "attention_share": usual.attention / total,
        "update_share": usual.update / total,
        "bound_by_traffic": float(usual.layers[usual.traffic > usual.arithmetic].sum()) / total,
        "bound_by_start": float(usual.layers[usual.layers > np.maximum(usual.arithmetic, usual.traffic)].sum()) / total,
        "largest_share": float(usual.layers.max()) / total,
        "elementwise_share": float(usual.layers[_ELEMENTWISE[table.kind]].sum()) / total,
        "log_per_operation": math.log(total / len(network.ops)),
        **_kind_facts(usual, total),
        **_convolution_facts(usual),
    }


def _kind_facts(usual: Roofline, total: float) -> dict[str, float]:
    """Per kind: the share of the time, of the arithmetic, and the count."""
    kind, size = usual.table.kind, len(_KINDS)
    times = np.bincount(kind, usual.layers, size) / total
    macs = np.bincount(kind, usual.work.macs, size) / max(usual.work.total_macs, 1.0)
    counts = np.log1p(np.bincount(kind, minlength=size))
    facts: dict[str, float] = {}
    for index, name in enumerate(_KIND_NAMES):
        facts |= {f"{name}_time": float(times[index]), f"{name}_count": float(counts[index])}
        if _WEIGHTED[index]:
            facts[f"{name}_macs"] = float(macs[index])
    return facts


def _convolution_facts(usual: Roofline) -> dict[str, float]:
    """Weighted by time: what decides which kernel cuDNN takes and how well it fills the GPU."""
    table, times = usual.table, np.where(_WEIGHTED[usual.table.kind], usual.layers, 0.0)
    channels_in = usual.work.channels_in
    share = times / max(float(times.sum()), 1e-12)
    strided = _IS_CONVOLUTION[table.kind] & (table.stride > 1)
    per_group = channels_in / np.maximum(table.groups, 1.0)
    eights = (channels_in % 8 == 0) & (table.channels_out % 8 == 0)

    def mean(values: Array) -> float:
        return float((values * share).sum())

    return {
        "kernel": mean(table.kernel),
        "log_channels_in": mean(np.log1p(channels_in)),
        "log_channels_out": mean(np.log1p(table.channels_out)),
        "log_positions": mean(np.log1p(table.positions)),
        "log_group_width": mean(np.log1p(per_group)),
        "log_groups": mean(np.log(np.maximum(table.groups, 1.0))),
        "narrow_groups": mean(((table.groups > 1) & (per_group > 1)).astype(np.float64)),
        "in_eights": mean(eights.astype(np.float64)),
        "strided": mean(strided.astype(np.float64)),
        "wide_kernels": mean((table.kernel >= 5).astype(np.float64)),
    }


def _names() -> tuple[str, ...]:
    names = ["inference", "half", "tf32", "channels_last", "flops_per_byte", "tensor_over_plain", "flops_per_sm"]
    names += [
        "log_macs", "log_elements", "log_parameters", "log_operations", "intensity", "log_input",
        "unlisted_macs", "unlisted_share", "unlisted_kernels", "attention_macs", "attention_elements",
        "attention_share", "update_share", "bound_by_traffic", "bound_by_start", "largest_share", "elementwise_share",
        "log_per_operation",
    ]  # fmt: skip
    for index, name in enumerate(_KIND_NAMES):
        names += [f"{name}_time", f"{name}_count", *([f"{name}_macs"] if _WEIGHTED[index] else [])]
    names += [
        "kernel", "log_channels_in", "log_channels_out", "log_positions", "log_group_width", "log_groups",
        "narrow_groups", "in_eights", "strided", "wide_kernels",
    ]  # fmt: skip
    return tuple(names)


PLAIN_FACTS = _names()
FACTS = (*PLAIN_FACTS, *(f"{part}_share" for part in PARTS))


# ---------------------------------------------------------------------- tokens


def _make_tokens(usual: Roofline) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """A weighted layer and those up to the next one share a token; then neighbours do, until there are few enough."""
    table, work = usual.table, usual.work
    heads = _TOKEN_HEADS[table.kind]
    heads[0] = True
    starts = np.flatnonzero(heads)
    starts = starts[np.unique(np.arange(TOKENS) * len(starts) // TOKENS)] if len(starts) > TOKENS else starts
    sums = np.add.reduceat(
        np.stack([usual.layers, usual.arithmetic, usual.traffic, work.macs, work.elements, np.ones(len(table.kind))]),
        starts,
        axis=1,
    )  # (6, tokens)
    ends = np.append(starts[1:], len(table.kind))
    weighted = np.where(_TOKEN_HEADS[table.kind], usual.layers, -1.0)
    longest = [low + int(np.argmax(weighted[low:high])) for low, high in zip(starts, ends, strict=True)]
    return _fill(usual, sums, np.array(longest), starts)


def _fill(
    usual: Roofline, sums: Array, first: NDArray[np.int64], starts: NDArray[np.int64]
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """`first`: the layer that tells the token's kind and shape."""
    table, channels_in, count = usual.table, usual.work.channels_in, len(starts)
    times, arithmetic, traffic, macs, elements, layers = sums
    rows = np.stack([
        8.0 * times / max(float(usual.layers.sum()), 1e-12),
        np.log((arithmetic + 1e-9) / (traffic + 1e-9)) / 4.0,
        np.log1p(macs) / 16.0, np.log1p(elements) / 16.0, np.log1p(layers) / 2.0,
        table.kernel[first] / 4.0, np.log(np.maximum(table.groups[first], 1.0)) / 4.0, table.stride[first] - 1.0,
        np.log1p(channels_in[first]) / 4.0, np.log1p(table.channels_out[first]) / 4.0,
        np.log1p(table.positions[first]) / 8.0,
        ((channels_in[first] % 8 == 0) & (table.channels_out[first] % 8 == 0)).astype(np.float64),
        starts / max(1, len(table.kind)),
        np.cumsum(times) / max(float(usual.layers.sum()), 1e-12),
    ])  # fmt: skip
    tokens = np.zeros((TOKENS, TOKEN_WIDTH), np.float32)
    tokens[:count] = rows.T
    kinds = np.zeros(TOKENS, np.int64)
    kinds[:count] = table.kind[first] + 1
    return tokens, kinds
