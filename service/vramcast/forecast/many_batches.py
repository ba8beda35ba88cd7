"""Batches of different lengths, made from a tape whose batches are all alike.

Where samples differ in length, a batch finds the blocks that shorter and longer ones left in the allocator's cache. Few
of them fit: a longer batch needs new segments, a shorter one splits what it takes. So a run reserves more than its
longest batch alone would, the more so the larger its single tensors are (logits of a large vocabulary). The last step
of a tape is repeated, and each batch gets the sizes of its own length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.rank_view import MAIN
from vramcast.forecast.tape import Mark, Moment, Role, Tape, check_events, phases_of, unchecked_tape

SizesAt = Callable[[int], NDArray[np.int64]]  # (storages,) of the tape with equal batches, at so many tokens


@dataclass(frozen=True, slots=True, eq=False)
class ManyBatches:
    """A tape without sizes."""

    template: Tape
    original: NDArray[np.int32]  # (storages,) the storage of the shorter tape that each one repeats
    batch: NDArray[np.int32]  # (storages,) 1 is the first batch; 0: made when the model was loaded

    def tape(self, lengths: Sequence[int], sizes_at: SizesAt) -> Tape:
        """One length for each batch. The model is loaded as at the first one's."""
        known = {length: number for number, length in enumerate(dict.fromkeys(lengths))}
        table = np.stack([sizes_at(length) for length in known])  # (lengths, storages)
        rows = np.array([0, *(known[length] for length in lengths)])
        return self.template.resized(table[rows[np.minimum(self.batch, len(lengths))], self.original])


@dataclass(frozen=True, slots=True, eq=False)
class _LastStep:
    end: int  # event
    made: NDArray[np.int64]  # its storages, consecutive
    storages: NDArray[np.int32]  # (its events,) what each makes or frees
    sign: NDArray[np.int32]  # (its events,) -1 for a free, else 0
    own: NDArray[np.bool_]  # (its events,) False: frees what the step before made
    successors: NDArray[np.int64]  # (its events,) and this is what the next step frees instead

    def again(self, times: int) -> Iterator[NDArray[np.int64]]:
        """Events of each repetition: its own storages are new, and what it frees is the step's before it."""
        count = len(self.made)
        for n in range(times):
            yield np.where(self.own, self.storages + (n + 1) * count, self.successors + n * count) ^ self.sign


def many_batches(tape: Tape, batches: int) -> ManyBatches:
    """At least so many. Raises InvalidInput if the last step does not repeat the one before."""
    step, batch = _last_step(tape), _batch_of(tape)
    a_step = int(batch[step.made].max() - batch[step.made].min() + 1)
    times = max(0, -(-(batches - int(batch.max())) // a_step))
    check_events(step.end + times * len(step.storages))
    original = np.concatenate([np.arange(len(tape.sizes)), np.tile(step.made, times)])
    template = unchecked_tape(
        tape.sizes[original], tape.roles[original], tape.units[original],
        np.concatenate([tape.events[: step.end], *step.again(times)]).astype(np.int32),
        _marks(tape.marks, len(step.storages), times), tape.streams[original] if len(tape.streams) else tape.streams,
    )  # fmt: skip
    later = (batch[step.made] + (n + 1) * a_step for n in range(times))
    return ManyBatches(template, original.astype(np.int32), np.concatenate([batch, *later]).astype(np.int32))


def _last_step(tape: Tape) -> _LastStep:
    starts = [mark.event for mark in tape.marks if mark.moment is Moment.STEP]
    if len(starts) < 2 or tape.marks[-1].moment is not Moment.END:
        raise InvalidInput("the tape has no two steps with an end")
    begins, end = starts[-1], tape.marks[-1].event
    count = np.concatenate([[0], np.cumsum(tape.events >= 0)])
    before, made = (np.arange(count[one], count[other]) for one, other in ((starts[-2], begins), (begins, end)))
    if count[end] != len(tape.sizes) or not len(made):
        raise InvalidInput("the last step makes nothing, or something is made behind it")
    successor = np.full(len(tape.sizes), -1, np.int64)
    successor[_repeated(tape, before, made)] = made
    events = tape.events[begins:end]
    sign = events >> 31
    storages = events ^ sign
    own = storages >= made[0]
    successors = successor[np.where(own, made[0], storages)]
    if (successors[~own] < 0).any():
        raise InvalidInput("the last step frees what is older than the step before")
    return _LastStep(end, made, storages, sign, own, successors)


def between(tapes: Mapping[int, Tape]) -> SizesAt:
    """From the tapes at three lengths: no tensor grows faster than the square. Raises InvalidInput if they differ."""
    first, *others = tapes.values()
    if len(tapes) != 3 or not all(np.array_equal(first.events, other.events) for other in others):
        raise InvalidInput("the order of events depends on the length")
    longest = max(tapes)  # in parts of which the powers are of one size
    parts = np.array(list(tapes), np.float64) / longest
    factors = np.linalg.solve(np.vander(parts), np.stack([tape.sizes for tape in tapes.values()]).astype(np.float64))

    def sizes_at(length: int) -> NDArray[np.int64]:
        sizes = np.vander([length / longest], 3)[0] @ factors
        return np.asarray(np.maximum(np.rint(sizes), 0), np.int64)

    return sizes_at


def _repeated(tape: Tape, before: NDArray[np.int64], latest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of the step before that the last step makes again: without what is made once, in the first update."""
    for once in _made_once(tape):
        kept = before[~once[before]]
        if len(kept) == len(latest) and np.array_equal(tape.roles[kept], tape.roles[latest]):
            return kept
    raise InvalidInput("the steps do not repeat")


def _made_once(tape: Tape) -> Iterator[NDArray[np.bool_]]:
    """(storages,) what may be: nothing, the optimizer's states, cuBLAS's workspaces, both."""
    states = tape.roles == Role.STATE
    workspaces = tape.roles == Role.WORKSPACE
    if len(tape.streams):
        workspaces &= tape.streams == MAIN
    yield from (np.zeros_like(states), workspaces, states, workspaces | states)


def _marks(marks: tuple[Mark, ...], events: int, times: int) -> tuple[Mark, ...]:
    """With the phases of each repeated step, which has so many events."""
    *_, start = (at for at, mark in enumerate(marks) if mark.moment is Moment.STEP)
    last = [mark for _, mark in phases_of(marks[start:-1])]
    again = (Mark(mark.event + (n + 1) * events, mark.moment) for n in range(times) for mark in last)
    return (*marks[:-1], *again, Mark(marks[-1].event + times * events, Moment.END))


def _batch_of(tape: Tape) -> NDArray[np.int64]:
    """(storages,) A step begins with its batch; with gradient accumulation, a further forward pass is one more."""
    begins: list[int] = []
    first = True
    for mark in tape.marks:
        if mark.moment is Moment.STEP:
            begins.append(mark.event)
            first = True
        elif mark.moment is Moment.FORWARD:
            if not first:
                begins.append(mark.event)
            first = False
    return np.searchsorted(begins, np.flatnonzero(tape.events >= 0), "right")
