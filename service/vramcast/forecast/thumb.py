"""Bounds by rule of thumb, for physics without a calibrated model: wide, and said to be so by the forecast's source."""

from __future__ import annotations

from itertools import pairwise
from math import log

# Above the sum, by the risk that is accepted.
_BOUND_FACTORS = ((0.5, 1.0), (0.1, 1.3), (0.05, 1.45), (0.01, 1.9), (0.001, 2.4), (0.0001, 3.0))


def bound_factor(risk: float) -> float:
    """Between the table's risks, straight on a logarithmic scale: halving the risk costs a constant step."""
    clamped = min(max(risk, _BOUND_FACTORS[-1][0]), _BOUND_FACTORS[0][0])
    for (high, low_factor), (low, high_factor) in pairwise(_BOUND_FACTORS):
        if clamped >= low:
            way = (log(high) - log(clamped)) / (log(high) - log(low))
            return low_factor + way * (high_factor - low_factor)
    return _BOUND_FACTORS[-1][1]
