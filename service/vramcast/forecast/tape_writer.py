"""Writes a tape: the events of another one, and between them storages of its own.

This is how an optimizer's update and a rank's communication get into a recording. Most events stay as they are, so they
are copied as arrays, and all storages get their numbers at the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.compiled import compiled_loops, number_compiled
from vramcast.forecast.tape import Mark, Moment, Role, Tape, check_events, check_order, unchecked_tape

NOTHING = Tape(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, np.int16), np.zeros(0, np.int32), ())
_new = tuple.__new__


class TapeWriter:
    """Storages of the source keep the numbers they have there while the tape is written; new ones come behind them.

    What is written comes behind the first `reached` events of the source.
    """

    def __init__(self, source: Tape = NOTHING) -> None:
        self._source, self._known = source, len(source.sizes)
        self._sizes, self._units, self._events = array("q"), array("h"), array("i")
        self._roles, self._streams = bytearray(), bytearray()
        self._marks: list[Mark] = []
        self._runs: list[tuple[int, int, int]] = []  # own events before it, and from where to where it is copied
        self._shift = 0  # events written, less those of the source that were reached then
        self._done = 0  # events of the source that are in the runs, or were skipped
        self.reached = 0

    def make(self, size: int, role: Role, unit: int = -1, stream: int = 0) -> int:
        return self.make_all((size,), role, (unit,), stream)

    def make_all(self, sizes: Sequence[int], role: Role, units: Sequence[int], stream: int = 0) -> int:
        """One after the other; the number of the first."""
        count = len(sizes)
        first = self._known + len(self._sizes)
        self._sizes.extend(sizes)
        self._roles += bytes((role,)) * count
        self._units.extend(units)
        self._streams += bytes((stream,)) * count
        self._write(range(first, first + count))
        return first

    def free(self, number: int) -> None:
        self._write((~number,))

    def free_all(self, numbers: Iterable[int]) -> None:
        self._write([~number for number in numbers])

    def skip(self) -> None:
        """Leaves out the next event of the source."""
        self._write(())
        self.reached += 1
        self._done += 1
        self._shift -= 1

    def mark(self, moment: Moment, unit: int = 0) -> None:
        self._marks.append(_new(Mark, (self.reached + self._shift, moment, unit)))

    def copy_marks(self, marks: Iterable[Mark]) -> None:
        """Of source events that are copied next."""
        shift = self._shift
        # Past Mark's own constructor, which takes as long as everything else.
        self._marks += [_new(Mark, (event + shift, moment, unit)) for event, moment, unit in marks] if shift else marks

    def _write(self, events: Sequence[int]) -> None:
        if self.reached > self._done:
            self._runs.append((len(self._events), self._done, self.reached))
            self._done = self.reached
        self._events.extend(events)
        self._shift += len(events)
        check_events(self._shift + self.reached)

    def tape(self) -> Tape:
        """Raises InvalidInput if a storage is freed twice, or before it is made."""
        source, own = self._source, np.frombuffer(self._events, np.int32)
        parts, at = [], 0
        for before, start, stop in self._runs:
            parts += [own[at:before], source.events[start:stop]]
            at = before
        events = np.concatenate([*parts, own[at:], source.events[self._done :]])
        events, made = numbered(events, self._known + len(self._sizes))
        streams, own_streams = source.streams, np.frombuffer(self._streams, np.uint8)
        if own_streams.any() and not len(streams):
            streams = np.zeros(self._known, np.uint8)
        return unchecked_tape(
            np.concatenate([source.sizes, np.frombuffer(self._sizes, np.int64)])[made],
            np.concatenate([source.roles, np.frombuffer(self._roles, np.uint8)])[made],
            np.concatenate([source.units, np.frombuffer(self._units, np.int16)])[made],
            events,
            tuple(self._marks),
            np.concatenate([streams, own_streams])[made] if len(streams) else np.zeros(0, np.uint8),
        )


def numbered(
    events: NDArray[np.int32], storages: int, *, compiled: bool = True
) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Events that make storages in the order of their numbers, and the former number of each."""
    loops = compiled_loops() if compiled else None
    if loops is not None:
        order = number_compiled(loops, events, storages)
        if order is None:
            raise InvalidInput("the events free a storage twice, or one that does not exist")
        return events, order
    sign = events >> 31  # -1 for a free, else 0
    made = (events ^ sign)[sign == 0].astype(np.int64)
    numbers = np.full(storages, -1, np.int32)
    numbers[made] = np.arange(len(made), dtype=np.int32)
    events = numbers[events ^ sign] ^ sign
    check_order(events, len(made))
    return events, made
