"""How many of the slow pairs an order of all pairs recognizes at a given precision."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
TOO_SLOW = 1.3
PRECISION = 0.8


def recall(forecast: Floats, measured: Floats, limit: float, precision: float) -> float:
    """Of the pairs above the limit, the share above the lowest threshold that keeps the precision."""
    order = np.argsort(-forecast, kind="stable")
    hits, ranked = np.cumsum(measured[order] > limit), forecast[order]
    last = np.append(ranked[1:] != ranked[:-1], True)  # a threshold cannot divide equal forecasts
    precise = last & (hits / np.arange(1, len(order) + 1) >= precision)
    return float(hits[precise].max(initial=0) / max(hits[-1], 1))
