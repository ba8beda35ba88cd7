"""A few recorded blocks tell what a deeper network does."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.forecast.recordings import B, L
from tests.forecast.steps import Model, recorded
from vramcast.forecast.recording import Span
from vramcast.forecast.tape import Mark, Moment, Role, Tape
from vramcast.profile.solving import points_for, solve
from vramcast.profile.stretch import FEWEST_BLOCKS, NotAlike, blocks_of, stretch, stretch_recording


class Deck:
    """Writes a tape by hand: `make` returns a storage, `free` takes one."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.roles: list[Role] = []
        self.units: list[int] = []
        self.events: list[int] = []
        self.marks: list[Mark] = []

    def make(self, size: int, role: Role = Role.TEMPORARY, unit: int = -1) -> int:
        self.sizes.append(size)
        self.roles.append(role)
        self.units.append(unit)
        self.events.append(len(self.sizes) - 1)
        return len(self.sizes) - 1

    def free(self, *storages: int) -> None:
        self.events += [~storage for storage in storages]

    def mark(self, moment: Moment, unit: int = 0) -> None:
        self.marks.append(Mark(len(self.events), moment, unit))

    def tape(self) -> Tape:
        return Tape(
            np.array(self.sizes, np.int64), np.array(self.roles, np.uint8), np.array(self.units, np.int16),
            np.array(self.events, np.int32), tuple(self.marks),
        )  # fmt: skip


def network(blocks: int, *, steps: int = 3, checkpointing: bool = False, odd_block: int = 0) -> Tape:
    """An embedding, `blocks` blocks and a head. Each block keeps its input; the block after it frees a temporary."""
    deck = Deck()
    embedding = deck.make(1000, Role.WEIGHT, 0)
    weights = [[deck.make(100, Role.WEIGHT, unit), deck.make(7, Role.WEIGHT, unit)] for unit in range(1, blocks + 1)]
    head = deck.make(900, Role.WEIGHT, 0)
    gradients: list[int] = []
    for _ in range(steps):
        deck.mark(Moment.STEP)
        deck.free(*gradients)
        batch = deck.make(11, Role.INPUT)
        deck.mark(Moment.FORWARD)
        hidden, saved = deck.make(50, Role.SAVED), []
        casts, left_over = [], deck.make(5)
        for unit in range(1, blocks + 1):
            deck.mark(Moment.ENTER, unit)
            casts.append(deck.make(51))
            inner = deck.make(61 if unit == odd_block else 60, Role.SAVED)
            deck.free(left_over)
            left_over = deck.make(5)
            if checkpointing:
                deck.free(inner)
            saved.append((hidden, inner))
            hidden = deck.make(50, Role.SAVED)
            deck.mark(Moment.LEAVE, unit)
        deck.free(left_over)
        logits = deck.make(500, Role.SAVED)
        deck.free(*casts)  # after the last block, in the order of the blocks
        deck.mark(Moment.BACKWARD)
        flowing = deck.make(50)
        head_gradient = deck.make(900, Role.GRADIENT, 0)
        deck.free(logits, hidden)
        by_block: list[list[int]] = []
        for unit in range(blocks, 0, -1):
            kept, inner = saved.pop()
            if checkpointing:
                deck.mark(Moment.ENTER, unit)
                inner = deck.make(60, Role.TEMPORARY)
                deck.mark(Moment.LEAVE, unit)
            deck.mark(Moment.ENTER_BACKWARD, unit)
            following = deck.make(50)
            by_block.append([deck.make(100, Role.GRADIENT, unit), deck.make(7, Role.GRADIENT, unit)])
            deck.free(inner, flowing, kept)
            flowing = following
            deck.mark(Moment.LEAVE_BACKWARD, unit)
        embedding_gradient = deck.make(1000, Role.GRADIENT, 0)
        deck.free(flowing, batch)
        deck.mark(Moment.UPDATE)
        # As parameters are listed: front to back.
        gradients = [embedding_gradient, *(at for block in reversed(by_block) for at in block), head_gradient]
    deck.mark(Moment.END)
    assert len({embedding, head, *(at for block in weights for at in block)}) == 2 + 2 * blocks
    return deck.tape()


