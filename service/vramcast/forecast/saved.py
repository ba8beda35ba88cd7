"""What autograd saves in each layer, corrected for what a trace gets wrong.

A trace runs two samples with unfused attention. Its total therefore includes attention matrices that fused kernels
never write, and tensors that do not grow with the batch (position tables, standardized weights). Both are taken out.
The rest is spread over the layers by what each kind of layer is known to save.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.description import CONVOLUTIONS, Description, Op, OpKind, among

Array = NDArray[np.float64]

_TRACED_SAMPLES = 2
_FLOAT_BYTES = 4.0
_WEIGHTED = (*CONVOLUTIONS, OpKind.LINEAR)
_KEEPS_INPUT = among(*_WEIGHTED, OpKind.BATCH_NORM, OpKind.LAYER_NORM, OpKind.KEEPS_INPUT)
_KEPT_WHOLE = among(OpKind.KEEPS_OUTPUT, OpKind.DROPOUT)
# A saved output is usually also the next layer's input, so only part of it counts. Pooling saves indices or nothing.
_KEPT_OUTPUT_SHARE = 0.3
_POOL_SHARE = 0.5
_MASK_BYTES = 1.0
_LARGEST_ATTENTION_SHARE = 0.7
# Where matrices would be more of the trace than in any network that is known to fuse them, they are kept: SAM adds a
# position's bias to each.
_LARGEST_MAP_SHARE = 0.35
_FEW_ELEMENTS = 64
_QKV_SEARCH = 10


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Columns over the operations, float64 of shape (operations,)."""

    kind: NDArray[np.int64]
    in_elements: Array
    out_elements: Array
    parameters: Array
    channels_in: Array
    channels_out: Array
    positions: Array
    kernel: Array
    stride: Array
    groups: Array
    in_place: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Saved:
    """Bytes kept for the backward pass."""

    per_layer_bytes: Array  # (operations,), scaled so that the sum is `per_sample_bytes`
    per_sample_bytes: float  # attention matrices included
    fused_attention_bytes: float  # the part of those that fused kernels do not keep
    unfused_attention_bytes: float  # attention that no fused kernel supports: it is kept, with copies
    static_bytes: float  # independent of the batch
    trace_over_rules: float  # traced bytes over what the rules per layer predict


_COLUMNS = (
    "kind", "in_elements", "out_elements", "parameters", "channels_in", "channels_out", "positions", "kernel", "stride",
    "groups",
)  # fmt: skip
_row = attrgetter(*_COLUMNS)


def layer_table(ops: tuple[Op, ...]) -> LayerTable:
    numbers = np.array(list(map(_row, ops)), dtype=np.float64).reshape(-1, len(_COLUMNS)).T
    in_place = np.array([op.in_place for op in ops], dtype=np.bool_)
    columns = dict(zip(_COLUMNS[1:], numbers[1:], strict=True))
    return LayerTable(kind=numbers[0].astype(np.int64), in_place=in_place, **columns)


def saved_bytes(network: Description, table: LayerTable) -> Saved:
    by_rule = _by_rule(network, table)
    static = _static_layers(network)
    kept_static = static & _KEPT_WHOLE[table.kind]
    by_rule[kept_static] = _FLOAT_BYTES * table.out_elements[kept_static]
    static_per_sample = float(by_rule[static].sum()) + _standardized_weights_bytes(network.ops) / _TRACED_SAMPLES
    by_rule[static] = 0.0
    ruled = float(by_rule.sum())
    traced = network.saved_bytes_per_sample
    total = ruled if traced is None else max(traced - static_per_sample, 0.2 * traced)
    matrices = _Matrices() if network.replayable else _attention_matrices(network.ops)
    if network.fused_attention_bytes_per_sample and not matrices.any:
        fused, unfused = min(float(network.fused_attention_bytes_per_sample), total), 0.0
    else:
        fused, unfused = matrices.judged(total, max(0.0, total - ruled))
    factor = total / max(ruled, 1.0)
    return Saved(by_rule * factor, total, fused, unfused, _TRACED_SAMPLES * static_per_sample, factor)


def _by_rule(network: Description, table: LayerTable) -> Array:
    kind, in_bytes, out_bytes = table.kind, _FLOAT_BYTES * table.in_elements, _FLOAT_BYTES * table.out_elements
    kept = np.where(_KEEPS_INPUT[kind], in_bytes, 0.0)
    kept = np.where((kind == OpKind.KEEPS_OUTPUT) & ~table.in_place, _KEPT_OUTPUT_SHARE * out_bytes, kept)
    kept = np.where(kind == OpKind.POOL, _POOL_SHARE * in_bytes, kept)
    kept = np.where(kind == OpKind.SOFTMAX, out_bytes, kept)
    if network.replayable:
        kept = np.where(kind == OpKind.DROPOUT, _MASK_BYTES * table.out_elements, kept)
    return _with_hidden_norms(network.ops, np.asarray(kept, dtype=np.float64), out_bytes)


