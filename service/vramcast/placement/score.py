"""Which of the nodes that fit is best: 0 to 10, whole numbers, as the scheduler wants them.

Two wishes, weighed. *Fill*: take the GPU that this pod fills best, so that large GPUs and empty GPUs stay free for
those who need them. *Calm*: of two equally full GPUs prefer the one with fewer tenants to compete with.
"""

from __future__ import annotations

import numpy as np

from vramcast.placement.table import Ints, Mibs

MAX_SCORE = 10
_FILL_WEIGHT = 0.8


def score(size_mib: Mibs, spare_mib: Ints, tenants: Mibs) -> Ints:
    """All arguments: (nodes,), of the GPU that the pod would take; `spare_mib` is what it would leave there."""
    fill = 1 - spare_mib / np.maximum(size_mib, 1)
    calm = 1 / (1 + tenants)
    wish = _FILL_WEIGHT * fill + (1 - _FILL_WEIGHT) * calm
    return np.asarray(np.clip(np.rint(wish * MAX_SCORE), 0, MAX_SCORE), dtype=np.int64)
