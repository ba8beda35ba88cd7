"""The counters that measure a run's memory, and what a forecast says for each.

They differ by half in places, so a figure is only compared with a forecast of the same counter. Promises are made in
the device's, because that is what has to fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Counter(StrEnum):
    ALLOCATED = "torch-allocated"  # what tensors take: torch.cuda.max_memory_allocated
    RESERVED = "torch-reserved"  # what torch's allocator took from the device for them
    DEVICE = "device"  # that, the CUDA context and communication buffers: nvidia-smi


@dataclass(frozen=True, slots=True)
class CounterForecast:
    median_bytes: int
    bound_bytes: int
