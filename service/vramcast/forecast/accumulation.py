"""Gradient accumulation, from a tape of plain steps.

The first batch of a step makes the gradients, the others add to them: a gradient of theirs is a temporary. Two batches
tell it all, since the third does what the second did. So the plain steps 1 to 4 become two steps of two batches, with
the update behind the second batch. The fourth is a copy of the third.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.repeating import with_step_again
from vramcast.forecast.tape import Mark, Moment, Role, Tape

_STEPS = 3


def accumulated(tape: Tape, batches: int) -> Tape:
    """The tape of a run that updates after so many batches. Raises InvalidInput if the steps do not repeat."""
    if batches < 2:
        return tape
    steps = sum(mark.moment is Moment.STEP for mark in tape.marks)
    if steps != _STEPS:
        raise InvalidInput(f"a tape of {steps} steps does not tell gradient accumulation: record {_STEPS}")
    try:
        return _two_batches(with_step_again(tape))
    except InvalidInput as error:
        raise InvalidInput(f"{error}, so they do not tell gradient accumulation: record it instead") from error


def _two_batches(tape: Tape) -> Tape:
    """Of four plain steps. The second and the fourth add to the gradients of the one before."""
    made_at = np.flatnonzero(tape.events >= 0)
    starts = [mark.event for mark in tape.marks if mark.moment is Moment.STEP]
    step_of = np.searchsorted(starts, made_at, "right")  # (storages,) 0: the load
    gradient = tape.roles == Role.GRADIENT
    adds = gradient & (step_of % 2 == 0) & (step_of > 0)
    kept = _first_batch_gradients(gradient, step_of)
    freed = np.where(tape.events < 0, ~tape.events, 0)
    is_free = tape.events < 0
    events = np.where(is_free & adds[freed], ~kept[freed], tape.events)
    # The second batch does not drop the first one's gradients; what it makes itself goes at once.
    dropped = is_free & gradient[freed] & ~adds[freed]
    at_once = ~is_free & adds[np.where(is_free, 0, tape.events)]
    times = np.where(dropped, 0, np.where(at_once, 2, 1))
    woven = np.repeat(events, times)
    woven[np.cumsum(times)[at_once] - 1] = ~events[at_once]
    before = np.concatenate([[0], np.cumsum(times)])
    return Tape(
        sizes=tape.sizes,
        roles=np.where(adds, Role.TEMPORARY, tape.roles).astype(np.uint8),
        units=np.where(adds, -1, tape.units).astype(np.int16),
        events=woven.astype(np.int32),
        marks=tuple(Mark(int(before[mark.event]), mark.moment, mark.unit) for mark in _joined(tape.marks)),
        streams=tape.streams,
    )


def _first_batch_gradients(gradient: NDArray[np.bool_], step_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """(storages,) for a gradient of an even step: the one of the step before that it adds to."""
    kept = np.arange(len(gradient))
    for step in range(2, int(step_of.max(initial=0)) + 1, 2):
        earlier, later = (np.flatnonzero(gradient & (step_of == number)) for number in (step - 1, step))
        if len(earlier) != len(later):
            raise InvalidInput("the steps make different gradients: record gradient accumulation itself")
        kept[later] = earlier
    return kept


def _joined(marks: tuple[Mark, ...]) -> list[Mark]:
    """Without the updates of the first batches and the beginnings of the second ones."""
    step, joined = 0, []
    for mark in marks:
        step += mark.moment is Moment.STEP
        first_ends = mark.moment is Moment.UPDATE and step % 2 == 1
        second_begins = mark.moment is Moment.STEP and step % 2 == 0
        if not (first_ends or second_begins):
            joined.append(mark)
    return joined
