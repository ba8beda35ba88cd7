"""Whether the figures of a profile are those of a network.

Anybody can edit a profile, and everything that is computed from one takes its figures for granted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# Exact as a float.
_MOST = 1 << 53
_SHOWN = 80  # characters of what is wrong
_SIZES_IN_BYTES = ("saved_bytes_per_sample", "largest_saved_bytes_per_sample", "fused_attention_bytes_per_sample")


def check_figures(profile: Mapping[str, Any]) -> None:
    """Raises ValueError, or KeyError for what is missing. A repeated block is looked at once."""
    _check("parameters", _is_count(profile["parameters"]), profile["parameters"])
    optional = {
        "buffers": _is_count,
        "sequence_length": _is_size,
        "input_shape": _are_sizes,
        **dict.fromkeys(_SIZES_IN_BYTES, _is_amount),
    }
    for name, is_right in optional.items():
        value = profile.get(name)
        _check(name, value is None or is_right(value), value)
    work = profile.get("work") or []
    _check("work", all(isinstance(figure, int | float) and math.isfinite(figure) for figure in work), work)
    for layer in profile["layers"]:
        for each in layer[1] if isinstance(layer[0], int) else (layer,):
            _check_layer(each)


def _check_layer(layer: Sequence[Any]) -> None:
    name, out, parameters, kernel, groups, _in_place, *traced = layer
    right = isinstance(name, str) and _is_count(out) and _is_count(parameters)
    right = right and (kernel is None or _are_sizes(kernel)) and (groups is None or _is_size(groups))
    if traced:
        read, shape, stride = traced[:3]
        right = right and _is_count(read) and _are_sizes(shape) and (stride is None or _are_sizes(stride))
        right = right and bool(shape or not parameters)
    _check("layer", right and bool(out or not parameters), layer)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_size(value: Any) -> bool:
    return _is_count(value) and value > 0


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(map(_is_size, values))


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST


def _check(name: str, right: bool, value: object) -> None:
    if not right:
        raise ValueError(f"{name} {repr(value)[:_SHOWN]}")
