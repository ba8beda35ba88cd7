"""A profile at another image size or sequence length than it was traced at.

The builder of the catalog traces every network at two sizes or three. Each figure of a layer grows with a power of
the size (a convolution with the area, a linear layer with the tokens, an attention matrix with their square), so the
entry keeps the exponents beside one traced profile. Totals are kept at every traced size and read between them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

# A layer of an entry has one field more than a profile's: the place of its exponents in `growths`.
GROWTH = 9
_TOTALS = ("kept", "fused", "largest")


def scaled_profile(entry: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """The profile at `ratio` times the area, or the tokens, that the entry was traced at. Layers are unfolded."""
    totals = dict(zip(_TOTALS, (_total(entry["totals"], at, ratio) for at in range(1, 4)), strict=True))
    layers = entry["layers"] if ratio == 1.0 else [_grown(layer, entry["growths"], ratio) for layer in entry["layers"]]
    profile = {
        "id": entry["id"],
        "family": entry["family"],
        "parameters": entry["parameters"],
        "buffers": entry["buffers"],
        "saved_bytes_per_sample": totals["kept"] + totals["fused"],
        "largest_saved_bytes_per_sample": totals["largest"],
        "layers": [layer[:GROWTH] for layer in layers],
    }
    return profile | ({"fused_attention_bytes_per_sample": totals["fused"]} if totals["fused"] else {})


def _total(points: Sequence[Sequence[float]], at: int, ratio: float) -> int:
    """Points are (ratio, kept, fused, largest), the traced size first."""
    known = {float(point[0]): float(point[at]) for point in points}
    if ratio in known or len(known) == 1:
        return round(known.get(ratio, known[1.0] * ratio))
    if len(known) == 2:
        return round(_by_power(known, ratio))
    return max(0, round(_by_curve(known, ratio)))


def _by_power(known: Mapping[float, float], ratio: float) -> float:
    """Images: what rounding adds at one size must not bend the curve."""
    (_, value), (other, grown) = known.items()
    if value <= 0 or grown <= 0:
        return value
    return float(value * ratio ** (math.log(grown / value) / math.log(other)))


def _by_curve(known: Mapping[float, float], ratio: float) -> float:
    """Tokens: a constant, a line and a square, exactly."""
    places = list(known)
    return sum(
        known[at] * math.prod((ratio - other) / (at - other) for other in places if other != at) for at in places
    )


def _grown(layer: Sequence[Any], growths: Sequence[Sequence[float]], ratio: float) -> list[Any]:
    """Elements stay a whole multiple of the shape: that is what tells a tensor of the batch from one of its own."""
    repeats_power, input_power, *shape_powers = growths[layer[GROWTH]]
    out, given, shape = layer[1], layer[6], layer[7]
    size = max(1, math.prod(shape))
    repeats = out / size
    if repeats_power:
        repeats = max(1, round(repeats * ratio**repeats_power))
    new_shape = [max(1, round(side * ratio**power)) for side, power in zip(shape, shape_powers, strict=True)]
    grown = list(layer)
    grown[1] = round(repeats * math.prod(new_shape))
    grown[6] = round(given * ratio**input_power)
    grown[7] = new_shape
    return grown


def find_growths(base: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]], ratio: float) -> list[list[float]]:
    """Exponents of every layer, from the same layers traced at `ratio` times the size."""
    return [_growth(layer, grown, ratio) for layer, grown in zip(base, other, strict=True)]


def _growth(layer: Sequence[Any], grown: Sequence[Any], ratio: float) -> list[float]:
    if len(layer[7]) != len(grown[7]):
        return [_power(layer[1], grown[1], ratio), _power(layer[6], grown[6], ratio), *([0.0] * len(layer[7]))]
    repeats = _power(layer[1] / max(1, math.prod(layer[7])), grown[1] / max(1, math.prod(grown[7])), ratio)
    sides = [_power(side, after, ratio) for side, after in zip(layer[7], grown[7], strict=True)]
    return [repeats, _power(layer[6], grown[6], ratio), *sides]


def _power(before: float, after: float, ratio: float) -> float:
    if before <= 0 or after <= 0 or before == after:
        return 0.0
    return round(math.log(after / before) / math.log(ratio), 3)
