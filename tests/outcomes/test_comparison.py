"""The active model and a candidate on the same outcomes: how each is judged, and when the candidate is ready."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from tests.outcomes.laws import LAWS, Law, Run, finish, runs

from vramcast.forecast.forecast import UNADJUSTED, Forecast, Source
from vramcast.names import Product
from vramcast.outcomes.comparison import (
    Comparison,
    Standing,
    comparison_json,
    judge,
    read_comparison,
    restate,
    summarize,
)
from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

A100 = Product("NVIDIA-A100-SXM4-40GB")
RIGHT = LAWS[0]


def scaled_forecast(run: Run, median: float = 1.0, margin: float = 1.0) -> Forecast:
    """The forecast of another model: its median moved, its margin wider or narrower."""
    width = math.log(run.bound_bytes / run.median_bytes) * margin
    middle = run.median_bytes * median
    return Forecast(A100, round(middle), round(middle * math.exp(width)), 0.05, Source.MODEL, "other", family="cnn")


def compared(count: int, law: Law = RIGHT, median: float = 1.0, margin: float = 1.0, seed: int = 1) -> Comparison:
    comparison = Comparison()
    for run in runs(law, seed, count):
        outcome = finish(run, law, UNADJUSTED)
        comparison.add(outcome, restate(outcome, scaled_forecast(run, median, margin)))
    return comparison


def test_an_equal_candidate_is_ready_after_the_required_number_of_outcomes() -> None:
    assert compared(99).standing(100) is Standing.WAITING
    assert compared(100).standing(100) is Standing.READY


@pytest.mark.parametrize(("median", "margin"), [(0.8, 1.0), (1.3, 1.0), (1.0, 3.0), (1.0, 0.4)])
def test_a_candidate_with_a_wrong_median_or_margin_is_worse(median: float, margin: float) -> None:
    for seed in range(10):
        assert compared(150, median=median, margin=margin, seed=seed).standing(100) is Standing.WORSE


def test_a_more_accurate_candidate_is_ready() -> None:
    law = next(law for law in LAWS if law.name == "20 % more")
    comparison = compared(150, law, median=1.2)
    assert comparison.standing(100) is Standing.READY
    active, candidate = summarize(comparison.active), summarize(comparison.candidate)
    assert active.coverage < 0.3
    assert candidate.coverage > 0.9
    assert candidate.loss < 0.5 * active.loss
    assert candidate.error_ratio < active.error_ratio


def oom_outcome(bound_bytes: int = 100) -> Outcome:
    seen = finish(next(runs(RIGHT, 1, 1)), RIGHT, UNADJUSTED)
    return replace(seen, median_bytes=90, bound_bytes=bound_bytes, peak_bytes=bound_bytes, ending=Ending.OOM)


def forecast(median: int, bound: int) -> Forecast:
    return Forecast(A100, median, bound, 0.05, Source.MODEL, "other", family="cnn")


def test_with_a_promise_above_the_peak_an_oom_might_not_have_happened() -> None:
    assert restate(oom_outcome(), forecast(90, 99)).ending is Ending.OOM
    spared = restate(oom_outcome(), forecast(110, 120))
    assert spared.ending is Ending.FAILED
    assert spared.covered
    assert judge(spared).loss == 0.0
    assert judge(restate(oom_outcome(), forecast(90, 99))).loss > 0.1


def test_a_stopped_run_never_counts_against_a_large_promise() -> None:
    stopped = replace(oom_outcome(), ending=Ending.STOPPED, peak_bytes=50)
    verdict = judge(restate(stopped, forecast(90, 100)))
    assert (verdict.loss, verdict.error, verdict.reserved) == (0.0, None, None)


def test_a_comparison_survives_json() -> None:
    comparison = compared(250, LAWS[-2], median=1.1)
    comparison.add(oom_outcome(), restate(oom_outcome(), forecast(110, 120)))
    stored = json.dumps(comparison_json(comparison))
    assert read_comparison(json.loads(stored)) == comparison
    assert len(stored) < 20_000


@pytest.mark.parametrize(
    "damaged", [{}, {"active": [1], "candidate": []}, {"active": [1, 1, 1, 1, 1], "candidate": []}]
)
def test_a_damaged_comparison_is_refused(damaged: dict[str, list[int]]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_comparison(damaged)
