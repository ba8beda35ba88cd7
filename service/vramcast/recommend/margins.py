"""How much a workload's next run may need beyond what was seen: its need at the risk.

    enough runs of its own      their conformal quantile: at a risk of 0.05, nineteen runs
    fewer                       its largest peak and a margin: how far the newest run of other workloads here was above
                                as many runs before it, as a conformal quantile over these workloads
    too few other workloads     the scatter of published repeats, doubled for a workload that was seen once

Failed runs might have needed more, so their peaks count as floors. The next run never gets less than the newest took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from vramcast.outcomes.run_memory import SCATTER_BY_AGE, scatter_at
from vramcast.outcomes.run_scores import upper_quantile

# How many runs before the newest one are compared with it.
_LOOK_BACK: Final = (16, 8, 4, 2, 1)
_SEEN_ONCE: Final = 2.0
# A peak cannot be 0 on a logarithmic scale.
_LEAST_MIB: Final = 1


class MarginBasis(StrEnum):
    OWN_RUNS = "own runs"
    OTHER_WORKLOADS = "other workloads"
    PUBLISHED = "published repeats"


@dataclass(frozen=True, slots=True)
class Peak:
    """Of one run. `floor`: it failed, and might have needed more."""

    mib: int
    floor: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    mib: int
    basis: MarginBasis
    margin: float  # above the largest peak: 0.13 is 13 %; below 0 if a quantile of many runs


def runs_for(risk: float) -> int:
    """How many runs a conformal quantile at this risk takes."""
    return math.ceil(1.0 / risk - 1.0 - 1e-9)


class Margins:
    """Of one cluster: learned from all its workloads, once."""

    def __init__(self, histories: Sequence[Sequence[Peak]], risk: float) -> None:
        """`histories`: the peaks of each workload, oldest first."""
        self.risk = risk
        whole = [[math.log(max(p.mib, _LEAST_MIB)) for p in peaks if not p.floor] for peaks in histories]
        self._pooled: dict[int, float] = {}
        for back in _LOOK_BACK:
            scores = np.array([logs[-1] - max(logs[-1 - back : -1]) for logs in whole if len(logs) > back])
            if len(scores) >= runs_for(risk):
                self._pooled[back] = upper_quantile(scores, np.zeros(len(scores), dtype=np.bool_), risk)
        self._least = scatter_at(SCATTER_BY_AGE[0][1], risk)
        self._published = scatter_at(SCATTER_BY_AGE[-1][1], risk)

    def need(self, peaks: Sequence[Peak]) -> Need:
        """`peaks`: at least one, oldest first."""
        largest = max(peak.mib for peak in peaks)
        runs = sum(not peak.floor for peak in peaks)
        if runs >= runs_for(self.risk):
            logs = np.log([max(peak.mib, _LEAST_MIB) for peak in peaks])
            quantile = math.exp(upper_quantile(logs, np.array([peak.floor for peak in peaks]), self.risk))
            mib = max(math.ceil(round(quantile, 6)), peaks[-1].mib)
            return Need(mib, MarginBasis.OWN_RUNS, mib / max(largest, _LEAST_MIB) - 1.0)
        margin, basis = self._margin(max(runs, 1))
        return Need(math.ceil(round(largest * math.exp(margin), 6)), basis, math.expm1(margin))

    def _margin(self, runs: int) -> tuple[float, MarginBasis]:
        pooled = next((self._pooled[back] for back in _LOOK_BACK if back <= runs and back in self._pooled), None)
        if pooled is not None:
            return max(pooled, self._least), MarginBasis.OTHER_WORKLOADS
        return self._published * (_SEEN_ONCE if runs == 1 else 1.0), MarginBasis.PUBLISHED
