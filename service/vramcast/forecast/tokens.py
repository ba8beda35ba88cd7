"""Layers as a short sequence: one token per weighted layer with its followers, repeats merged, at most `TOKENS`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.description import CONVOLUTIONS, OpKind, among
from vramcast.forecast.physics import Layered
from vramcast.task.quantity import MIB

TOKENS = 32
_HEADS = among(*CONVOLUTIONS, OpKind.LINEAR, OpKind.POOL)
_NORMS = among(OpKind.BATCH_NORM, OpKind.LAYER_NORM)
_ACTIVATIONS = among(OpKind.KEEPS_INPUT, OpKind.KEEPS_OUTPUT)
# Columns: three sizes, weights, kernel, groups, stride, channels in and out, saved and traffic shares, norm,
# activation, dropout, layers in the token, repeats, place, and what is saved so far.
TOKEN_WIDTH = 18


def make_tokens(layered: Layered, batch: float, total_bytes: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """(TOKENS, TOKEN_WIDTH) and the kinds, 1-based so that 0 is padding."""
    table, saved = layered.table, layered.saved
    heads = _HEADS[table.kind]
    heads[0] = True
    starts = np.flatnonzero(heads)
    columns = np.stack([
        table.out_elements, saved.per_layer_bytes, table.in_elements + table.out_elements, table.parameters,
        _NORMS[table.kind].astype(np.float64),
        _ACTIVATIONS[table.kind].astype(np.float64),
        (table.kind == OpKind.DROPOUT).astype(np.float64),
        np.ones(len(table.kind)),
    ])  # fmt: skip
    sums = np.add.reduceat(columns, starts, axis=1)  # (8, tokens)
    first = np.stack([
        table.in_elements, table.out_elements, table.kernel, table.groups, table.stride, table.channels_in,
        table.channels_out,
    ])[:, starts]  # fmt: skip
    kinds = table.kind[starts]
    merged = _merge_repeats(np.concatenate([kinds[None], first, sums]))
    return _fill(_shorten(merged), saved.per_sample_bytes, batch, total_bytes)


def _merge_repeats(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Equal tokens in a row become one; row -1 counts them."""
    same = np.all(columns[:, 1:] == columns[:, :-1], axis=0)
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    counts = np.diff(np.append(starts, columns.shape[1])).astype(np.float64)
    kept = columns[:, starts].copy()
    kept[8:] *= counts
    return np.concatenate([kept, counts[None]])


def _shorten(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Neighbours share a token where there are too many: sums add up, and the largest layer speaks for them."""
    count = columns.shape[1]
    if count <= TOKENS:
        return columns
    starts = np.unique(np.arange(TOKENS) * count // TOKENS)
    ends = np.append(starts[1:], count)
    traffic = columns[10]
    speakers = np.array([low + int(np.argmax(traffic[low:high])) for low, high in zip(starts, ends, strict=True)])
    shortened = columns[:, speakers].copy()
    shortened[8:] = np.add.reduceat(columns[8:], starts, axis=1)
    return shortened


def _fill(
    columns: NDArray[np.float64], sample_bytes: float, batch: float, total_bytes: float
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    count = columns.shape[1]
    kind, in_first, out_first, kernel, groups, stride, channels_in, channels_out = columns[:8]
    outputs, saved, traffic, parameters, norms, activations, dropouts, layers, repeats = columns[8:]
    rows = np.stack([
        np.log1p(4.0 * batch * in_first / MIB), np.log1p(4.0 * batch * out_first / MIB),
        np.log1p(4.0 * batch * outputs / MIB), np.log1p(4.0 * parameters / MIB), kernel / 4.0, np.log(groups) / 4.0,
        stride - 1.0, np.log1p(channels_in) / 4.0, np.log1p(channels_out) / 4.0, 8.0 * saved * batch / total_bytes,
        8.0 * 4.0 * traffic * batch / total_bytes, np.minimum(norms, 4.0) / 2.0, np.minimum(activations, 4.0) / 2.0,
        np.minimum(dropouts, 4.0) / 2.0, np.log1p(layers), np.log(repeats), np.arange(count) / TOKENS,
        np.cumsum(saved) / max(sample_bytes, 1.0),
    ])  # fmt: skip
    tokens = np.zeros((TOKENS, TOKEN_WIDTH), np.float32)
    tokens[:count] = rows.T
    kinds = np.zeros(TOKENS, np.int64)
    kinds[:count] = kind.astype(np.int64) + 1
    return tokens, kinds
