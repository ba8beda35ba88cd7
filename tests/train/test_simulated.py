"""Simulated runs: recordings replayed under random settings, and how they are split and bounded."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.train.progress import Progress
from vramcast.train.simulated import SimulatedJob, job_task, simulate
from vramcast.train.simulated_data import LEVELS, MOST_POINTS, Simulated, architectures, build, deal
from vramcast.train.totals import missed_by, usable, weights
from vramcast.train.totals_export import check_totals, export_totals
from vramcast.train.totals_margins import fit_margins, grouped_quantile
from vramcast.train.totals_trees import TreeSchedule, fit_trees

QUIET = Progress(quiet=True)
MODELS = ("torchvision/alexnet", "hf/bert-tiny")
SCHEDULE = TreeSchedule(rounds=8)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


@pytest.fixture(scope="module")
def jobs(work: Path) -> list[SimulatedJob]:
    return simulate(work, QUIET, models=MODELS, jobs=3)


@pytest.fixture(scope="module")
def data(jobs: list[SimulatedJob]) -> Simulated:
    groups = {model: model for model in MODELS}
    return usable(build(jobs, groups, QUIET)[0])


def test_the_same_jobs_are_drawn_again(jobs: list[SimulatedJob], tmp_path: Path) -> None:
    assert simulate(tmp_path, QUIET, models=MODELS, jobs=3) == jobs


def test_what_an_interrupted_command_made_is_not_made_again(work: Path, jobs: list[SimulatedJob]) -> None:
    made = {path: path.stat().st_mtime_ns for path in work.iterdir()}
    assert simulate(work, QUIET, models=MODELS, jobs=3) == jobs
    assert {path: path.stat().st_mtime_ns for path in work.iterdir()} == made
    assert len(made) == len(MODELS)


def test_every_setting_is_one_that_a_pod_could_have(jobs: list[SimulatedJob]) -> None:
    for job in jobs:
        assert job_task(job.model, job.settings).model == job.model


def test_more_samples_take_no_fewer_tensors(jobs: list[SimulatedJob]) -> None:
    for job in jobs:
        by_size: dict[tuple[int, int], list[int]] = {}
        for point in job.points:  # batches rise
            by_size.setdefault((point.length, point.side), []).append(point.active_bytes)
        # A block of the cache may be larger than the tensor in it, by a little.
        assert all(after > 0.98 * before for sizes in by_size.values() for before, after in pairwise(sizes))


def test_a_summary_tells_nothing_that_only_layers_do(data: Simulated) -> None:
    layers, *others = (data.facts[:, level] for level in range(len(LEVELS)))
    known = layers.any(0) & ~np.any([facts.any(0) for facts in others], axis=0)
    assert known.any()  # facts of layers
    assert not np.array_equal(others[0], others[-1])


def test_a_network_of_torchvision_is_on_the_side_of_timms() -> None:
    modules = {"resnet50": "resnet", "resnet18": "resnet", "vit_base": "vision_transformer"}
    found = architectures(["timm/resnet50", "torchvision/resnet101", "hf/vit-base-patch16", "hf/gpt2"], modules)
    assert found == {"timm/resnet50": "resnet", "torchvision/resnet101": "resnet",
                     "hf/vit-base-patch16": "vision_transformer", "hf/gpt2": "gpt"}  # fmt: skip


def test_no_architecture_is_on_both_sides_of_a_split() -> None:
    group = np.array(list("aaaabbbccd"))
    fold = deal(group, 3)
    assert all(len(set(fold[group == name])) == 1 for name in "abcd")
    assert len(set(fold)) == 3


def test_an_architecture_counts_once_however_many_runs_it_has() -> None:
    few = grouped_quantile(np.array([0.1, 0.2, 0.3, 0.9]), np.array(list("abcd")), 0.5)
    many = grouped_quantile(np.array([0.1, 0.2, 0.3, *[0.9] * 50]), np.array(["a", "b", "c", *["d"] * 50]), 0.5)
    assert few == many


def test_too_few_architectures_are_bounded_by_the_worst_run() -> None:
    scores = np.linspace(0.0, 1.0, 30)
    assert grouped_quantile(scores, np.repeat(list("abc"), 10), 0.95) == 1.0


@given(st.lists(st.floats(-2, 2), min_size=12, max_size=12))
def test_a_lower_risk_never_has_a_smaller_margin(scores: list[float]) -> None:
    data = replace(_bare(len(scores)), group=np.array([f"g{at % 6}" for at in range(len(scores))]))
    missed = np.broadcast_to(np.array(scores)[:, None, None], (len(scores), len(LEVELS), MOST_POINTS))
    for factors in fit_margins(missed, data, np.ones(len(scores), np.bool_)).values():
        margins = [factors.by_risk[risk] for risk in sorted(factors.by_risk, reverse=True)]
        assert margins == sorted(margins)
        assert margins[0] >= 0.0


def test_trees_learn_a_floor_and_a_line_that_the_rules_miss() -> None:
    data = _bare(400)
    steep = np.where(data.facts[:, :1, 0] > 0.5, 4.0, 1.5)  # a fact tells which
    line = (0.8 * data.held_bytes)[:, None] + steep * data.unit_bytes[:, None] * data.units
    reserved = np.maximum(steep * 0.5 * data.held_bytes[:, None], line)
    trees = fit_trees(data, reserved, weights(data.group), TreeSchedule(rounds=60, learning_rate=0.2), 0)
    factors = np.stack([trees.predict(data.facts[:, level]) for level in range(len(LEVELS))], axis=1)
    missed = missed_by(data, factors, reserved)
    assert np.nanmedian(np.abs(missed)) < 0.05


def test_the_exported_graph_gives_the_same_factors(data: Simulated) -> None:
    weight = weights(data.group)
    trees = {
        "active_factors": [fit_trees(data, data.active_bytes, weight, SCHEDULE, seed) for seed in (0, 1)],
        "reserved_factors": [fit_trees(data, data.reserved_bytes, weight, SCHEDULE, 0)],
    }
    facts = np.asarray(data.facts.reshape(-1, data.facts.shape[-1]), np.float32)
    assert check_totals(export_totals(trees), trees, facts) < 1e-4


def _bare(rows: int) -> Simulated:
    """Jobs of different sizes that the rules get wrong alike."""
    random = np.random.default_rng(0)
    width = 8
    facts = np.broadcast_to(random.random((rows, 1, width)), (rows, len(LEVELS), width)).astype(np.float32)
    units = np.broadcast_to(np.array([1.0, 4.0, 16.0, 64.0]), (rows, MOST_POINTS)).copy()
    held, unit = 1e9 * np.exp(random.random(rows)), 1e8 * np.exp(random.random(rows))
    cells = np.broadcast_to(np.array([f"{told}/any" for told in LEVELS])[None, :, None], (rows, len(LEVELS), 1))
    ones = np.ones((rows, MOST_POINTS))
    return Simulated(
        facts, cells, np.zeros(rows, np.int64), held, unit, units, ones, ones, ones,
        np.array([f"g{at % 10}" for at in range(rows)]), np.ones(rows, np.bool_),
    )  # fmt: skip
