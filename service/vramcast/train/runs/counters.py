"""Which counter a published figure was read from."""

from __future__ import annotations

import re

from vramcast.forecast.counters import Counter

# In this order: `torch max_memory_reserved` is not nvidia-smi's figure, although it is near it.
_WORDS: tuple[tuple[str, Counter | None], ...] = (
    (r"^none|boundary|incl\. evaluation|after validation|at end of run|memory_allocated$", None),
    (r"reserved", Counter.RESERVED),
    (r"allocated|active|tracemalloc|torch peak|\(torch\)|torch max memory|torch, ci|suggests torch", Counter.ALLOCATED),
    (r"nvidia-smi|nvml|device memory|vram|gram|hardware requirement", Counter.DEVICE),
)


def counter(kind: str) -> Counter | None:
    """None: the figure is of something else, or nobody says of what."""
    lower = kind.lower()
    if lower.startswith("torch max_memory_allocated"):
        return Counter.ALLOCATED
    return next((found for pattern, found in _WORDS if re.search(pattern, lower)), None)
