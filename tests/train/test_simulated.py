"""Simulated runs: recordings replayed under random settings, and how they are split and bounded."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.features import TOKEN_WIDTH, TOKENS
from vramcast.forecast.rules import held_share
from vramcast.forecast.summary import summarized
from vramcast.forecast.totals_blocks import unit_bytes
from vramcast.forecast.totals_features import FACTS
from vramcast.task.vocabulary import Kernels
from vramcast.train.progress import Progress
from vramcast.train.simulated import SimulatedJob, job_task, simulate
from vramcast.train.simulated_data import LEVELS, MOST_POINTS, Simulated, Tokens, architectures, build, deal
from vramcast.train.totals import SimulatedRuns, kept_fits, missed_by, usable
from vramcast.train.totals_blend import Schedules, by_network, fit_blend, weights
from vramcast.train.totals_export import check_totals, export_totals
from vramcast.train.totals_kept import Kept
from vramcast.train.totals_margins import fit_margins, grouped_quantile
from vramcast.train.totals_network import TotalsSchedule, TotalsShape, fit_network
from vramcast.train.totals_rows import kept_rows
from vramcast.train.totals_trees import TreeSchedule, fit_trees

QUIET = Progress(quiet=True)
MODELS = ("torchvision/alexnet", "hf/bert-tiny")
GROUPS = {model: model for model in MODELS}
SCHEDULES = Schedules(TreeSchedule(rounds=8), TotalsSchedule(steps=3, networks=2, jobs=4))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


@pytest.fixture(scope="module")
def jobs(work: Path) -> list[SimulatedJob]:
    return simulate(work, QUIET, models=MODELS, jobs=3)


@pytest.fixture(scope="module")
def built(jobs: list[SimulatedJob]) -> tuple[Simulated, Tokens]:
    return build(jobs, GROUPS, QUIET)


@pytest.fixture(scope="module")
def data(built: tuple[Simulated, Tokens]) -> Simulated:
    return usable(built[0])


def test_the_same_jobs_are_drawn_again(jobs: list[SimulatedJob], tmp_path: Path) -> None:
    assert simulate(tmp_path, QUIET, models=MODELS, jobs=3) == jobs


def test_what_an_interrupted_command_made_is_not_made_again(work: Path, jobs: list[SimulatedJob]) -> None:
    made = {path: path.stat().st_mtime_ns for path in work.iterdir()}
    assert simulate(work, QUIET, models=MODELS, jobs=3) == jobs
    assert {path: path.stat().st_mtime_ns for path in work.iterdir()} == made
    assert len(made) == 2 * len(MODELS)  # and those that shard on one GPU


def test_every_setting_is_one_that_a_pod_could_have(jobs: list[SimulatedJob]) -> None:
    for job in jobs:
        assert job_task(job.model, job.settings).model == job.model


def test_only_language_models_are_sharded_on_one_gpu(jobs: list[SimulatedJob]) -> None:
    alone = [job for job in jobs if job.settings.get("data-parallel-size") == "1"]
    assert {job.model for job in alone} == {"hf/bert-tiny"}
    assert all(job.settings["zero-stage"] in "23" and "lora" not in job.variant for job in alone)


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
    line = (0.8 * data.held_bytes)[:, None] + steep * data.unit_bytes[:, :1] * data.units
    reserved = np.maximum(steep * 0.5 * data.held_bytes[:, None], line)
    trees = fit_trees(data, reserved, weights(data.group), TreeSchedule(rounds=60, learning_rate=0.2), 0)
    factors = np.stack([trees.predict(data.facts[:, level]) for level in range(len(LEVELS))], axis=1)
    missed = missed_by(data, factors, reserved)
    assert np.nanmedian(np.abs(missed)) < 0.05


def test_the_exported_graph_gives_the_same_factors(built: tuple[Simulated, Tokens], tmp_path: Path) -> None:
    data, tokens = usable(built[0]), built[1]
    blend = fit_blend(data, tokens, SCHEDULES, Kept(tmp_path, QUIET), "all")
    assert check_totals(export_totals(blend), blend, data, tokens) < 1e-4


def test_what_is_kept_is_not_fitted_again(built: tuple[Simulated, Tokens], tmp_path: Path) -> None:
    data, tokens = usable(built[0]), built[1]
    first = fit_blend(data, tokens, SCHEDULES, Kept(tmp_path, QUIET), "all")
    made = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = fit_blend(data, tokens, SCHEDULES, Kept(tmp_path, QUIET), "all")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == made
    assert np.array_equal(first.factors(data, tokens), again.factors(data, tokens))


def test_what_could_not_be_written_whole_is_made_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path, QUIET)
    with pytest.raises(UnicodeEncodeError):
        kept.text("trees", lambda: "cannot be written: \ud800")
    assert kept.text("trees", lambda: "written") == "written"


def test_models_are_fitted_again_once_architectures_are_told_otherwise(
    built: tuple[Simulated, Tokens], tmp_path: Path
) -> None:
    """Folds follow from them, and a model that is kept must not have seen what is held out."""
    data, tokens = usable(built[0]), built[1]
    others = replace(data, group=data.group[::-1].copy())
    other_tokens = Tokens(tokens.tokens + 1, tokens.kinds)
    found = {
        kept_fits(tmp_path, SimulatedRuns([], rows, shown, GROUPS), SCHEDULES, QUIET).directory
        for rows, shown in ((data, tokens), (others, tokens), (data, other_tokens))
    }
    assert len(found) == 3
    same = SimulatedRuns([], replace(data), tokens, GROUPS)
    assert kept_fits(tmp_path, same, SCHEDULES, QUIET).directory in found


def test_jobs_of_a_kind_that_is_left_to_the_rules_are_left_out(
    jobs: list[SimulatedJob], built: tuple[Simulated, Tokens]
) -> None:
    """A denoiser that counts as a CNN was recorded with LoRA: nobody can say how far off such a run is."""
    adapted = replace(jobs[-1], settings={"precision": "bf16", "lora-rank": "8"})
    assert jobs[-1].model == "torchvision/alexnet"
    assert len(build([*jobs, adapted], GROUPS, QUIET)[0]) == len(built[0])


def test_rows_are_built_once(jobs: list[SimulatedJob], built: tuple[Simulated, Tokens], tmp_path: Path) -> None:
    for _ in range(2):
        data, tokens = kept_rows(tmp_path, jobs, GROUPS, QUIET)
        assert all(np.array_equal(getattr(data, field.name), getattr(built[0], field.name)) for field in fields(data))
        assert np.array_equal(tokens.tokens, built[1].tokens)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_network_learns_what_layers_alone_tell() -> None:
    """Two networks with the same facts: only their tokens tell which one takes four times as much."""
    data = _bare(400)
    data = replace(data, facts=np.concatenate([np.ones((400, len(LEVELS), 1), np.float32)] * len(FACTS), axis=2),
                   network=1 + np.arange(400) % 2)  # fmt: skip
    steep = np.where(data.network == 1, 4.0, 1.0)[:, None]
    reserved = data.held_bytes[:, None] + steep * data.unit_bytes[:, :1] * data.units
    data = replace(data, active_bytes=reserved, reserved_bytes=reserved)
    shown = np.zeros((3, TOKENS, TOKEN_WIDTH), np.float32)
    kinds = np.zeros((3, TOKENS), np.int64)
    kinds[1, :4], kinds[2, :4] = 1, 5
    schedule = TotalsSchedule(steps=250, networks=4, jobs=16)
    network = fit_network(data, Tokens(shown, kinds), weights(data.group), TotalsShape(), schedule, 1)
    factors = by_network(network, data, Tokens(shown, kinds))
    missed = np.abs(missed_by(data, factors[:, :, 1], reserved))
    assert np.nanmean(missed[:, 0]) < 0.1
    assert np.nanmean(missed[:, 1]) > 0.2


def test_a_vocabulary_adds_to_a_checkpointed_step_and_widths_to_no_other_family() -> None:
    line = builtin_catalog().line("hf/bert-tiny")
    assert line is not None
    network = builtin_catalog().describe(line.name, None, 128).network
    task = summarized(job_task(line.name, {"precision": "bf16", "gradient-checkpointing": "true"}), network)
    task = replace(task, sequence_length=128)
    known, fused = (unit_bytes(replace(task, kernels=kernels), network) for kernels in (Kernels.NONE, Kernels.LIGER))
    assert known > fused > 0
    assert unit_bytes(task, None) == 4.0 * held_share(task) * (task.activations or 0) / 128
    image = builtin_catalog().describe("torchvision/alexnet", None, None).network
    assert unit_bytes(task, image) == unit_bytes(task, None)


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
        facts, cells, np.zeros(rows, np.int64), held, np.repeat(unit[:, None], len(LEVELS), 1), units, ones, ones, ones,
        np.array([f"g{at % 10}" for at in range(rows)]), np.ones(rows, np.bool_),
    )  # fmt: skip
