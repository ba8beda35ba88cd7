"""Compares two predictors on the same runs: is their difference more than chance?

Whole groups are drawn with replacement, because runs of one architecture have correlated errors. The interval is that
of the difference, so networks that are hard for both do not widen it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
_DRAWS = 2000
_INTERVAL = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class Difference:
    """Our error minus theirs: negative if ours is smaller. `low` and `high` contain 95 % of the draws."""

    value: float
    low: float
    high: float

    @property
    def settled(self) -> bool:
        """The interval does not contain zero."""
        return self.low > 0 or self.high < 0


def compare(ours: Floats, theirs: Floats, group: NDArray[np.str_]) -> tuple[Difference, Difference]:
    """The differences of the median and of the mean error."""
    _, member = np.unique(group, return_inverse=True)
    count = int(member.max()) + 1
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1.0 / count), size=_DRAWS)
    weights = drawn[:, member].astype(np.float64)  # (draws, rows)
    medians = _medians(ours, weights) - _medians(theirs, weights)
    means = (weights @ (ours - theirs)) / weights.sum(axis=1)
    return (
        _difference(float(np.median(ours) - np.median(theirs)), medians),
        _difference(float(ours.mean() - theirs.mean()), means),
    )


def _medians(errors: Floats, weights: Floats) -> Floats:
    order = np.argsort(errors)
    running = np.cumsum(weights[:, order], axis=1)
    middle = (running < running[:, -1:] / 2).sum(axis=1)
    return np.asarray(errors[order][middle])


def _difference(value: float, draws: Floats) -> Difference:
    low, high = np.quantile(draws, _INTERVAL)
    return Difference(value, float(low), float(high))
