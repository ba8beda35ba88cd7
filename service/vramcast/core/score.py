"""Which of the nodes that fit is best: 0 to 10, whole numbers, as the scheduler wants them.

Two wishes, weighed. *Fill*: take the GPU that this pod fills best, so that large GPUs and empty GPUs stay free for
those who need them. *Calm*: of two equally full GPUs prefer the one with fewer tenants to compete with.
"""

from __future__ import annotations

import numpy as np

from vramcast.core.table import Ints

MAX_SCORE = 10
_FILL_WEIGHT = 0.8


def score(size_mib: Ints, room_mib: Ints, needs_mib: Ints, tenants: Ints) -> Ints:
    """All arguments: (nodes,), of the GPU that the pod would take."""
    fill = 1 - (room_mib - needs_mib) / np.maximum(size_mib, 1)
    calm = 1 / (1 + tenants)
    wish = _FILL_WEIGHT * fill + (1 - _FILL_WEIGHT) * calm
    return np.asarray(np.clip(np.rint(wish * MAX_SCORE), 0, MAX_SCORE), dtype=np.int64)
