"""The loss of transformers before 4.46: a copy of the logits more, from a tape of today's."""

from __future__ import annotations

import pytest

from tests.forecast.steps import peak_bytes
from tests.forecast.tapes import KIB, tape_of
from vramcast.forecast.older_loss import with_older_loss
from vramcast.forecast.tape import Mark, Moment, Role, Tape

TOKENS = 8
LOGITS = 64 * KIB  # in fp32
SHORTER = LOGITS - LOGITS // TOKENS


def step(*, half: bool) -> Tape:
    """A block's output, the logits (in 16 bits, then in fp32), their log softmax; backward goes through two gradients
    as large as the logits."""
    hidden, half_logits, logits, saved, loss, chosen, gradient = range(7)
    sizes = [4 * KIB, LOGITS // 2 if half else KIB, LOGITS, LOGITS, 4, LOGITS, LOGITS]
    roles = [Role.SAVED, Role.TEMPORARY, Role.TEMPORARY, Role.SAVED, Role.SAVED, Role.TEMPORARY, Role.TEMPORARY]
    forward = [hidden, half_logits, logits, saved, loss, ~logits, ~half_logits]
    backward = [chosen, gradient, ~chosen, ~saved, ~gradient, ~loss, ~hidden]
    marks = (
        Mark(0, Moment.STEP), Mark(0, Moment.FORWARD), Mark(0, Moment.ENTER, 1), Mark(1, Moment.LEAVE, 1),
        Mark(len(forward), Moment.BACKWARD), Mark(len(forward + backward), Moment.UPDATE),
        Mark(len(forward + backward), Moment.END),
    )  # fmt: skip
    return tape_of(sizes, [*forward, *backward], marks, roles)


@pytest.mark.parametrize("half", [True, False])
def test_the_logits_are_copied_without_their_last_token(half: bool) -> None:
    older = with_older_loss(step(half=half), TOKENS)
    kept = 4 * KIB + (0 if half else KIB) + 4  # 16-bit logits go as soon as they are in fp32
    assert peak_bytes(older) == kept + LOGITS + 2 * SHORTER


def test_logits_that_were_not_upcast_are_copied_in_16_bits() -> None:
    older = with_older_loss(step(half=True), TOKENS, upcasts=False)
    assert peak_bytes(older) == 4 * KIB + 4 + (LOGITS + 2 * SHORTER) // 2


def test_logits_in_fp32_stay_so_whatever_the_version() -> None:
    today = step(half=False)
    assert with_older_loss(today, TOKENS, upcasts=False) is today


def test_backward_writes_the_gradient_into_zeros_of_the_full_size() -> None:
    older = with_older_loss(step(half=True), TOKENS)
    behind = next(mark.event for mark in older.marks if mark.moment is Moment.BACKWARD)
    made = [int(older.sizes[event]) for event in older.events[behind:] if event >= 0]
    assert made == [SHORTER, SHORTER, LOGITS]


def test_everything_is_freed_as_before_and_the_marks_stay_in_order() -> None:
    today = step(half=True)
    older = with_older_loss(today, TOKENS)
    assert [mark.moment for mark in older.marks] == [mark.moment for mark in today.marks]
    assert sorted(~older.events[older.events < 0]) == list(range(len(older.sizes)))


def test_a_tape_without_logits_stays_as_it_is() -> None:
    """A loss in chunks never has them."""
    marks = (Mark(0, Moment.STEP), Mark(0, Moment.FORWARD), Mark(1, Moment.BACKWARD), Mark(2, Moment.END))
    tape = tape_of([KIB, KIB], [0, 1, ~1, ~0], marks, [Role.SAVED, Role.TEMPORARY])
    assert with_older_loss(tape, TOKENS) is tape
