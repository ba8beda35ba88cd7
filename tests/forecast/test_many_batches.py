"""A few batches of one length, repeated as many batches of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.forecast.steps import MIB, Model, Steps, recorded
from vramcast.errors import InvalidInput
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.many_batches import between, many_batches
from vramcast.forecast.peaks import peaks
from vramcast.forecast.rank_view import Plan, Scheme
from vramcast.forecast.sharding import shard
from vramcast.forecast.tape import Tape, phases_of
from vramcast.forecast.update import with_update
from vramcast.task.vocabulary import Optimizer

LENGTHS = (30, 60, 10, 70, 50, 20, 40)
MODEL = Model(workspace_bytes=3 * MIB)


def at(tokens: int, model: Model = MODEL) -> Model:
    return replace(model, hidden_bytes=tokens * MIB // 3, inner_bytes=tokens * MIB)


def run_of(lengths: Sequence[int], model: Model = MODEL) -> Tape:
    """As if each batch had been recorded."""
    steps = Steps(at(lengths[0], model))
    steps.load()
    for tokens in lengths:
        steps.model = at(tokens, model)
        steps.step()
    return steps.ended()


def stretched(lengths: Sequence[int], model: Model = MODEL) -> Tape:
    def equal(tokens: int) -> Tape:
        return recorded(replace(at(tokens, model), steps=3))

    return many_batches(equal(lengths[0]), len(lengths)).tape(lengths, lambda tokens: equal(tokens).sizes)


def same(one: Tape, other: Tape) -> bool:
    arrays = ("sizes", "roles", "units", "events")
    phases = [[mark for _, mark in phases_of(tape.marks)] for tape in (one, other)]
    return phases[0] == phases[1] and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


@pytest.mark.parametrize("model", [MODEL, replace(MODEL, frozen=True), replace(MODEL, checkpointing=True)])
def test_repeated_batches_are_those_that_would_have_been_recorded(model: Model) -> None:
    assert same(stretched(LENGTHS, model), run_of(LENGTHS, model))


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.SGD_MOMENTUM, Optimizer.ADAFACTOR])
def test_what_the_first_update_makes_is_made_once(optimizer: Optimizer) -> None:
    updated = with_update(recorded(replace(at(50), steps=2)), optimizer)
    longer = many_batches(updated, 6).tape([50] * 6, lambda _: updated.sizes)
    assert same(longer, with_update(recorded(replace(at(50), steps=6)), optimizer))


@pytest.mark.parametrize("scheme", [Scheme.FSDP, Scheme.ZERO_2, Scheme.ZERO_3])
def test_a_rank_of_a_sharded_run_repeats_its_steps_too(scheme: Scheme) -> None:
    def rank(steps: int) -> Tape:
        tape = shard(recorded(replace(at(50), steps=steps)), Plan(scheme, 4), ahead=True)
        return with_update(tape, Optimizer.ADAMW, sharded=True)

    longer = many_batches(rank(3), 7).tape([50] * 7, lambda _: rank(3).sizes)
    assert peaks(longer).reserved_bytes == peaks(rank(7)).reserved_bytes
    assert np.array_equal(longer.events, rank(7).events)


def test_each_batch_of_an_accumulated_step_has_its_own_length() -> None:
    def equal(tokens: int) -> Tape:
        return with_update(accumulated(recorded(replace(at(tokens), steps=3)), 2), Optimizer.ADAMW)

    found = many_batches(equal(60), 6)
    tape = found.tape([10, 20, 30, 40, 50, 60], lambda tokens: equal(tokens).sizes)
    inner = [size // MIB for size in tape.sizes.tolist() if size % (10 * MIB) == 0]
    assert list(dict.fromkeys(inner)) == [10, 20, 30, 40, 50, 60]


def test_batches_of_many_lengths_use_no_more_tensors_and_reserve_more() -> None:
    longest, mixed = (peaks(stretched(lengths)) for lengths in ([70] * 7, LENGTHS))
    assert mixed.active_bytes == pytest.approx(longest.active_bytes, rel=0.02)  # blocks that are not quite full
    assert mixed.reserved_bytes > 1.05 * longest.reserved_bytes


def test_the_peak_is_told_with_the_batch_that_had_it() -> None:
    assert peaks(stretched(LENGTHS)).moment.step == 1 + LENGTHS.index(70)


def test_sizes_between_three_lengths_are_exact() -> None:
    """They may grow with the square of the length, as matrices of eager attention do."""

    def squared(tokens: int) -> Tape:
        return recorded(Model(hidden_bytes=tokens * 4096 + 7, inner_bytes=12 * tokens**2))

    sizes_at = between({tokens: squared(tokens) for tokens in (4000, 3000, 2000)})
    for tokens in (333, 1000, 2667, 4000):
        assert np.array_equal(sizes_at(tokens), squared(tokens).sizes)


def test_what_changes_its_order_with_the_length_has_no_sizes_between() -> None:
    tapes = {tokens: recorded(Model(units=units)) for tokens, units in ((400, 4), (300, 4), (200, 3))}
    with pytest.raises(InvalidInput, match="depends on the length"):
        between(tapes)


@pytest.mark.parametrize("steps", [0, 1])
def test_one_step_tells_nothing_about_the_next(steps: int) -> None:
    with pytest.raises(InvalidInput, match="no two steps"):
        many_batches(recorded(replace(MODEL, steps=steps)), 4)


def test_a_hostile_tape_is_not_multiplied_without_end() -> None:
    with pytest.raises(InvalidInput, match="more than 1,000,000"):
        many_batches(recorded(replace(MODEL, steps=2)), 50_000)
