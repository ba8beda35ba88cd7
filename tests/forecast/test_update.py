"""Optimizers written into a tape, without torch; tests/profiling/recording compares them with the real ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forecast.steps import Model, peak_bytes, recorded, stored_bytes
from tests.forecast.tapes import random_tapes
from vramcast.errors import InvalidInput
from vramcast.forecast.accumulation import accumulated
from vramcast.forecast.peaks import peaks
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.forecast.tape_writer import TapeWriter, numbered
from vramcast.forecast.update import trained_weights, with_update
from vramcast.task.vocabulary import Optimizer

MIB = 1 << 20
MODEL = Model(units=2, steps=3)
WEIGHTS = 2 * MODEL.root_bytes + 2 * MODEL.unit_bytes


@given(random_tapes(streams=2), st.data())
def test_what_was_there_stays_there(tape: Tape, data: st.DataObject) -> None:
    event = data.draw(st.integers(0, len(tape.events)))
    write = TapeWriter(tape)
    write.copy_marks(tape.marks[:1])
    write.reached = event
    write.make(512, Role.STATE, 3)
    write.free(write.make(1024, Role.TEMPORARY))
    write.copy_marks(tape.marks[1:])
    longer = write.tape()
    new = np.zeros(len(longer.sizes), np.bool_)
    made_before = int((tape.events[:event] >= 0).sum())
    new[[made_before, made_before + 1]] = True
    storages = np.where(longer.events >= 0, longer.events, ~longer.events)
    numbers = np.cumsum(~new) - 1
    old = longer.events[~new[storages]]
    assert np.where(old >= 0, numbers[old], ~numbers[~old]).tolist() == tape.events.tolist()
    assert longer.sizes[~new].tolist() == tape.sizes.tolist()
    assert [mark.event for mark in longer.marks] == [0, len(tape.events) + 3]


@given(random_tapes(streams=1), st.randoms(use_true_random=False))
def test_compiled_or_not_storages_get_the_same_numbers(tape: Tape, random: object) -> None:
    names = list(range(len(tape.sizes)))
    random.shuffle(names)  # type: ignore[attr-defined]
    renamed = np.array([names[event] if event >= 0 else ~names[~event] for event in tape.events], np.int32)
    for compiled in (True, False):
        events, former = numbered(renamed.copy(), len(names), compiled=compiled)
        assert (events.tolist(), former.tolist()) == (tape.events.tolist(), names)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("events", [[0, ~0, ~0], [~0, 0], [0, 0], [0, ~1]])
def test_what_is_freed_twice_or_never_made_is_refused(events: list[int], compiled: bool) -> None:
    with pytest.raises(InvalidInput):
        numbered(np.array(events, np.int32), 2, compiled=compiled)


@pytest.mark.parametrize(
    ("optimizer", "states", "lists"),
    [
        (Optimizer.SGD, 0, 0),
        (Optimizer.SGD_MOMENTUM, 1, 0),
        (Optimizer.ADAM, 2, 1),
        (Optimizer.ADAMW, 2, 1),
        (Optimizer.RMSPROP, 1, 1),
        (Optimizer.ADAGRAD, 1, 2),
        (Optimizer.LION, 1, 1),
    ],
)
def test_states_and_lists_of_temporaries(optimizer: Optimizer, states: int, lists: int) -> None:
    tape = with_update(recorded(MODEL), optimizer)
    assert stored_bytes(tape, Role.STATE) == states * WEIGHTS
    updates = [mark.event for mark in tape.marks if mark.moment is Moment.UPDATE]
    ends = [mark.event for mark in tape.marks if mark.moment is Moment.END]
    last = tape.events[updates[-1] : ends[0]]
    assert tape.sizes[last[last >= 0]].sum() == lists * WEIGHTS


def test_a_fused_optimizer_has_no_temporaries() -> None:
    plain, fused = (with_update(recorded(MODEL), Optimizer.ADAMW, fused=fused) for fused in (False, True))
    assert peak_bytes(fused) < peak_bytes(plain)
    assert stored_bytes(fused, Role.STATE) == 2 * WEIGHTS + 4 * 4  # a counter for each weight


def test_eight_bits_take_a_byte_per_state_and_a_scale_per_block() -> None:
    tape = with_update(recorded(MODEL), Optimizer.ADAM8BIT, element_bytes=2)
    elements = WEIGHTS // 2
    assert stored_bytes(tape, Role.STATE) == 2 * elements + 2 * 4 * elements // 256 + 2 * 1024


def test_adafactor_keeps_rows_and_columns_and_updates_in_fp32() -> None:
    tape = with_update(recorded(MODEL), Optimizer.ADAFACTOR, element_bytes=2)
    assert stored_bytes(tape, Role.STATE) < WEIGHTS / 100
    at_update = [mark.event for mark in tape.marks if mark.moment is Moment.UPDATE][-1]
    largest = tape.sizes[tape.events[at_update:][tape.events[at_update:] >= 0]].max()
    assert largest == 2 * MODEL.unit_bytes


def test_only_weights_with_a_gradient_are_stepped() -> None:
    model = Model(units=2, frozen=True)
    tape = recorded(model)
    update = next(mark.event for mark in tape.marks if mark.moment is Moment.UPDATE)
    trained = trained_weights(tape, update, 4)
    assert [(one.size_bytes, one.unit) for one in trained] == [
        (model.root_bytes, 0), (model.adapter_bytes, 1), (model.adapter_bytes, 2), (model.root_bytes, 0)
    ]  # fmt: skip


def test_a_recorded_update_is_left_alone() -> None:
    tape = with_update(recorded(MODEL), Optimizer.SGD_MOMENTUM)
    stepped = with_update(tape, Optimizer.ADAMW)
    # The first slot was filled, so only the later, empty ones get AdamW's.
    first = next(mark.event for mark in stepped.marks if mark.moment is Moment.UPDATE)
    assert stepped.events[:first].tolist() == tape.events[:first].tolist()


# ---------------------------------------------------------------------- gradient accumulation


def test_the_second_batch_adds_to_the_gradients_of_the_first() -> None:
    tape = accumulated(recorded(MODEL), 8)
    moments = [mark.moment for mark in tape.marks if mark.moment <= Moment.END]
    step = [Moment.STEP, Moment.FORWARD, Moment.BACKWARD, Moment.FORWARD, Moment.BACKWARD, Moment.UPDATE]
    assert moments == [*step, *step, Moment.END]
    assert stored_bytes(tape, Role.GRADIENT) == 2 * WEIGHTS  # made twice: once in each step


def test_accumulation_needs_more_than_a_plain_step_and_one_batch_is_plain() -> None:
    tape = recorded(Model(units=2, steps=3, hidden_bytes=64 * MIB))
    plain, summed = (peaks(with_update(accumulated(tape, batches), Optimizer.ADAMW)) for batches in (1, 4))
    assert accumulated(tape, 1) is tape
    assert summed.active_bytes > plain.active_bytes
    assert str(summed.moment) in {"the forward pass of step 2", "the backward pass of step 2"}


def test_accumulation_needs_three_steps_that_repeat() -> None:
    with pytest.raises(InvalidInput, match="a tape of 2 steps does not tell"):
        accumulated(recorded(Model(steps=2)), 2)
