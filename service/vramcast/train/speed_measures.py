"""How far step times are off, as the second paper reports it. Needs no torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def measures(seconds: Floats, predicted: Floats, samples: Floats) -> dict[str, float]:
    """Of seconds per step; `r2_rate` is of samples per second."""
    miss = predicted - seconds
    mse = float(np.mean(miss**2))
    return {
        "rows": len(seconds),
        "mse": mse,
        "rmse": mse**0.5,
        "mae": float(np.mean(np.abs(miss))),
        "mape": float(np.mean(np.abs(miss) / seconds)),
        "median_error": float(np.median(np.abs(miss) / seconds)),
        "r2": _r2(seconds, predicted),
        "r2_log": _r2(np.log(seconds), np.log(predicted)),
        "r2_rate": _r2(samples / seconds, samples / predicted),
    }


def _r2(true: Floats, predicted: Floats) -> float:
    spread = float(np.mean((true - true.mean()) ** 2))
    return 1.0 - float(np.mean((predicted - true) ** 2)) / spread if spread > 0 else 0.0
