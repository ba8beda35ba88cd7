"""The loss of transformers before 4.46, from a tape of today's.

Both compute it from the logits in fp32. Today's shifts the labels by one token. The older one copied the logits without
their last token, and backward wrote the gradient into zeros of the full size: two more copies, though the 16-bit
logits went earlier. With a large vocabulary these are gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from vramcast.forecast.rank_view import MAIN
from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.forecast.tape_writer import TapeWriter

# In the `info` of a recording: what its loss is computed from.
LOSS, NEXT_TOKEN = "loss", "next token"
NOT_UPCAST = f"{NEXT_TOKEN}, of logits that older versions left as they were"
SHIFTS_LABELS = (4, 46)  # the first version of transformers that does


class _LossStorages(NamedTuple):
    """Their numbers in one pass."""

    half: int | None  # the logits as the head makes them, if these are not in fp32
    logits: int  # in fp32
    saved: int  # their log softmax; a fused loss keeps the logits themselves
    chosen: int  # the gradient of what the labels chose, as large as the logits; fused: of the logits, in 16 bits
    gradient: int  # of the logits; fused: the same

    @property
    def fused(self) -> bool:
        return self.saved == self.logits


def with_older_loss(tape: Tape, length: int, *, upcasts: bool = True) -> Tape:
    """The tape of a run with the older loss, at so many tokens; unchanged where no logits are found.

    `upcasts`: whether it computed in fp32.
    """
    found = list(_loss_storages(tape))
    if not upcasts:
        found = [one for one in found if one.half is not None]
        tape = _in_half(tape, found) if found else tape
    whole = {one.logits: int(tape.sizes[one.logits]) for one in found}
    return _rewritten(_without_last_token(tape, found, length), found, whole) if found else tape


def _loss_storages(tape: Tape) -> Iterator[_LossStorages]:
    made_at = np.flatnonzero(tape.events >= 0)
    left = forward = None
    for number, mark in enumerate(tape.marks):
        if mark.moment is Moment.FORWARD:
            forward = left = mark.event
        elif mark.moment is Moment.LEAVE and forward is not None:
            left = mark.event
        elif mark.moment is Moment.BACKWARD and left is not None:
            ends = next(later.event for later in tape.marks[number + 1 :] if later.moment <= Moment.END)
            first, middle, last = np.searchsorted(made_at, (left, mark.event, ends))
            if found := _storages_of(tape, range(first, middle), range(middle, last)):
                yield found
            forward = left = None


def _storages_of(tape: Tape, head: range, backward: range) -> _LossStorages | None:
    """`head`: what is made behind the last block."""
    if not len(head):
        return None
    sizes = tape.sizes
    largest = int(sizes[head.start : head.stop].max())
    logits = next(number for number in head if sizes[number] == largest)
    half = logits - 1 if logits - 1 in head and 2 * sizes[logits - 1] == largest else None
    saved = next((n for n in head if n > logits and sizes[n] == largest and tape.roles[n] == Role.SAVED), None)
    if saved is None:
        narrow = next((number for number in backward if 2 * sizes[number] == largest), None)
        if half is None or narrow is None or tape.roles[logits] != Role.SAVED:
            return None
        return _LossStorages(half, logits, logits, narrow, narrow)
    gradients = [number for number in backward if sizes[number] == largest]
    # One of the chosen labels' loss, one of all logits.
    return _LossStorages(half, logits, saved, *gradients[:2]) if len(gradients) > 1 else None


def _in_half(tape: Tape, found: list[_LossStorages]) -> Tape:
    sizes = tape.sizes.copy()
    for one in found:
        full = {one.logits, one.saved, one.chosen, one.gradient} - {one.gradient if one.fused else None}
        sizes[list(full)] //= 2
    return tape.resized(sizes)


def _without_last_token(tape: Tape, found: list[_LossStorages], length: int) -> Tape:
    """A block that is a little smaller cannot be reused for one that is not: it shows in the reserved memory."""
    sizes = tape.sizes.copy()
    for one in found:
        shorter = [one.saved] if one.fused else [one.saved, one.chosen, one.gradient]
        sizes[shorter] -= sizes[one.logits] // length
    return tape.resized(sizes)


def _rewritten(tape: Tape, found: list[_LossStorages], whole_bytes: dict[int, int]) -> Tape:  # noqa: PLR0912 - one walk
    """`whole_bytes`: of the logits, with their last token."""
    halves = {one.half: one for one in found}
    half_of = {one.logits: one.half for one in found if one.half is not None and not one.fused}
    loss_of = {one.saved: one for one in found if not one.fused}
    in_place = {one.logits: one for one in found if one.fused}
    in_place_gradient = {one.gradient: one for one in in_place.values()}
    write, numbers = TapeWriter(), dict[int, int]()
    copies, shifted = dict[int, int](), dict[int, int]()  # of logits; of gradients: the zeros that they go into
    sizes, roles, units = tape.sizes.tolist(), tape.roles.tolist(), tape.units.tolist()
    streams = tape.streams.tolist() or [MAIN] * len(sizes)
    marks = iter((*tape.marks, None))
    mark = next(marks)
    for position, event in enumerate((*tape.events.tolist(), None)):
        while mark is not None and mark.event == position:
            write.mark(mark.moment, mark.unit)
            mark = next(marks)
        if event is None:
            break
        if event >= 0:
            if event in in_place:
                copies[event] = write.make(whole_bytes[event], Role.TEMPORARY)
                write.free(numbers[in_place[event].half or 0])
            zeros = None
            if event in in_place_gradient:
                kept = in_place_gradient[event].logits
                zeros = write.make(whole_bytes[kept], Role.TEMPORARY)
                write.free(numbers[kept])
            if event in loss_of:
                copies[loss_of[event].logits] = write.make(sizes[event], Role.TEMPORARY)
            numbers[event] = write.make(sizes[event], Role(roles[event]), units[event], streams[event])
            if zeros is not None:
                write.free(zeros)
            if event in half_of:
                write.free(numbers[half_of[event]])
        elif ~event in shifted:
            write.free(shifted[~event])
        elif ~event in halves and halves[~event].fused:
            write.free(copies[halves[~event].logits])
        elif ~event not in halves and ~event not in in_place:
            write.free(numbers[~event])
            if ~event in copies:
                write.free(copies[~event])
            if (one := loss_of.get(~event)) is not None and one.gradient in numbers:
                shifted[one.gradient] = write.make(whole_bytes[one.logits], Role.TEMPORARY)
                write.free(numbers[one.gradient])
    return write.tape()