def _with_hidden_norms(ops: tuple[Op, ...], kept: Array, out_bytes: Array) -> Array:
    """A norm fused with its activation is not a leaf module. It leaves an identity of the same size after the
    convolution.
    """
    for index, (op, after) in enumerate(pairwise(ops)):
        if op.kind in CONVOLUTIONS and after.type == "Identity" and after.out_elements == op.out_elements:
            kept[index + 1] = out_bytes[index]
    return kept


def _static_layers(network: Description) -> NDArray[np.bool_]:
    """Layers traced once for the whole batch: their elements are not a whole multiple of a sample's shape."""
    if network.replayable:
        return np.zeros(len(network.ops), dtype=np.bool_)
    return np.array(
        [
            op.out_elements > _FEW_ELEMENTS
            and bool(op.shape)
            and (_TRACED_SAMPLES * op.out_elements / (math.prod(op.shape) or 1)) % _TRACED_SAMPLES != 0
            for op in network.ops
        ],
        dtype=np.bool_,
    )


def _standardized_weights_bytes(ops: tuple[Op, ...]) -> float:
    """Weight-standardizing convolutions save the standardized copy."""
    return _FLOAT_BYTES * sum(op.parameters for op in ops if "Std" in op.type)


@dataclass(slots=True)
class _Matrices:
    """Attention matrices of one sample, in bytes, by what the layers say about them."""

    fused: float = 0.0  # fused kernels do not keep these
    unfused: float = 0.0
    # Of projections that read a map, (height, width, channels), and not a list of tokens: these if each row of the map
    # attends to itself (blocks), or these if the whole map does.
    by_rows: float = 0.0
    whole: float = 0.0

    @property
    def any(self) -> bool:
        return self.fused + self.unfused + self.by_rows > 0.0

    def judged(self, total: float, unexplained: float) -> tuple[float, float]:
        """(fused, unfused) matrices, by what the rules per layer leave unexplained of the traced total.

        The trace has every matrix. So where the layers say that there is more than twice of what is unexplained, the
        tokens attend in windows, which makes five dimensions; fused kernels take four.
        """
        whole = 0.0 < self.whole <= min(unexplained, _LARGEST_MAP_SHARE * total)
        fused, unfused = self.fused + (self.whole if whole else 0.0), self.unfused + (0.0 if whole else self.by_rows)
        if fused > 2 * unexplained:
            return 0.0, unfused + unexplained
        return min(fused, _LARGEST_ATTENTION_SHARE * total, unexplained), unfused


def _attention_matrices(ops: tuple[Op, ...]) -> _Matrices:
    found = _Matrices()
    for index, op in enumerate(ops):
        if not _projects_qkv(ops, index):
            continue
        tokens = math.prod(op.shape[:-1])
        if tokens < 4:
            continue
        windows = op.out_elements / (tokens * op.channels_out)
        rows = op.shape[-2]
        size_bytes = _FLOAT_BYTES * windows * _heads(ops, index, tokens) * tokens
        if len(op.shape) > 2:
            found.by_rows += size_bytes * rows
            found.whole += size_bytes * tokens
        elif _shows_matrix(ops, index, rows):
            found.unfused += size_bytes * rows
        else:
            found.fused += size_bytes * rows
    return found


def _projects_qkv(ops: tuple[Op, ...], index: int) -> bool:
    op = ops[index]
    if op.type != "Linear" or op.channels_out != 3 * op.channels_in or len(op.shape) < 2:
        return False
    if index + 1 < len(ops) and ops[index + 1].kind in (OpKind.KEEPS_INPUT, OpKind.KEEPS_OUTPUT):
        return False
    return not _is_gated(ops, index)


def _is_gated(ops: tuple[Op, ...], index: int) -> bool:
    """A layer with a gate has two equal linear layers, and then one that reads all that they wrote."""
    op = ops[index]
    after = next((other for other in ops[index + 1 : index + 3] if other.type == "Linear"), None)
    if after is None:
        return False
    is_twin = (after.channels_in, after.channels_out) == (op.channels_in, op.channels_out)
    return is_twin or after.channels_in == op.channels_out


def _heads(ops: tuple[Op, ...], index: int, tokens: int) -> int:
    for op in ops[index + 1 : index + 4]:
        if len(op.shape) == 3 and op.shape[1] == tokens:
            return op.shape[0]
    width = ops[index].channels_out // 3
    return max(1, round(width / (64 if width % 64 == 0 else 32)))


def _shows_matrix(ops: tuple[Op, ...], index: int, rows: int) -> bool:
    """If a module receives the attention matrix, the code computes it, so no fused kernel is used."""
    for op in ops[index + 1 : index + _QKV_SEARCH]:
        if op.type == "Linear" and op.channels_out == 3 * op.channels_in:
            return False
        if len(op.shape) >= 2 and op.shape[-1] == op.shape[-2] == rows:
            return True
    return False
