"""The last step of a tape once more, where steps repeat: what a recorder need not run, a forecast need not store."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.tape import Mark, Moment, Role, Tape


def repeated(tape: Tape) -> Tape | None:
    """With one more step, if the last one made the same storages as the one before; else None."""
    pair = _last_two(tape)
    if pair is None or not np.array_equal(tape.sizes[pair[0]], tape.sizes[pair[1]]):
        return None
    try:
        return with_step_again(tape)
    except InvalidInput:
        return None


def with_step_again(tape: Tape) -> Tape:
    """The END mark closes the last step; events behind it come before the new one. Raises InvalidInput."""
    pair = _last_two(tape)
    if pair is None or not np.array_equal(tape.roles[pair[0]], tape.roles[pair[1]]):
        raise InvalidInput("the steps do not repeat")
    earlier, latest = pair
    *_, start = (at for at, mark in enumerate(tape.marks) if mark.moment is Moment.STEP)
    marks = [mark for mark in tape.marks if mark.moment is not Moment.END]
    begins, end, tail = tape.marks[start].event, tape.marks[-1].event, len(tape.events)
    # (storages,) what takes each storage's place in the new step; only what the last two steps made has a successor
    successor = np.full(len(tape.sizes), -1, np.int64)
    successor[earlier] = latest
    successor[latest] = len(tape.sizes) + np.arange(len(latest))
    copied = tape.events[begins:end]
    sign = copied >> 31  # -1 for a free, else 0
    moved = successor[copied ^ sign]
    if (moved < 0).any():
        raise InvalidInput("the last step frees what is older than the step before")
    shift = tail - begins
    marks += [Mark(mark.event + shift, mark.moment, mark.unit) for mark in marks[start:]]
    return Tape(
        sizes=np.concatenate([tape.sizes, tape.sizes[latest]]),
        roles=np.concatenate([tape.roles, tape.roles[latest]]),
        units=np.concatenate([tape.units, tape.units[latest]]),
        events=np.concatenate([tape.events, moved ^ sign]).astype(np.int32),
        marks=(*marks, Mark(end + shift, Moment.END)),
        streams=np.concatenate([tape.streams, tape.streams[latest]]) if len(tape.streams) else tape.streams,
    )


def _last_two(tape: Tape) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """The storages of the last two steps, in order. What a library takes once, in the first, is left out."""
    starts = [mark.event for mark in tape.marks if mark.moment is Moment.STEP]
    if len(starts) < 2 or [mark.moment for mark in tape.marks].count(Moment.END) != 1:
        return None
    if tape.marks[-1].moment is not Moment.END:
        return None
    made = np.concatenate([[0], np.cumsum(tape.events >= 0)])
    earlier = np.arange(made[starts[-2]], made[starts[-1]])
    latest = np.arange(made[starts[-1]], made[tape.marks[-1].event])
    earlier = earlier[tape.roles[earlier] != Role.WORKSPACE]
    return (earlier, latest) if len(earlier) == len(latest) else None
