"""One recorded run of training steps at one batch size and length: every storage made and freed, in order.

A tape is made where torch is (`profile/recording`) and replayed here. It holds the load (weights and buffers) and then
three steps: in the first the optimizer's states and the gradients appear, the second is steady, and the third shows
that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput

# A recording has a fifth of this at most; an optimizer and sharding add to it.
MOST_TAPE_EVENTS = 1_000_000


def check_events(count: int) -> None:
    """While events are added, so that a hostile recording cannot multiply without end."""
    if count > MOST_TAPE_EVENTS:
        raise InvalidInput(f"the steps have more than {MOST_TAPE_EVENTS:,} allocations and frees")


class Role(IntEnum):
    WEIGHT = 0  # a parameter that is trained
    FROZEN = 1  # a parameter that is not
    BUFFER = 2
    INPUT = 3  # the batch
    GRADIENT = 4  # kept in .grad of a parameter
    STATE = 5  # the optimizer's
    SAVED = 6  # made in forward, still alive when forward ends
    TEMPORARY = 7
    WORKSPACE = 8  # of libraries: cuBLAS, communication buffers


class Moment(IntEnum):
    """What a mark says. UPDATE with nothing behind it is a slot that `update.py` fills; END closes the last step."""

    STEP = 0  # an iteration of the training loop begins
    FORWARD = 1
    BACKWARD = 2
    UPDATE = 3
    END = 4
    ENTER = 5  # a unit's forward begins, also when checkpointing computes it again during backward
    LEAVE = 6
    ENTER_BACKWARD = 7
    LEAVE_BACKWARD = 8  # all gradients of the unit are there


class Mark(NamedTuple):
    """A tuple, because a forecast makes hundreds of them and a dataclass takes four times as long."""

    event: int  # the mark lies before this event
    moment: Moment
    unit: int = 0  # of ENTER, LEAVE, ENTER_BACKWARD and LEAVE_BACKWARD


def phases_of(marks: Sequence[Mark]) -> list[tuple[int, Mark]]:
    """The marks of phases, with their places."""
    last = Moment.END  # looked up once
    return [(at, mark) for at, mark in enumerate(marks) if mark[1] <= last]


def _no_streams() -> NDArray[np.uint8]:
    return np.zeros(0, np.uint8)


@dataclass(frozen=True, slots=True, eq=False)
class Tape:
    sizes: NDArray[np.int64]  # (storages,) bytes as asked for, not rounded
    roles: NDArray[np.uint8]  # (storages,)
    units: NDArray[
        np.int16
    ]  # (storages,) of weights, gradients, blocks' buffers: 0 the root, 1.. the repeated blocks; -1 others
    events: NDArray[np.int32]  # (events,) n >= 0: storage n is made (0, 1, 2 ... in order); ~n: storage n is freed
    marks: tuple[Mark, ...]  # in order
    # (storages,) the CUDA stream that each storage is made on; empty: all on the default stream, 0
    streams: NDArray[np.uint8] = field(default_factory=_no_streams)

    def __post_init__(self) -> None:
        _check_storages(self)
        check_order(self.events, len(self.sizes))
        _check_marks(self.marks, len(self.events))

    def resized(self, sizes: NDArray[np.int64]) -> Tape:
        """The same events with other sizes. Does not check the events again, which would take longer than a replay."""
        if len(sizes) != len(self.sizes) or (len(sizes) and sizes.min() < 0):
            raise InvalidInput(f"a tape of {len(self.sizes)} storages needs as many sizes, none negative")
        return unchecked_tape(sizes, self.roles, self.units, self.events, self.marks, self.streams)


def live_storages(tape: Tape, count: int) -> NDArray[np.intp]:
    """The storages that live behind so many events, in order."""
    events = tape.events[:count]
    made = count - np.count_nonzero(events < 0)  # storages are made in the order of their numbers
    live = np.ones(made + 1, np.bool_)
    live[np.maximum(-events, 0)] = False  # a free of storage n is -1 - n, and the first place is nobody's
    return np.flatnonzero(live[1:])


def unchecked_tape(
    sizes: NDArray[np.int64], roles: NDArray[np.uint8], units: NDArray[np.int16], events: NDArray[np.int32],
    marks: tuple[Mark, ...], streams: NDArray[np.uint8],
) -> Tape:  # fmt: skip
    """For a tape that follows from a checked one: checking takes as long as a replay."""
    tape = object.__new__(Tape)
    values = {"sizes": sizes, "roles": roles, "units": units, "events": events, "marks": marks, "streams": streams}
    for name, value in values.items():
        object.__setattr__(tape, name, value)
    return tape


def _check_storages(tape: Tape) -> None:
    storages = len(tape.sizes)
    if len(tape.roles) != storages or len(tape.units) != storages or len(tape.streams) not in {0, storages}:
        raise InvalidInput(f"a tape of {storages} storages needs as many roles and units, and as many streams or none")
    if storages and tape.sizes.min() < 0:
        raise InvalidInput("a storage has a negative size")
    if storages and tape.roles.max() >= len(Role):
        raise InvalidInput(f"roles are numbers below {len(Role)}, not {tape.roles.max()}")


def check_order(events: NDArray[np.int32], storages: int) -> None:
    made = events >= 0
    if not np.array_equal(events[made], np.arange(storages)):
        raise InvalidInput(f"the events must make the storages 0 to {storages - 1} in order, each once")
    freed = ~events[~made]
    if not len(freed):
        return
    if freed.max() >= storages or np.bincount(freed).max() > 1:
        raise InvalidInput("the events free a storage twice, or one that does not exist")
    made_at = np.flatnonzero(made)
    if (made_at[freed] > np.flatnonzero(~made)).any():
        raise InvalidInput("the events free a storage before it is made")


def _check_marks(marks: tuple[Mark, ...], events: int) -> None:
    before = 0
    for mark in marks:
        if not before <= mark.event <= events:
            raise InvalidInput(f"the {mark.moment.name} mark before event {mark.event} is out of order")
        before = mark.event


def tape_of_tensors(sizes: NDArray[np.int64], tensors: NDArray[np.int64]) -> Tape:
    """A positive tensor is made, a negative one freed; 0 is a workspace, which is freed at once.

    Storages are numbered in the order in which they are made.
    """
    made = tensors >= 0
    numbers = np.cumsum(made) - 1
    by_tensor = np.zeros(int(tensors.max(initial=0)) + 1, np.int64)
    by_tensor[tensors[made]] = numbers[made]
    events = np.where(made, numbers, ~by_tensor[np.maximum(-tensors, 0)])
    times = np.where(tensors == 0, 2, 1)
    twice = np.repeat(events, times)
    twice[(np.cumsum(times) - 1)[tensors == 0]] = ~events[tensors == 0]
    count = int(made.sum())
    return unchecked_tape(
        sizes[made], np.zeros(count, np.uint8), np.zeros(count, np.int16), twice.astype(np.int32), (),
        np.zeros(0, np.uint8),
    )  # fmt: skip