def same(one: Tape, other: Tape) -> bool:
    arrays = ("sizes", "roles", "units", "events")
    return one.marks == other.marks and all(np.array_equal(getattr(one, a), getattr(other, a)) for a in arrays)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("blocks", [5, 6, 12, 40])
def test_a_stretched_tape_is_the_tape_of_the_deeper_network(blocks: int, checkpointing: bool) -> None:
    few = network(FEWEST_BLOCKS, checkpointing=checkpointing)
    assert same(stretch(few, blocks), network(blocks, checkpointing=checkpointing))


def test_more_recorded_blocks_give_the_same_result() -> None:
    assert all(same(stretch(network(known), 9), network(9)) for known in range(FEWEST_BLOCKS, 9))


def test_stretching_to_the_recorded_depth_changes_nothing() -> None:
    tape = network(5)
    assert stretch(tape, blocks_of(tape)) is tape


def test_stretching_twice_is_stretching_once() -> None:
    once, twice = stretch(network(4), 11), stretch(stretch(network(4), 7), 11)
    assert same(once, twice)


@pytest.mark.parametrize("odd_block", [2, 3])
def test_blocks_that_differ_are_refused(odd_block: int) -> None:
    with pytest.raises(NotAlike, match="blocks 2 and 3 differ"):
        stretch(network(5, odd_block=odd_block), 8)


@pytest.mark.parametrize(("known", "wanted"), [(3, 8), (6, 5), (1, 2)])
def test_too_few_blocks_or_fewer_than_recorded_are_refused(known: int, wanted: int) -> None:
    with pytest.raises(NotAlike, match=f"a tape of {known} blocks cannot be stretched to {wanted}"):
        stretch(network(known), wanted)


def test_memory_grows_by_the_same_amount_with_each_block() -> None:
    made = [int(stretch(network(4), blocks).sizes.sum()) for blocks in range(4, 10)]
    assert len({after - before for before, after in pairwise(made)}) == 1


def test_a_workspace_that_the_first_block_takes_once_makes_no_difference() -> None:
    few, many = (recorded(Model(units=units, workspace_bytes=9, buffer_bytes=3)) for units in (FEWEST_BLOCKS, 7))
    assert stretch(few, 7).events.tolist() == many.events.tolist()
    assert stretch(few, 7).sizes.tolist() == many.sizes.tolist()


@pytest.mark.parametrize("checkpointing", [True, False])
def test_what_the_first_block_leaves_behind_its_backward_is_freed_once(checkpointing: bool) -> None:
    few, many = (
        recorded(Model(units=units, checkpointing=checkpointing, late_frees=True)) for units in (FEWEST_BLOCKS, 7)
    )
    stretched = stretch(few, 7)
    assert stretched.events.tolist() == many.events.tolist()
    assert stretched.sizes.tolist() == many.sizes.tolist()
    assert stretched.marks == many.marks


def test_a_stretched_recording_is_the_recording_of_the_deeper_network() -> None:
    def model(blocks: int, tokens: int) -> Model:
        return Model(units=blocks, steps=3, hidden_bytes=2048 * tokens, inner_bytes=8192 * tokens)

    points = points_for({B: Span(2, 8), L: Span(128, 4096)})
    few = solve([(point, recorded(model(FEWEST_BLOCKS, point[B] * point[L]))) for point in points])
    deeper = stretch_recording(few, 9)
    assert same(deeper.at({B: 6, L: 700}).tape, recorded(model(9, 6 * 700)))


def test_a_recording_of_blocks_that_differ_is_refused() -> None:
    tapes = [({B: batch}, network(5, odd_block=2)) for batch in (2, 3, 5)]
    with pytest.raises(NotAlike):
        stretch_recording(solve(tapes), 8)


def test_a_single_point_whose_blocks_differ_is_left_out() -> None:
    tapes = [({B: batch}, network(5)) for batch in (3, 5, 7)]
    both = solve([*tapes, ({B: 2}, network(6, odd_block=2))])
    assert len(both.pieces) == 2
    assert len(stretch_recording(both, 8).pieces) == 1
    with pytest.raises(NotAlike, match="no two recorded points"):
        stretch_recording(solve([({B: 2}, network(5, odd_block=2))]), 8)
