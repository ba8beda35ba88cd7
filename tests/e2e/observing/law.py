"""What runs really take on this cluster: a law that the model does not know.

Needs are log-normal around a shifted median, as wide as the model's own bound says. They are drawn evenly over the
law's quantiles (van der Corput's sequence) instead of at random: any stretch of runs looks like the law itself, so that
what is judged here is the whole way from a sample to the next promise, and not the luck of a hundred draws. How
calibration does with luck is judged over many seeds and laws in tests/core/test_adaptive.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

RISK = 0.05
NORMAL = NormalDist()
_Z = NORMAL.inv_cdf(1 - RISK)


@dataclass(frozen=True, slots=True)
class Said:
    """What the model says of a task before it has learned anything."""

    median_bytes: int
    bound_bytes: int

    @property
    def margin(self) -> float:
        return math.log(self.bound_bytes / self.median_bytes)


@dataclass(frozen=True, slots=True)
class Law:
    """`more`: 1.2 where runs take a fifth more than the model says."""

    more: float

    def need_bytes(self, said: Said, number: int) -> float:
        """Of the run of that number, from 0 on."""
        return self._quantile(said, _even(number + 1))

    def oracle_bytes(self, said: Said) -> float:
        """What somebody who knows the law would reserve."""
        return self._quantile(said, 1 - RISK)

    def coverage(self, said: Said, bound_bytes: float) -> float:
        """With which probability a run stays below."""
        deviations = (math.log(bound_bytes / said.median_bytes) - math.log(self.more)) / (said.margin / _Z)
        return NORMAL.cdf(deviations)

    def _quantile(self, said: Said, share: float) -> float:
        return said.median_bytes * self.more * math.exp(said.margin / _Z * NORMAL.inv_cdf(share))


def _even(number: int) -> float:
    """The binary digits of the number, mirrored at the point: 1/2, 1/4, 3/4, 1/8, ..."""
    share, part = 0.0, 0.5
    while number:
        share += part * (number % 2)
        number //= 2
        part /= 2
    return share
