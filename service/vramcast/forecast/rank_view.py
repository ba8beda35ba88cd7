"""Rewrites a tape as one rank of a distributed job sees it.

A recording knows one GPU. Each framework (`fsdp.py`, `zero.py`, `sharding.py` for DDP) subclasses `RankView` and says
what it does differently when a storage is made or freed and when a unit (a transformer layer) begins or ends.

Frameworks that communicate on their own streams let the host run ahead of the GPU: a block that another stream uses
comes back to the allocator only once that stream is done. `ahead` writes such frees late. `max_memory_allocated` does
not see this, `active_bytes` and the reserved memory do.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from vramcast.forecast.tape import Mark, Moment, Role, Tape, check_events

MAIN, GATHER, REDUCE = 0, 1, 2  # streams


class Scheme(StrEnum):
    DDP = "ddp"
    ZERO_1 = "zero-1"
    ZERO_2 = "zero-2"
    ZERO_3 = "zero-3"
    FSDP = "fsdp"  # FULL_SHARD
    FSDP_GRADIENTS = "fsdp-gradients"  # SHARD_GRAD_OP: weights stay gathered from forward to backward


@dataclass(frozen=True, slots=True)
class Plan:
    """How a job is split over its GPUs."""

    scheme: Scheme
    ranks: int
    masters: bool = False  # fp32 copies of 16-bit weights: amp-* under FSDP, always under ZeRO
    offload: bool = False  # ZeRO: optimizer states, masters and gradients in host memory; FSDP: weights too
    bucket_elements: int = 500_000_000  # DeepSpeed's reduce_bucket_size
    unsynced: bool = False  # FSDP: whole gradients of all batches but the last of an update (`no_sync`)


class Sources(NamedTuple):
    """Of each storage of the tape that is rewritten."""

    sizes: list[int]
    roles: list[int]
    units: list[int]


class TapeWriter:
    """Writes a tape storage by storage. Numbers that it returns are those of the new tape."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._roles: list[int] = []
        self._units: list[int] = []
        self._streams: list[int] = []
        self._events: list[int] = []
        self._marks: list[Mark] = []

    def make(self, size: int, role: Role, unit: int = -1, stream: int = MAIN) -> int:
        number = len(self._sizes)
        self._sizes.append(size)
        self._roles.append(role)
        self._units.append(unit)
        self._streams.append(stream)
        self._events.append(number)
        check_events(len(self._events))
        return number

    def free(self, number: int) -> None:
        self._events.append(~number)

    def copy(self, source: Sources, first: int, events: list[int], numbers: dict[int, int]) -> None:
        """Events of another tape that makes storages from `first` on; `numbers`: those of its live storages here."""
        number = before = len(self._sizes)
        append, forget = self._events.append, numbers.pop
        for event in events:
            if event >= 0:
                numbers[event] = number
                append(number)
                number += 1
            else:
                append(~forget(~event))
        made = number - before
        self._sizes += source.sizes[first : first + made]
        self._roles += source.roles[first : first + made]
        self._units += source.units[first : first + made]
        self._streams += [MAIN] * made
        check_events(len(self._events))

    def mark(self, moment: Moment, unit: int = 0) -> None:
        self._marks.append(Mark(len(self._events), moment, unit))

    def tape(self) -> Tape:
        return Tape(
            np.array(self._sizes, np.int64), np.array(self._roles, np.uint8), np.array(self._units, np.int16),
            np.array(self._events, np.int32), tuple(self._marks), np.array(self._streams, np.uint8),
        )  # fmt: skip


class RankView:
    """Copies the tape. Subclasses override `loaded`, `at`, `made` and `freed`."""

    in_flight_limit = 2  # gathers that the host issues before it waits for the GPU; FSDP's rate limiter allows two

    def __init__(self, tape: Tape, *, ahead: bool) -> None:
        self.source = tape
        self.write = TapeWriter()
        self._sources = Sources(tape.sizes.tolist(), tape.roles.tolist(), tape.units.tolist())
        self.sizes, self.roles, self.units = self._sources
        # (storages,) which `made` and `freed` have to see: a framework moves weights and gradients
        self.special = np.isin(tape.roles, (Role.WEIGHT, Role.FROZEN, Role.GRADIENT))
        self.checkpointed = _computes_again(tape)
        self.phase = Moment.STEP
        self._copies: dict[int, int] = {}
        self.ahead = ahead
        self._late: deque[list[int]] = deque([[]])

    def rewritten(self) -> Tape:
        """Walks the source tape once. Most storages are temporaries, which are copied a run at a time."""
        marks, events, at, loaded = self.source.marks, self.source.events.tolist(), 0, False
        position = made = 0
        for stop in self._stops():
            run = events[position:stop]
            if run:
                self.write.copy(self._sources, made, run, self._copies)
                made += sum(event >= 0 for event in run)
            position = stop
            while at < len(marks) and marks[at].event == position:
                if not loaded and marks[at].moment is Moment.STEP:
                    self.loaded()
                    loaded = True
                self._enter(marks[at])
                at += 1
            if position < len(events) and self.special[max(events[position], ~events[position])]:
                if events[position] >= 0:
                    made += 1
                    self.made(events[position])
                else:
                    self.freed(~events[position])
                position += 1
        return self.write.tape()

    def _stops(self) -> list[int]:
        """The events of special storages, those with a mark in front, and the end."""
        events = self.source.events
        special = np.flatnonzero(self.special[np.maximum(events, ~events)])
        return sorted({*special.tolist(), *(mark.event for mark in self.source.marks), len(events)})

    def _enter(self, mark: Mark) -> None:
        if mark.moment <= Moment.END:
            self.phase = mark.moment
        self.at(mark)

    def loaded(self) -> None:
        """The model is on the GPU and training is about to begin."""

    def at(self, mark: Mark) -> None:
        self.write.mark(mark.moment, mark.unit)

    def made(self, storage: int) -> None:
        self.copy(storage)

    def freed(self, storage: int) -> None:
        number = self._copies.pop(storage, None)
        if number is not None:
            self.write.free(number)

    def copy(self, storage: int, role: Role | None = None) -> int:
        kept = Role(self.roles[storage]) if role is None else role
        number = self._copies[storage] = self.write.make(self.sizes[storage], kept, self.units[storage])
        return number

    def free_late(self, number: int) -> None:
        """Frees a block that another stream still uses."""
        if self.ahead:
            self._late[-1].append(number)
        else:
            self.write.free(number)

    def in_flight(self) -> None:
        """Another gather is about to be issued: the host waits if too many are in flight."""
        self._late.append([])
        while len(self._late) > self.in_flight_limit:
            self._release(self._late.popleft())

    def wait_for_gpu(self) -> None:
        """The host has read a value (a loss, an overflow flag): everything late is free."""
        while self._late:
            self._release(self._late.popleft())
        self._late.append([])

    def _release(self, numbers: list[int]) -> None:
        for number in numbers:
            self.write.free(number)


def share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def bytes_by_unit(tape: Tape, role: Role) -> dict[int, int]:
    chosen = tape.roles == role
    units, sizes = tape.units[chosen], tape.sizes[chosen]
    return {int(unit): int(sizes[units == unit].sum()) for unit in np.unique(units)}


def _computes_again(tape: Tape) -> bool:
    """Does checkpointing compute units again during backward?"""
    phase = Moment.STEP
    for mark in tape.marks:
        if mark.moment <= Moment.END:
            phase = mark.moment
        elif mark.moment is Moment.ENTER and phase is Moment.BACKWARD:
            return True
    return False
