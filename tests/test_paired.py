"""When a difference between two predictors on the same runs is significant (bench/paired.py)."""

from __future__ import annotations

import numpy as np
import pytest
from bench.paired import compare

RNG = np.random.default_rng(3)
GROUPS = np.repeat([f"net-{number}" for number in range(60)], 5)
ERRORS = RNG.exponential(0.05, 60).repeat(5) * RNG.uniform(0.5, 1.5, 300)


def test_a_difference_on_every_network_is_significant() -> None:
    median, mean = compare(ERRORS, ERRORS + 0.01, GROUPS)
    assert mean.value == pytest.approx(-0.01)
    assert median.value == pytest.approx(-0.01)
    assert mean.settled
    assert median.settled


def test_a_difference_on_one_network_is_chance() -> None:
    worse = ERRORS + np.where(GROUPS == "net-7", 0.5, 0.0)
    _, mean = compare(ERRORS, worse, GROUPS)
    assert mean.value < 0
    assert not mean.settled


def test_networks_that_are_hard_for_both_do_not_widen_the_interval() -> None:
    hard = np.where(GROUPS == "net-7", 5.0, 0.0)
    _, plain = compare(ERRORS, ERRORS + 0.01, GROUPS)
    _, harder = compare(ERRORS + hard, ERRORS + 0.01 + hard, GROUPS)
    assert (harder.low, harder.high) == pytest.approx((plain.low, plain.high))


def test_medians_are_taken_over_the_drawn_runs() -> None:
    """With one group every draw is the whole sample."""
    one = np.repeat(["net"], 301)
    ours, theirs = RNG.random(301), RNG.random(301)
    median, _ = compare(ours, theirs, one)
    expected = np.median(ours) - np.median(theirs)
    assert (median.low, median.value, median.high) == pytest.approx((expected, expected, expected))
