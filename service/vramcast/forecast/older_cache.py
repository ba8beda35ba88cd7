"""Checkpointing of GPTBigCode in older versions of transformers, from a tape of today's.

Today a checkpointed forward pass keeps no cache of keys and values. The older one did: each block's projection, from
which they were cut, stayed until the outputs were dropped before backward.
"""

from __future__ import annotations

import numpy as np

from vramcast.forecast.tape import Mark, Moment, Tape

# In the `info` of a recording: elements that each block keeps for a token.
CACHE = "kept-for-cache"
KEEPS_NO_CACHE = (4, 53)  # the first version of transformers whose checkpointing switches the cache off
_FORMATS = (4, 2)  # bytes of an element


def with_older_cache(tape: Tape, tokens: int, elements: int) -> Tape:
    """The tape of a run that keeps so many elements of each of its tokens in every block."""
    sizes = {tokens * elements * size for size in _FORMATS}
    freed_at = {~event: at for at, event in enumerate(tape.events.tolist()) if event < 0}
    order = np.arange(len(tape.events), dtype=np.float64)
    for unit, begin, end, backward in _forward_passes(tape):
        made = [event for event in tape.events[begin:end].tolist() if event >= 0 and tape.sizes[event] in sizes]
        if made and begin <= freed_at.get(made[-1], -1) < backward:
            order[freed_at[made[-1]]] = backward - 0.5 + unit * 1e-6  # just before backward, block after block
    moved = np.argsort(order, kind="stable")
    return Tape(tape.sizes, tape.roles, tape.units, tape.events[moved], _marks(tape, order[moved]), tape.streams)


def _forward_passes(tape: Tape) -> list[tuple[int, int, int, int]]:
    """Each block's number, the events at which its pass begins and ends, and the one at which backward begins."""
    found: list[tuple[int, int, int, int]] = []
    passes: list[tuple[int, int, int]] = []
    entered, forward = dict[int, int](), False
    for mark in tape.marks:
        if mark.moment is Moment.FORWARD:
            passes, forward = [], True
        elif mark.moment is Moment.BACKWARD and forward:
            found += [(*each, mark.event) for each in passes]
            forward = False
        elif mark.moment is Moment.ENTER and forward:
            entered[mark.unit] = mark.event
        elif mark.moment is Moment.LEAVE and forward and mark.unit in entered:
            passes.append((mark.unit, entered.pop(mark.unit), mark.event))
    return found


def _marks(tape: Tape, order: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[Mark, ...]:
    """A mark stays between what was before it and what was behind it; BACKWARD is behind what is freed late."""
    return tuple(Mark(int(np.searchsorted(order, mark.event - 0.25)), mark.moment, mark.unit) for mark in tape.marks)
