"""The true needs of runs on this cluster: a distribution ("law") that the model does not know.

Needs are log-normal around a shifted median, as wide as the model's own bound implies. They are spread evenly over the
law's quantiles (van der Corput's sequence) instead of drawn at random, so that any stretch of runs follows the law. The
test then checks the whole path from a sample to the next promise, and not the luck of a hundred draws.
tests/outcomes/test_calibration.py checks calibration on random draws, over many seeds and laws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

RISK = 0.05
NORMAL = NormalDist()
_Z = NORMAL.inv_cdf(1 - RISK)


@dataclass(frozen=True, slots=True)
class FirstForecast:
    """The model's forecast for a task before it has learned anything."""

    median_bytes: int
    bound_bytes: int

    @property
    def margin(self) -> float:
        return math.log(self.bound_bytes / self.median_bytes)


@dataclass(frozen=True, slots=True)
class Law:
    """`need_factor`: 1.2 if runs take a fifth more than the model forecasts."""

    need_factor: float

    def need_bytes(self, forecast: FirstForecast, number: int) -> float:
        """The need of the run with this number, counted from 0."""
        return self._quantile(forecast, _even(number + 1))

    def oracle_bytes(self, forecast: FirstForecast) -> float:
        """The reservation of an oracle that knows the law."""
        return self._quantile(forecast, 1 - RISK)

    def coverage(self, forecast: FirstForecast, bound_bytes: float) -> float:
        """The probability that a run stays within the bound."""
        excess = math.log(bound_bytes / forecast.median_bytes) - math.log(self.need_factor)
        return NORMAL.cdf(excess / (forecast.margin / _Z))

    def _quantile(self, forecast: FirstForecast, share: float) -> float:
        return forecast.median_bytes * self.need_factor * math.exp(forecast.margin / _Z * NORMAL.inv_cdf(share))


def _even(number: int) -> float:
    """The binary digits of the number, mirrored at the point: 1/2, 1/4, 3/4, 1/8, ..."""
    share, part = 0.0, 0.5
    while number:
        share += part * (number % 2)
        number //= 2
        part /= 2
    return share
