"""The fit and its check, on made-up pairs that follow the law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from bench.interference import gavel, lucid
from bench.interference.gavel import blind_errors, work_shares
from bench.interference.others import chosen_on_halves
from bench.interference.recall import recall


def test_a_job_whose_step_grows_with_the_batch_works_for_that_share() -> None:
    # 10 ms that do not depend on the batch, and 1 ms per sample.
    speeds = {("v100", "net", batch): 1.0 / (0.010 + 0.001 * batch) for batch in (10, 20, 40)}
    shares = work_shares(speeds)
    assert shares["v100", "net", 10] == pytest.approx(0.5)
    assert shares["v100", "net", 40] == pytest.approx(0.8)


def test_one_batch_size_tells_nothing() -> None:
    assert work_shares({("v100", "net", 8): 12.0}) == {}


def _gavel(path: Path, coefficient: float) -> Path:
    work = {batch: batch / (10 + batch) for batch in (5, 10, 30, 90)}
    lines = ["gpu,jobA,jobB,tputA_co,tputB_co,tputA_iso,tputB_iso,normA,normB"]
    for one, first in work.items():
        for two, second in work.items():
            slow = 1 + coefficient * (first * second) ** 0.25
            jobs = f"\"('Net (batch size {one})', 1)\",\"('Net (batch size {two})', 1)\""
            lines.append(f"v100,{jobs},0,0,{1 / (10 + one)},{1 / (10 + two)},{1 / slow},{1 / slow}")
    lines.append("v100,\"('Net (batch size 5)', 2)\",\"('Net (batch size 5)', 2)\",0,0,1,1,0.1,0.1")
    lines.append("v100,\"('Net (batch size 90)', 1)\",\"('Net (batch size 90)', 1)\",0,0,0.01,0.01,0.0,0.0")
    path.write_text("\n".join(lines))
    return path


def test_the_fit_finds_the_coefficient_and_skips_pairs_that_did_not_run(tmp_path: Path) -> None:
    pairs = gavel.read_pairs(_gavel(tmp_path / "gavel.csv", 0.7))
    assert len(pairs.own) == len(pairs.on("v100").own) == 16
    assert len(pairs.on("k80").own) == 0
    assert gavel.fit(gavel.loss(pairs), pairs.slowdown)[0] == pytest.approx(0.7)


def test_pairs_that_follow_the_law_have_no_error_and_all_slow_ones_are_recognized(tmp_path: Path) -> None:
    alone, pairs = tmp_path / "alone.csv", tmp_path / "pairs.csv"
    alone.write_text("model,dataset,batchsize,amp,gpu_util,gmem_util\nbig,d,8,0,100,64\nsmall,d,8,0,16,16\n")
    names = ",".join(f"{name}{side}" for side in "12" for name in ("model", "dataset", "batchsize", "amp", "speed"))
    big, small = 0.64**0.25, 0.16
    rows = [("big", "big", big * big), ("big", "small", big * small), ("small", "small", small * small)]
    text = [f"{a},d,8,0,{1 / (1 + product)},{b},d,8,0,{1 / (1 + product)}" for a, b, product in rows]
    pairs.write_text("\n".join([names, *text]))
    read = lucid.read_pairs(alone, pairs).real
    found = lucid.check(read, read.alone.pressures, 1.0)
    assert found.pairs == 3
    assert found.error_job == pytest.approx(0.0)
    assert (found.slow_pairs, found.recall) == (1, 1.0)


def test_a_pair_whose_memory_is_that_of_one_job_did_not_run_together(tmp_path: Path) -> None:
    alone, pairs = tmp_path / "alone.csv", tmp_path / "pairs.csv"
    alone.write_text(
        "model,dataset,batchsize,amp,gpu_util,gmem_util,gmem\nbig,d,8,0,100,64,9000\nsmall,d,8,0,25,4,2000\n"
    )
    names = ",".join(f"{name}{side}" for side in "12" for name in ("model", "dataset", "batchsize", "amp", "speed"))
    rows = [f"big,d,8,0,1.0,small,d,8,0,1.0,{memory_mib}" for memory_mib in (11000, 10200, 9100, 2000)]
    pairs.write_text("\n".join([f"{names},gmem", *rows]))
    read = lucid.read_pairs(alone, pairs)
    assert read.together.tolist() == [True, True, False, False]
    assert (read.slowdowns.shape, read.real.slowdowns.shape) == ((2, 4), (2, 2))


def test_a_threshold_cannot_divide_equal_forecasts() -> None:
    forecast, measured = np.array([2.0, 1.5, 1.5, 1.0]), np.array([2.0, 1.4, 1.0, 1.0])
    assert recall(forecast, measured, 1.3, 0.8) == 0.5
    assert recall(forecast, measured, 1.3, 0.6) == 1.0


def test_the_form_that_the_pairs_follow_has_the_smallest_blind_error(tmp_path: Path) -> None:
    pairs = gavel.read_pairs(_gavel(tmp_path / "gavel.csv", 0.7))
    # Two models, so that each is forecast by a constant of the other.
    halves = np.array([["one", "one"]] * 8 + [["two", "two"]] * 8)
    errors = blind_errors(replace(pairs, models=halves))
    assert errors["(own x other)^1/4, as shipped"] == pytest.approx(0.0, abs=0.01)
    assert min(errors, key=lambda name: errors[name]) == "(own x other)^1/4, as shipped"


def test_a_law_that_is_chosen_on_half_of_the_models_is_judged_on_the_other_half() -> None:
    """Where GPU time decides, its families find all slow pairs of models that they were not chosen on."""
    random = np.random.default_rng(1)
    busy, memory, kinds = random.uniform(0, 1, 80), random.uniform(0, 1, 80), random.integers(0, 80, (2, 400))
    names = np.array([f"model {number % 8}" for number in range(80)])
    nothing = np.zeros(80)
    alone = lucid.Alone(names, np.ones(80, np.int64), nothing > 0, busy, memory, nothing, np.zeros((80, 1)))
    slow = 1 + np.maximum(0, busy[kinds].sum(axis=0) - 1)
    found = chosen_on_halves(lucid.Pairs(alone, kinds, np.array([slow, slow]), np.ones(400, np.bool_)), halves=3)
    assert found["their sum"].on_other_half > 0.9
    assert all(one.shipped_on_other_half < 0.9 for one in found.values())
