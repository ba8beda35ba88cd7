"""Puts new events between those of a tape: what an optimizer makes in its update, say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.tape import Mark, Role, Tape, check_events


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
        number = len(self.sizes)
        self.sizes.append(size_bytes)
        self.known_sizes.add(size_bytes)
        self.roles.append(role)
        self.units.append(unit)
        self.events.append(number)
        check_events(len(self.events))
        return number

    def free(self, number: int) -> None:
        self.events.append(~number)


def spliced(tape: Tape, inserts: Sequence[Insert]) -> Tape:
    """`inserts` in the order of their events."""
    inserts = [insert for insert in inserts if insert.events]
    if not inserts:
        return tape
    made = tape.events >= 0
    made_at = np.flatnonzero(made)  # (storages,) the event that makes each
    places = np.array([insert.event for insert in inserts])
    counts = np.array([len(insert.sizes) for insert in inserts])
    new_before = np.concatenate([[0], np.cumsum(counts)])
    old_before = np.searchsorted(made_at, places)  # recorded storages in front of each insert
    # (storages,) the number that each recorded storage gets
    numbers = np.arange(len(made_at)) + new_before[np.searchsorted(places, made_at, "right")]
    recorded = np.where(made, numbers[np.where(made, tape.events, 0)], ~numbers[np.where(made, 0, ~tape.events)])
    bases = old_before + new_before[:-1]
    fresh = [_moved(np.array(insert.events), int(base)) for insert, base in zip(inserts, bases, strict=True)]
    events = _woven(recorded, places, fresh)
    return Tape(
        sizes=_woven(tape.sizes, old_before, [np.array(insert.sizes) for insert in inserts]).astype(np.int64),
        roles=_woven(tape.roles, old_before, [np.array(insert.roles) for insert in inserts]).astype(np.uint8),
        units=_woven(tape.units, old_before, [np.array(insert.units) for insert in inserts]).astype(np.int16),
        events=events.astype(np.int32),
        marks=_moved_marks(tape.marks, inserts),
        streams=_woven(tape.streams, old_before, [np.zeros(count) for count in counts]).astype(np.uint8)
        if len(tape.streams)
        else tape.streams,
    )


def _moved(events: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    return np.where(events >= 0, events + base, events - base)


def _woven(
    old: NDArray[np.signedinteger] | NDArray[np.unsignedinteger],
    places: NDArray[np.int64],
    new: Sequence[NDArray[np.int64] | NDArray[np.float64]],
) -> NDArray[np.int64]:
    """Each array of `new` in front of its place in `old`."""
    parts: list[NDArray[np.int64]] = []
    start = 0
    for place, array in zip(places.tolist(), new, strict=True):
        parts += [old[start:place].astype(np.int64), array.astype(np.int64)]
        start = place
    return np.concatenate([*parts, old[start:].astype(np.int64)])


def _moved_marks(marks: Sequence[Mark], inserts: Sequence[Insert]) -> tuple[Mark, ...]:
    moved: list[Mark] = []
    waiting, shift = list(inserts), 0
    for at, mark in enumerate(marks):
        while waiting and waiting[0].mark <= at:
            shift += len(waiting.pop(0).events)
        moved.append(Mark(mark.event + shift, mark.moment, mark.unit) if shift else mark)
    return tuple(moved)
