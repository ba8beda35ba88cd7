"""Whether the figures of a profile are those of a network.

Anybody can edit a profile, and everything that is computed from one takes its figures for granted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Exact as a float.
_MOST = 1 << 53
_MOST_DIMENSIONS, _MOST_SIZE = 16, 1 << 40
_SHOWN = 80  # characters of what is wrong
_SIZES_IN_BYTES = ("saved_bytes_per_sample", "largest_saved_bytes_per_sample", "fused_attention_bytes_per_sample")


def check_figures(profile: Mapping[str, Any]) -> None:
    """Raises ValueError, or KeyError for what is missing. A repeated block is looked at once."""
    _check("parameters", _is_count(profile["parameters"]), profile["parameters"])
    optional: dict[str, Callable[[Any], bool]] = {
        "buffers": _is_count,
        "sequence_length": _is_length,
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
    """Only what multiplies needs sizes. A module of the user's may have a `groups` of its own, and return a number."""
    name, out, parameters, kernel, groups, _in_place, *traced = layer
    _check("layer", isinstance(name, str) and _is_count(out) and _is_count(parameters), layer)
    convolves, linear = "conv" in name.lower(), "linear" in name.lower() and parameters > 0
    multiplies = convolves or linear
    read, shape, stride = traced[:3] if traced else (0, (), None)
    settings = (kernel or (), stride or (), () if groups is None else (groups,))
    least = 1 if multiplies else -_MOST_SIZE
    _check("layer", all(_are_sizes(each, least=least) for each in settings), layer)
    _check("layer", _is_count(read) and _are_sizes(shape, least=int(multiplies)), layer)
    _check("layer", not multiplies or out > 0, layer)
    _check("layer", not linear or bool(shape or not traced), layer)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_length(value: Any) -> bool:
    return _is_count(value) and value > 0


def _are_sizes(values: Any, *, least: int = 1) -> bool:
    """Of few dimensions, so that no product of them is too large for a float."""
    few = isinstance(values, list | tuple) and len(values) <= _MOST_DIMENSIONS
    return few and all(isinstance(size, int) and least <= size <= _MOST_SIZE for size in values)


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= _MOST


def _check(name: str, right: bool, value: object) -> None:
    if not right:
        raise ValueError(f"{name} {repr(value)[:_SHOWN]}")
