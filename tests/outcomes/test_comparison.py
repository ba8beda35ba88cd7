"""Two models on the same outcomes: what counts, when one may follow the other, and what is stored of it."""

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
    retell,
    summarize,
)
from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

A100 = Product("NVIDIA-A100-SXM4-40GB")
RIGHT = LAWS[0]


def said(run: Run, median: float = 1.0, margin: float = 1.0) -> Forecast:
    """What another model says: its median moved, its margin wider or narrower."""
    width = math.log(run.bound_bytes / run.median_bytes) * margin
    middle = run.median_bytes * median
    return Forecast(A100, round(middle), round(middle * math.exp(width)), 0.05, Source.MODEL, "other", family="cnn")


def compared(count: int, law: Law = RIGHT, median: float = 1.0, margin: float = 1.0, seed: int = 1) -> Comparison:
    comparison = Comparison()
    for run in runs(law, seed, count):
        outcome = finish(run, law, UNADJUSTED)
        comparison.add(outcome, retell(outcome, said(run, median, margin)))
    return comparison


def test_one_that_says_the_same_is_ready_after_as_many_outcomes_as_are_asked_for() -> None:
    assert compared(99).standing(100) is Standing.WAITING
    assert compared(100).standing(100) is Standing.READY


@pytest.mark.parametrize(("median", "margin"), [(0.8, 1.0), (1.3, 1.0), (1.0, 3.0), (1.0, 0.4)])
def test_one_that_is_wrong_too_high_too_wide_or_too_narrow_is_worse(median: float, margin: float) -> None:
    for seed in range(10):
        assert compared(150, median=median, margin=margin, seed=seed).standing(100) is Standing.WORSE


def test_one_that_knows_what_the_other_does_not_is_ready() -> None:
    law = next(law for law in LAWS if law.name == "20 % more")
    comparison = compared(150, law, median=1.2)
    assert comparison.standing(100) is Standing.READY
    active, candidate = summarize(comparison.active), summarize(comparison.candidate)
    assert active.coverage < 0.3
    assert candidate.coverage > 0.9
    assert candidate.loss < 0.5 * active.loss
    assert candidate.error_ratio < active.error_ratio


def record(bound_bytes: int = 100) -> Outcome:
    seen = finish(next(runs(RIGHT, 1, 1)), RIGHT, UNADJUSTED)
    return replace(seen, median_bytes=90, bound_bytes=bound_bytes, peak_bytes=bound_bytes, ending=Ending.OOM)


def forecast(median: int, bound: int) -> Forecast:
    return Forecast(A100, median, bound, 0.05, Source.MODEL, "other", family="cnn")


def test_with_more_than_what_it_died_at_it_is_not_known_whether_it_would_have_died() -> None:
    assert retell(record(), forecast(90, 99)).ending is Ending.OOM
    spared = retell(record(), forecast(110, 120))
    assert spared.ending is Ending.FAILED
    assert spared.covered
    assert judge(spared).loss == 0.0
    assert judge(retell(record(), forecast(90, 99))).loss > 0.1


def test_a_run_that_was_stopped_is_no_reason_to_promise_less() -> None:
    stopped = replace(record(), ending=Ending.STOPPED, peak_bytes=50)
    verdict = judge(retell(stopped, forecast(90, 100)))
    assert (verdict.loss, verdict.error, verdict.reserved) == (0.0, None, None)


def test_what_is_stored_is_what_was_compared() -> None:
    comparison = compared(250, LAWS[-2], median=1.1)
    comparison.add(record(), retell(record(), forecast(110, 120)))
    stored = json.dumps(comparison_json(comparison))
    assert read_comparison(json.loads(stored)) == comparison
    assert len(stored) < 20_000


@pytest.mark.parametrize(
    "damaged", [{}, {"active": [1], "candidate": []}, {"active": [1, 1, 1, 1, 1], "candidate": []}]
)
def test_a_damaged_comparison_is_refused(damaged: dict[str, list[int]]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_comparison(damaged)
