"""Training loops that do the same things in another order than the recorded one."""

from __future__ import annotations

import numpy as np

from vramcast.forecast.tape import Mark, Moment, Role, Tape


def gradients_until_backward(tape: Tape) -> Tape:
    """`zero_grad` just before backward instead of at the beginning of a step."""
    forward = [mark.event for mark in tape.marks if mark.moment is Moment.STEP]
    backward = [mark.event for mark in tape.marks if mark.moment is Moment.BACKWARD]
    is_free = tape.events < 0
    gradients = is_free & (tape.roles[np.where(is_free, ~tape.events, 0)] == Role.GRADIENT)
    order = np.arange(len(tape.events), dtype=np.float64)
    for begin, end in zip(forward, backward, strict=True):
        late = np.flatnonzero(gradients[begin:end]) + begin
        order[late] = end - 0.5  # in front of the first event of backward
    moved = np.argsort(order, kind="stable")
    return Tape(tape.sizes, tape.roles, tape.units, tape.events[moved], _marks(tape, order[moved]), tape.streams)


def _marks(tape: Tape, order: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[Mark, ...]:
    """A mark stays behind what was recorded before it; BACKWARD is behind the gradients that are freed late."""
    return tuple(Mark(int(np.searchsorted(order, mark.event - 0.25)), mark.moment, mark.unit) for mark in tape.marks)
