"""Attention matrices: which ones a trace has and a GPU does not keep."""

from __future__ import annotations

from typing import Any

import pytest

from vramcast.forecast.description import Description, parse_profile
from vramcast.forecast.saved import Saved, layer_table, saved_bytes

WIDTH = 64


def _network(shape: list[int], blocks: int, matrices: float) -> Description:
    """Blocks of a norm, a projection to queries, keys and values, and one back. `matrices`: bytes in the trace."""
    tokens = 1
    for side in shape:
        tokens *= side
    elements = tokens * WIDTH
    layers: list[list[Any]] = []
    for _ in range(blocks):
        inner, outer = [*shape, WIDTH], [*shape, 3 * WIDTH]
        layers.append(["LayerNorm", elements, 2 * WIDTH, None, None, False, elements, inner, None])
        layers.append(["Linear", 3 * elements, 3 * WIDTH * WIDTH, None, None, False, elements, outer, None])
        layers.append(["Linear", elements, WIDTH * WIDTH, None, None, False, elements, inner, None])
    kept = 4 * elements * 3 * blocks
    return parse_profile({
        "id": "timm/made", "family": "transformer", "group": "made", "input_shape": [3, 8, 8],
        "parameters": sum(layer[2] for layer in layers), "buffers": 0, "saved_bytes_per_sample": round(kept + matrices),
        "largest_saved_bytes_per_sample": 4 * elements, "layers": layers,
    })  # fmt: skip


def _saved(network: Description) -> Saved:
    return saved_bytes(network, layer_table(network.ops))


def test_fused_kernels_do_not_keep_the_matrices_of_a_list_of_tokens() -> None:
    matrices = 2 * 4.0 * 196 * 196  # two blocks of one head
    found = _saved(_network([196], 2, 2.5 * matrices))
    assert found.fused_attention_bytes == pytest.approx(matrices)
    assert found.unfused_attention_bytes == 0.0


def test_matrices_that_exceed_the_trace_are_of_windows_and_are_kept() -> None:
    """As in Hiera: 3,136 tokens attend in windows of 64, which makes five dimensions, and fused kernels take four."""
    windows = 2 * 4.0 * 3136 * 64
    found = _saved(_network([3136], 2, 2.5 * windows))
    assert found.fused_attention_bytes == 0.0
    assert found.unfused_attention_bytes == pytest.approx(2.5 * windows)


def test_a_map_attends_as_a_whole_if_the_trace_has_room_for_that() -> None:
    """As in VOLO, which projects a map of (height, width, channels) and then flattens it."""
    whole = 2 * 4.0 * 196 * 196
    found = _saved(_network([14, 14], 2, 2.5 * whole))
    assert found.fused_attention_bytes == pytest.approx(whole)


def test_a_map_attends_by_blocks_if_the_trace_has_no_room_for_more() -> None:
    """As in NesT: 16 blocks of 196 tokens."""
    blocks = 2 * 4.0 * 16 * 196 * 196
    found = _saved(_network([16, 196], 2, 2.5 * blocks))
    assert found.fused_attention_bytes == 0.0
    assert found.unfused_attention_bytes == pytest.approx(blocks)
