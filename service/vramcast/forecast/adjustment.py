"""What this cluster's runs made of a forecast: two factors, and on how many runs they rest."""

from __future__ import annotations

import math
from dataclasses import dataclass

_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Adjustment:
    """The artifact's median and bound were multiplied by these; `outcomes` says how many runs taught it."""

    median: float = 1.0
    bound: float = 1.0
    outcomes: int = 0

    def __str__(self) -> str:
        """As it is written onto a pod: what was promised can be judged later, whatever was learned since."""
        return f"{self.median:.{_DIGITS}f},{self.bound:.{_DIGITS}f},{self.outcomes}"


UNADJUSTED = Adjustment()


def parse_adjustment(text: str | None) -> Adjustment:
    """Never raises: unreadable is as good as absent, for anybody may edit an annotation."""
    try:
        median, bound, outcomes = (text or "").split(",")
        read = Adjustment(float(median), float(bound), int(outcomes))
    except ValueError:
        return UNADJUSTED
    usable = all(math.isfinite(factor) and 0.01 <= factor <= 100.0 for factor in (read.median, read.bound))
    return read if usable and read.outcomes >= 0 else UNADJUSTED
