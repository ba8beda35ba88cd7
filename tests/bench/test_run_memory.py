"""The arithmetic of the run memory benchmark. Its runs are not in the repository."""

from __future__ import annotations

import math

import pytest
from bench.run_memory.__main__ import Answer, every_other_model, scatter_of
from bench.run_memory.intervals import Ladder
from bench.run_memory.rows import Measured

from vramcast.task.task import Task
from vramcast.task.vocabulary import Level


def answer(model: str, mib: float = 1_000.0, bound_mib: float = 1_100.0) -> Answer:
    return Answer(1_000.0, bound_mib, Measured(Task(Level.NAME, model=model), mib, mib, model))


def test_no_model_is_in_both_halves() -> None:
    chosen_on, reported = every_other_model([answer(model) for model in "abcabcab"])
    assert {each.hidden.model for each in chosen_on} == {"a", "c"}
    assert {each.hidden.model for each in reported} == {"b"}
    assert len(chosen_on) + len(reported) == 8


def test_the_margin_is_that_of_the_group_that_scatters_most() -> None:
    calm, wild = [0.001 * n for n in range(19)], [0.01 * n for n in range(19)]
    median, tenth, twentieth, hundredth, thousandth = scatter_of([calm, wild])
    assert (median, tenth, twentieth) == (0.0, 0.17, 0.18)
    # Nineteen runs cannot show a risk of a hundredth.
    assert (hundredth, thousandth) == (pytest.approx(0.27), pytest.approx(0.405))


def test_a_miss_costs_more_than_as_much_over_reservation() -> None:
    missed, covered = answer("a", 1_100.0, 1_000.0), answer("a", 1_000.0, 1_100.0)
    assert missed.loss == pytest.approx(0.95 * math.log(1.1))
    assert covered.loss == pytest.approx(0.05 * math.log(1.1))


def test_only_intervals_that_do_not_overlap_contradict_each_other() -> None:
    ladder = Ladder(96, 128, "torch 1.12", "contiguous")
    assert ladder.least_change(Ladder(64, 97, "torch 1.11", "contiguous")) == 0.0
    assert ladder.least_change(Ladder(48, 64, "torch 1.11", "contiguous")) == pytest.approx(math.log(96 / 64))
    assert ladder.least_change(Ladder(256, 384, "torch 1.11", "contiguous")) == pytest.approx(math.log(2))
