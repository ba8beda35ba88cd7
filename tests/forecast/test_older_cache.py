"""Checkpointed blocks of older versions of transformers keep what their cache is cut from until the outputs go."""

from __future__ import annotations

from tests.forecast.steps import at_mark, live_bytes
from tests.forecast.tapes import KIB, tape_of
from vramcast.forecast.older_cache import with_older_cache
from vramcast.forecast.tape import Mark, Moment, Tape

TOKENS, ELEMENTS = 8, 192
PROJECTED = TOKENS * ELEMENTS * 2
HIDDEN = 4 * KIB


def step(projected: int = PROJECTED) -> Tape:
    """Two blocks, each with a projection that it frees, and a backward pass that computes the last one again."""
    sizes = [projected, HIDDEN, projected, HIDDEN, KIB, projected]
    forward = [0, 1, ~0, 2, 3, ~2, 4, ~4]
    backward = [5, ~5, ~3, ~1]
    end = len(forward + backward)
    marks = (
        Mark(0, Moment.STEP), Mark(0, Moment.FORWARD), Mark(0, Moment.ENTER, 1), Mark(3, Moment.LEAVE, 1),
        Mark(3, Moment.ENTER, 2), Mark(6, Moment.LEAVE, 2), Mark(8, Moment.BACKWARD), Mark(8, Moment.ENTER, 2),
        Mark(10, Moment.LEAVE, 2), Mark(end, Moment.UPDATE), Mark(end, Moment.END),
    )  # fmt: skip
    return tape_of(sizes, [*forward, *backward], marks)


def test_each_block_keeps_its_projection_until_backward() -> None:
    older = with_older_cache(step(), TOKENS, ELEMENTS)
    assert live_bytes(older)[:6].max() == 2 * PROJECTED + 2 * HIDDEN + KIB
    assert at_mark(older, Moment.BACKWARD) == 2 * HIDDEN


def test_what_backward_computes_again_is_freed_as_before() -> None:
    today, older = step(), with_older_cache(step(), TOKENS, ELEMENTS)
    assert older.events[-4:].tolist() == today.events[-4:].tolist()
    assert [mark.moment for mark in older.marks] == [mark.moment for mark in today.marks]


def test_fp32_projections_are_kept_too_and_blocks_without_one_stay_as_they_are() -> None:
    wide = with_older_cache(step(2 * PROJECTED), TOKENS, ELEMENTS)
    assert live_bytes(wide)[:6].max() == 4 * PROJECTED + 2 * HIDDEN + KIB
    other = step(KIB)
    assert with_older_cache(other, TOKENS, ELEMENTS).events.tolist() == other.events.tolist()
