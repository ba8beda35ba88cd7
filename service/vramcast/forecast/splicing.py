"""Puts new events between those of a tape: what an optimizer makes in its update, say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.tape import Mark, Role, Tape, check_events, unchecked_tape

_new = tuple.__new__
_Number = TypeVar("_Number", np.int64, np.int32, np.int16, np.uint8)


@dataclass(slots=True)
class Insert:
    """New storages, numbered from 0, in front of an event. Those that are not freed stay to the end of the tape."""

    event: int
    mark: int  # how many of the tape's marks lie before it
    sizes: list[int] = field(default_factory=list)
    roles: list[Role] = field(default_factory=list)
    units: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    known_sizes: set[int] = field(default_factory=set)

    def make(self, size_bytes: int, role: Role, unit: int = -1) -> int:
        return self.make_all([size_bytes], role, [unit])

    def make_all(self, sizes: Sequence[int], role: Role, units: Sequence[int]) -> int:
        """One after the other; the number of the first."""
        first = len(self.sizes)
        self.sizes.extend(sizes)
        self.known_sizes.update(sizes)
        self.roles.extend([role] * len(sizes))
        self.units.extend(units)
        self.events.extend(range(first, len(self.sizes)))
        check_events(len(self.events))
        return first

    def free(self, number: int) -> None:
        self.events.append(~number)

    def free_backwards(self, first: int, count: int) -> None:
        """From the last of those that were made together to the first."""
        self.events.extend(range(~(first + count - 1), ~first + 1))


def spliced(tape: Tape, inserts: Sequence[Insert]) -> Tape:
    """`inserts` in the order of their events; they free only what they made."""
    inserts = [insert for insert in inserts if insert.events]
    if not inserts:
        return tape
    places = [insert.event for insert in inserts]
    if places != sorted(places):
        raise InvalidInput("the steps' marks are out of order")
    counts = [len(insert.sizes) for insert in inserts]
    # Recorded storages in front of each insert.
    old_before = [int(count) for count in _made_before(tape, places)]
    new_before = np.cumsum([0, *counts])
    # (storages,) how far each recorded storage's number moves
    shifts = np.repeat(new_before, np.diff([0, *old_before, len(tape.sizes)])).astype(np.int32)
    events = tape.events
    sign = events >> 31  # -1 for a free, else 0
    recorded = events + ((shifts[events ^ sign] ^ sign) - sign)
    bases = [old + int(new) for old, new in zip(old_before, new_before, strict=False)]
    fresh = [_moved(np.array(insert.events, np.int32), base) for insert, base in zip(inserts, bases, strict=True)]
    return unchecked_tape(
        sizes=_woven(tape.sizes, old_before, [np.array(insert.sizes, np.int64) for insert in inserts]),
        roles=_woven(tape.roles, old_before, [np.array(insert.roles, np.uint8) for insert in inserts]),
        units=_woven(tape.units, old_before, [np.array(insert.units, np.int16) for insert in inserts]),
        events=_woven(recorded, places, fresh),
        marks=_moved_marks(tape.marks, inserts),
        streams=_woven(tape.streams, old_before, [np.zeros(count, np.uint8) for count in counts])
        if len(tape.streams)
        else tape.streams,
    )


def _made_before(tape: Tape, places: Sequence[int]) -> Iterator[int]:
    at = count = 0
    for place in places:
        count += int(np.count_nonzero(tape.events[at:place] >= 0))
        at = place
        yield count


def _moved(events: NDArray[np.int32], base: int) -> NDArray[np.int32]:
    return np.where(events >= 0, events + np.int32(base), events - np.int32(base))


def _woven(old: NDArray[_Number], places: Sequence[int], new: Sequence[NDArray[_Number]]) -> NDArray[_Number]:
    """Each array of `new` in front of its place in `old`."""
    parts: list[NDArray[_Number]] = []
    start = 0
    for place, array in zip(places, new, strict=True):
        parts += [old[start:place], array]
        start = place
    return np.concatenate([*parts, old[start:]])


def _moved_marks(marks: Sequence[Mark], inserts: Sequence[Insert]) -> tuple[Mark, ...]:
    moved: list[Mark] = []
    shift = start = 0
    for insert in inserts:
        moved += _shifted(marks[start : insert.mark], shift)
        shift += len(insert.events)
        start = insert.mark
    return (*moved, *_shifted(marks[start:], shift))


def _shifted(marks: Sequence[Mark], shift: int) -> Sequence[Mark]:
    # Past Mark's own constructor, which is half of a splice.
    return [_new(Mark, (event + shift, moment, unit)) for event, moment, unit in marks] if shift else marks
