"""Rewrites a tape as one rank of a distributed job sees it.

A recording knows one GPU. Each framework (`fsdp.py`, `zero.py`, `sharding.py` for DDP) subclasses `RankView` and says
what it does differently when a storage is made or freed and when a unit (a transformer layer) begins or ends.

Frameworks that communicate on their own streams let the host run ahead of the GPU: a block that another stream uses
comes back to the allocator only once that stream is done. `ahead` writes such frees late. `max_memory_allocated` does
not see this, `active_bytes` and the reserved memory do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from vramcast.forecast.tape import Mark, Moment, Role, Tape, unchecked_tape
from vramcast.forecast.tape_writer import TapeWriter

MAIN, GATHER, REDUCE = 0, 1, 2  # streams
_new = tuple.__new__  # past Mark's own constructor, which takes longer


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


class RankView:
    """Copies the tape. Subclasses say what is not on this rank, and override `loaded`, `at`, `made` and `freed`."""

    in_flight_limit = 2  # gathers that the host issues before it waits for the GPU; FSDP's rate limiter allows two

    def __init__(self, tape: Tape, *, ahead: bool) -> None:
        self.source = tape
        self.not_here: tuple[Role, ...] = ()  # of storages that this rank does not have
        # (storages,) what each is here, and the unit that it counts for; a framework's buffers take the gradients
        self.roles, self.units = tape.roles.copy(), tape.units.copy()
        # (storages,) which `made` and `freed` have to see
        self.made_seen = np.zeros(len(tape.sizes), np.bool_)
        self.freed_seen = np.zeros(len(tape.sizes), np.bool_)
        self.gradients = tape.roles == Role.GRADIENT
        self.keeps_gradients = True  # False: the framework frees them, not the loop
        self.checkpointed = _computes_again(tape)
        self.phase = Moment.STEP
        self.ahead = ahead
        self._late: deque[list[int]] = deque([[]])

    def rewritten(self) -> Tape:
        """Walks the source tape once. Most storages are temporaries, which are copied a run at a time."""
        source = self._here()
        self.write = TapeWriter(source)
        sign = source.events >> 31  # -1 for a free, else 0
        storages = source.events ^ sign
        seen = np.flatnonzero(np.where(sign, self.freed_seen[storages], self.made_seen[storages]))
        stops = deque(zip(seen.tolist(), source.events[seen].tolist(), strict=True))
        loaded = False
        last_phase = Moment.END
        for mark in source.marks:
            event, moment, _ = mark
            if stops and stops[0][0] < event:
                self._pass(stops, event)
            self.write.reached = event
            if moment <= last_phase:
                if not loaded and moment is Moment.STEP:
                    self.loaded()
                    loaded = True
                self.phase = moment
            self.at(mark)
        self._pass(stops, len(source.events))
        return self.write.tape()

    def _pass(self, stops: deque[tuple[int, int]], end: int) -> None:
        """The events up to `end`."""
        write = self.write
        while stops and stops[0][0] < end:
            write.reached, event = stops.popleft()
            if event >= 0:
                write.reached += 1
                self.made(event)
            else:
                write.skip()
                self.freed(~event)
        write.reached = end

    def _here(self) -> Tape:
        """The source without the events of what this rank does not have."""
        tape = self.source
        storages = tape.events ^ (tape.events >> 31)
        absent = np.zeros(len(Role), np.bool_)
        absent[list(self.not_here)] = True
        gone = absent[tape.roles][storages]
        if not self.keeps_gradients:
            gone |= self.gradients[storages] & (tape.events < 0)
        places = np.array([mark.event for mark in tape.marks], np.int64)
        moved = (places - np.searchsorted(np.flatnonzero(gone), places)).tolist()
        marks = tuple(_new(Mark, (at, mark[1], mark[2])) for at, mark in zip(moved, tape.marks, strict=True))
        return unchecked_tape(tape.sizes, self.roles, self.units, tape.events[~gone], marks, tape.streams)

    def loaded(self) -> None:
        """The model is on the GPU and training is about to begin."""

    def at(self, mark: Mark) -> None:
        self.write.mark(mark.moment, mark.unit)

    def made(self, storage: int) -> None:
        """A storage of the source, and so of this tape, was made."""

    def freed(self, storage: int) -> None:
        """The source frees a storage. This tape does not, unless it is written here."""

    def free_late(self, numbers: Iterable[int]) -> None:
        """Frees blocks that another stream still uses."""
        if self.ahead:
            self._late[-1] += numbers
        else:
            self.write.free_all(numbers)

    def in_flight(self) -> None:
        """Another gather is about to be issued: the host waits if too many are in flight."""
        self._late.append([])
        while len(self._late) > self.in_flight_limit:
            self.write.free_all(self._late.popleft())

    def wait_for_gpu(self) -> None:
        """The host has read a value (a loss, an overflow flag): everything late is free."""
        while self._late:
            self.write.free_all(self._late.popleft())
        self._late.append([])


def share(size: int, ranks: int) -> int:
    return -(-size // ranks)


def bytes_by_unit(tape: Tape, role: Role) -> dict[int, int]:
    chosen = tape.roles == role
    units, sizes = tape.units[chosen], tape.sizes[chosen]
    return {int(unit): int(sizes[units == unit].sum()) for unit in np.unique(units)}


def _computes_again(tape: Tape) -> bool:
    """Does checkpointing compute units again during backward?"""
    phase, last_phase, enter, backward = Moment.STEP, Moment.END, Moment.ENTER, Moment.BACKWARD
    for _, moment, _ in tape.marks:
        if moment <= last_phase:
            phase = moment
        elif moment is enter and phase is backward:
            return True
    return False
