"""Bounds keep the stated risk, and cells with too few scores fall back to wider ones."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.forecast.forecast import (
    MIN_SCORES,
    RISKS,
    Cell,
    Factors,
    ScoredRun,
    Spreads,
    bound,
    calibrate,
    conformal_quantile,
)

CELL = Cell("A100", "cnn", "traced")


def _scores(count: int, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(count)]


@pytest.mark.parametrize("risk", [0.1, 0.05, 0.01])
def test_new_runs_exceed_the_quantile_with_probability_risk(risk: float) -> None:
    threshold = conformal_quantile(_scores(5000, 1), risk)
    exceeded = sum(score > threshold for score in _scores(20000, 2)) / 20000
    assert exceeded == pytest.approx(risk, abs=0.3 * risk + 0.002)


def test_too_few_scores_fall_back_to_the_wider_cell() -> None:
    many = [ScoredRun(CELL, dict.fromkeys(RISKS, 1.0), "resnet")] * MIN_SCORES
    few = [ScoredRun(Cell("T4", "cnn", "traced"), dict.fromkeys(RISKS, 9.0), "vgg")] * 3
    calibration = calibrate([*many, *few])
    assert calibration.factors(Cell("T4", "cnn", "traced")).scores == MIN_SCORES + 3
    assert calibration.factors(Cell("L4", "rnn", "nothing")).scores == MIN_SCORES + 3
    assert calibration.factors(CELL).scores == MIN_SCORES


def _group_scores(seed: int, groups: int) -> list[ScoredRun]:
    """Runs of a group are off by as much together: one in ten groups by four spreads, but large groups by little."""
    rng = random.Random(seed)
    scored = []
    for group in range(groups):
        off, runs = (4.0, 10) if group % 10 == 0 else (0.0, 60)
        scored += [ScoredRun(CELL, dict.fromkeys(RISKS, off + rng.gauss(0, 1)), str(group)) for _ in range(runs)]
    return scored


def test_most_new_architectures_are_covered_not_only_most_runs() -> None:
    factors = calibrate(_group_scores(1, 60)).factors(CELL)
    assert conformal_quantile([one.by_risk[0.05] for one in _group_scores(1, 60)], 0.05) < 3.0
    covered: dict[str, list[bool]] = {}
    for one in _group_scores(2, 60):
        covered.setdefault(one.group, []).append(one.by_risk[0.05] <= factors.by_risk[0.05])
    even = [sum(runs) / len(runs) >= 0.85 for runs in covered.values()]
    assert sum(even) / len(even) >= 0.93


def test_few_architectures_say_nothing_about_the_next() -> None:
    scored = _group_scores(1, 10)
    pooled = conformal_quantile([one.by_risk[0.05] for one in scored], 0.05)
    assert calibrate(scored).factors(CELL).by_risk[0.05] == pooled


@given(
    st.lists(st.floats(-2, 5), min_size=5, max_size=5),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
    st.floats(0.0001, 0.5),
    st.floats(0.0001, 0.5),
)
def test_crossing_factors_and_spreads_still_give_ordered_bounds(
    factors: list[float], spreads: list[float], one: float, other: float
) -> None:
    """Each risk has its own factor and spread, and nothing guarantees their order."""
    low, high = sorted((one, other))
    table = Factors(500, dict(zip(RISKS, factors, strict=True)))
    tail = Spreads(dict(zip(RISKS, spreads, strict=True)))
    assert bound(1e9, tail, table, low, 0.1) >= bound(1e9, tail, table, high, 0.1)


@given(st.floats(0.0001, 0.5), st.floats(0.0001, 0.5), st.floats(0, 3), st.floats(0.001, 1))
def test_less_risk_and_more_novelty_never_lower_the_bound(
    one: float, other: float, novelty: float, spread: float
) -> None:
    factors = Factors(500, {0.5: 0.0, 0.1: 1.0, 0.05: 1.5, 0.01: 3.0, 0.001: 4.0})
    spreads = Spreads(dict.fromkeys(RISKS, spread))
    low, high = sorted((one, other))
    assert bound(1e9, spreads, factors, low, novelty) >= bound(1e9, spreads, factors, high, novelty) >= 1e9
    assert bound(1e9, spreads, factors, low, novelty) >= bound(1e9, spreads, factors, low, 0.0)
    assert bound(1e9, Spreads(dict.fromkeys(RISKS, 0.0)), factors, low, 1.0) > 1.1e9
    assert math.isfinite(bound(1e9, spreads, factors, low, novelty))
