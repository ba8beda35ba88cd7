"""Runs are scored against the artifact's own numbers, and censored runs count as floors."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.outcomes.laws import LAWS, finish, runs

from vramcast.forecast.forecast import UNADJUSTED, Adjustment, conformal_quantile, parse_adjustment
from vramcast.outcomes.run_scores import OOM_EXCESS, score_outcome, upper_quantile, upper_quantiles
from vramcast.task.run_status import Ending

LAW = LAWS[1]


def test_calibration_at_the_time_of_a_run_does_not_change_its_score() -> None:
    run = next(runs(LAW, 1, 1))
    plain = score_outcome(finish(run, LAW, UNADJUSTED))
    adjusted = score_outcome(finish(run, LAW, Adjustment(1.2, 1.5, 40)))
    assert plain is not None
    assert adjusted is not None
    assert adjusted.ratio == pytest.approx(plain.ratio, abs=2e-4)
    assert adjusted.margin == pytest.approx(plain.margin, abs=2e-4)


def test_an_oom_scores_above_its_bound_whatever_peak_was_seen() -> None:
    run = next(runs(LAW, 1, 1))
    outcome = replace(finish(run, LAW, UNADJUSTED), ending=Ending.OOM, peak_bytes=1)
    score = score_outcome(outcome)
    assert score is not None
    assert score.censored
    assert score.ratio == pytest.approx(math.log(outcome.bound_bytes / outcome.median_bytes) + OOM_EXCESS, abs=1e-4)


@pytest.mark.parametrize("risk", [0.5, 0.1, 0.05])
def test_without_censored_runs_the_quantile_is_the_conformal_one(risk: float) -> None:
    values = np.random.default_rng(3).standard_normal(60)
    assert upper_quantile(values, np.zeros(60, dtype=np.bool_), risk) == conformal_quantile(list(values), risk)


def test_censored_runs_raise_the_quantile_as_much_as_their_full_needs_would() -> None:
    rng = np.random.default_rng(4)
    needs, limits = rng.standard_normal(20_000), rng.standard_normal(20_000) + 1
    seen, censored = np.minimum(needs, limits), needs > limits
    assert upper_quantile(seen, censored, 0.05) == pytest.approx(1.645, abs=0.06)


def test_rows_taken_together_have_the_quantiles_that_each_has_alone() -> None:
    rng = np.random.default_rng(5)
    values, censored, risks = rng.integers(0, 9, (4, 40)).astype(float), rng.random(40) < 0.3, [0.5, 0.2, 0.05, 0.01]
    together = upper_quantiles(values, censored, risks)
    assert together == [upper_quantile(row, censored, risk) for row, risk in zip(values, risks, strict=True)]


def test_where_the_highest_runs_are_censored_the_quantile_is_the_largest_score() -> None:
    assert upper_quantile(np.array([1.0, 3.0, 2.0, 4.0]), np.array([False, True, False, True]), 0.2) == 4.0


def test_with_too_few_runs_the_quantile_is_the_largest_score() -> None:
    assert upper_quantile(np.array([1.0, 3.0, 2.0]), np.zeros(3, dtype=np.bool_), 0.05) == 3.0


def test_an_adjustment_survives_being_written_to_an_annotation() -> None:
    adjustment = Adjustment(1.1823, 1.2201, 64)
    assert parse_adjustment(str(adjustment)) == adjustment


@pytest.mark.parametrize("text", [None, "", "x", "1,2", "1,2,3,4", "nan,1,1", "1,inf,1", "0,1,1", "1,1e9,1", "1,1,-1"])
def test_an_invalid_adjustment_is_ignored(text: str | None) -> None:
    assert parse_adjustment(text) == UNADJUSTED
