"""vramcast: forecasts the GPU memory of training jobs, and schedules them where they fit.

In a notebook: `vramcast.forecast(model, (3, 224, 224), batch_size=64, optimizer="adamw")`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # `forecast` is a callable package (see there), imported on first use.
    if name == "forecast":
        return import_module("vramcast.forecast")
    raise AttributeError(f"module 'vramcast' has no attribute {name!r}")
