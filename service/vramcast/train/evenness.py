"""How the bounds treat unseen groups one by one: a coverage that holds on the whole may fail every run of one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.train.evaluation import Judged

# Groups with fewer runs say nothing about their own coverage.
_GROUP_RUNS = 10
_EVEN = 0.85


def evenness(group: NDArray[np.str_], dealt: Sequence[Judged]) -> dict[str, Any]:
    """By source, how the bounds at risk 0.05 treat unseen groups one by one; every dealing counts its own."""
    found: dict[str, Any] = {}
    for source in sorted({str(source) for source in dealt[0].source}):
        shares = [share for judged in dealt for share in _group_coverage(judged, group, source)]
        if shares:
            covered = np.array([share for share, _ in shares])
            worst = int(np.argmin(covered))
            found[source] = {
                "groups": len(shares) // len(dealt),
                "covered_at_85": float((covered >= _EVEN).mean()),
                "worst": float(covered[worst]),
                "worst_group": shares[worst][1],
            }
    return found


def _group_coverage(judged: Judged, group: NDArray[np.str_], source: str) -> list[tuple[float, str]]:
    ok = (judged.source == source) & ~judged.censored & ~judged.suspect
    covered = judged.bounds_mib[0.05] >= judged.measured_mib
    own = [(name, ok & (group == name)) for name in sorted({str(name) for name in group[ok]})]
    return [(float(covered[rows].mean()), name) for name, rows in own if rows.sum() >= _GROUP_RUNS]
