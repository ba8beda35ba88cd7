"""The most that a forecast without recorded steps may promise, and what it says about tensors alone.

The learned bound grows with novelty and knows no end: a LoRA job of 20 GiB once got 200, and a detector of 3 GiB got
264. But a median from totals or layers is arithmetic: weights, gradients, states and what backward needs. What runs had
beyond it are copies of the largest tensors, gaps in the cache, and the workspaces of convolutions. So the bound ends at
a multiple of the median, and for convolutions some GiB above that.
"""

from __future__ import annotations

from dataclasses import replace

from vramcast.forecast.counters import CounterForecast
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.forecast import CONTEXT_PART, Forecast
from vramcast.forecast.physics import bound_factor
from vramcast.task.quantity import GIB
from vramcast.task.task import Task

LEARNED_PART = "learned correction"
RECORDINGS_PART = "learned from recordings"
# Beyond the rule of thumb: 2.5 medians at risk 0.05, 2.95 at 0.01.
_COPIES = 1.05
# cuDNN's autotuner tries every kernel that the GPU has room for. Only plain training was measured with it.
_WORKSPACES_BYTES = 16 * GIB


def bounded_totals(forecast: Forecast, task: Task, *, layers: bool) -> Forecast:
    """`layers`: the forecast knows them. They count in familiar settings only."""
    by_totals = not layers or bool(unfamiliar_settings(task))
    ceiling = ceiling_bytes(forecast, convolves=not unfamiliar_settings(task))
    forecast = replace(forecast, bound_bytes=max(forecast.median_bytes, min(forecast.bound_bytes, ceiling)))
    by_rules = by_totals and forecast.allocated is None
    return replace(forecast, allocated=_tensors(forecast)) if by_rules else forecast


def most_over_median(risk: float) -> float:
    """Of a bound, where nothing convolves."""
    return bound_factor(risk) + _COPIES


def ceiling_bytes(forecast: Forecast, *, convolves: bool) -> int:
    workspaces = _WORKSPACES_BYTES if convolves else 0
    return round(forecast.median_bytes * most_over_median(forecast.risk)) + workspaces


def _tensors(forecast: Forecast) -> CounterForecast:
    """Totals are tensors. What was learned is about the device's counter: workspaces, and what the allocator caches."""
    tensors = sum(part.size_bytes for part in forecast.parts if part.name not in (CONTEXT_PART, LEARNED_PART))
    most = max(tensors, forecast.bound_bytes - forecast.context_bytes)
    return CounterForecast(tensors, min(most, round(tensors * bound_factor(forecast.risk))))
