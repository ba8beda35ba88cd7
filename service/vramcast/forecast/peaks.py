"""What a tape needs of a GPU: its peaks, when they are, and what is in them.

Two counters measure a run, so there are two figures. *Active* is what tensors take (`torch.cuda.max_memory_allocated`),
*reserved* what the allocator took from the device for them (`nvidia-smi`, less the CUDA context).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.allocator import GRAIN, Block, CachingAllocator
from vramcast.forecast.compiled import compiled_loops, replay_compiled
from vramcast.forecast.tape import Mark, Moment, Role, Tape, live_storages, phases_of

# No device has as much, and the replay counts in 64 bits.
MOST_BYTES = 1 << 48
_GRAIN_BITS = GRAIN.bit_length() - 1


@dataclass(frozen=True, slots=True)
class When:
    """A moment of a tape: step 0 is the load, 1 the first step."""

    event: int
    step: int
    phase: Moment | None  # None: while the model is loaded

    def __str__(self) -> str:
        if self.phase is None:
            return "loading the model"
        names = {Moment.STEP: "the start", Moment.UPDATE: "the optimizer's update", Moment.END: "the end"}
        return f"{names.get(self.phase, f'the {self.phase.name.lower()} pass')} of step {self.step}"


@dataclass(frozen=True, slots=True)
class Peaks:
    active_bytes: int
    reserved_bytes: int
    moment: When  # of the active peak
    reserved_moment: When  # when the last segment was reserved
    by_role: Mapping[Role, int]  # bytes as asked for, live at the active peak
    storages_by_role: Mapping[Role, int]  # how many storages these are
    retries: int = 0  # how often the device was full and cached segments were given back
    out_of_memory: When | None = None  # the request that failed all the same; the peaks are those until then


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Memory over a tape."""

    active_bytes: NDArray[np.int64]  # (events,) behind each event
    reserved_bytes: NDArray[np.int64]  # (events,)
    by_role_bytes: NDArray[np.int64]  # (events, roles) as asked for


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """`capacity_bytes` is what the allocator may reserve, so without the CUDA context; None: no limit."""

    capacity_bytes: int | None = None
    expandable_segments: bool = False


DEFAULT_SETTINGS = AllocatorSettings()


def peaks(tape: Tape, settings: AllocatorSettings = DEFAULT_SETTINGS, *, compiled: bool = True) -> Peaks:
    """`compiled`: use the compiled loop if there is one."""
    _check_total(tape)
    active, active_at, reserved, reserved_at, retries, failed = replayed(tape, settings, compiled=compiled)
    by_role, storages_by_role = _live_by_role(tape, active_at)
    phases = [mark for _, mark in phases_of(tape.marks)]
    return Peaks(
        active_bytes=active * GRAIN,
        reserved_bytes=reserved * GRAIN,
        moment=_when(phases, active_at),
        reserved_moment=_when(phases, reserved_at),
        by_role=by_role,
        storages_by_role=storages_by_role,
        retries=retries,
        out_of_memory=_when(phases, failed) if failed >= 0 else None,
    )


def memory_curve(tape: Tape, settings: AllocatorSettings = DEFAULT_SETTINGS) -> Curve:
    curve = np.zeros((len(tape.events), 2), np.int64)
    _check_total(tape)
    *_, failed = replayed(tape, settings, curve)
    changes = np.zeros((len(tape.events), len(Role)), np.int64)
    storages = np.where(tape.events >= 0, tape.events, ~tape.events)
    changes[np.arange(len(storages)), tape.roles[storages]] = np.where(tape.events >= 0, 1, -1) * tape.sizes[storages]
    reached = slice(failed if failed >= 0 else len(storages))
    return Curve(curve[reached, 0] * GRAIN, curve[reached, 1] * GRAIN, np.cumsum(changes, axis=0)[reached])


def _when(phases: Sequence[Mark], event: int) -> When:
    step, phase = 0, None
    for mark in phases:
        if mark.event > event:
            break
        step += mark.moment is Moment.STEP
        phase = mark.moment
    return When(event, step, phase)


def _live_by_role(tape: Tape, event: int) -> tuple[dict[Role, int], dict[Role, int]]:
    """The live bytes behind an event, largest first, and the number of storages that have them."""
    storages = live_storages(tape, event + 1)
    roles = tape.roles[storages]
    total = np.bincount(roles, tape.sizes[storages], len(Role))
    count = np.bincount(roles, minlength=len(Role))
    largest_first = sorted((role for role in Role if total[role]), key=lambda role: -total[role])
    return {role: round(total[role]) for role in largest_first}, {role: int(count[role]) for role in largest_first}


def _check_total(tape: Tape) -> None:
    if tape.sizes.sum(dtype=np.float64) > MOST_BYTES:
        raise InvalidInput(f"the step allocates more than {MOST_BYTES >> 40} TiB")


def replayed(
    tape: Tape, settings: AllocatorSettings = DEFAULT_SETTINGS, curve: NDArray[np.int64] | None = None, *,
    compiled: bool = True,
) -> tuple[int, ...]:  # fmt: skip
    """In grains: peak active, its event, peak reserved, its event; retries, the event that failed or -1."""
    # A capacity of 0 means none to the loops, so a full device is one grain.
    capacity = 0 if settings.capacity_bytes is None else max(1, settings.capacity_bytes // GRAIN)
    loops = compiled_loops() if compiled else None
    if loops is None:
        return _replay_plainly(tape, CachingAllocator(capacity, settings.expandable_segments), curve)
    return replay_compiled(loops, tape.events, tape.sizes, tape.streams, capacity, settings.expandable_segments, curve)


def _replay_plainly(tape: Tape, allocator: CachingAllocator, curve: NDArray[np.int64] | None) -> tuple[int, ...]:
    held: list[Block | None] = [None] * len(tape.sizes)
    sizes = (np.maximum(tape.sizes, 1) + (GRAIN - 1) >> _GRAIN_BITS).tolist()
    streams = tape.streams.tolist() or [0] * len(sizes)
    active = reserved = 0
    active_at = reserved_at = -1
    for at, event in enumerate(tape.events.tolist()):
        if event < 0:
            block = held[~event]
            assert block is not None, "the tape was checked"  # noqa: S101
            allocator.free(block)
        else:
            held[event] = allocator.malloc(sizes[event], streams[event])
            if held[event] is None:
                return active, active_at, reserved, reserved_at, allocator.retries, at
            if allocator.active > active:
                active, active_at = allocator.active, at
            if allocator.reserved > reserved:
                reserved, reserved_at = allocator.reserved, at
        if curve is not None:
            curve[at] = allocator.active, allocator.reserved
    return active, active_at, reserved, reserved_at, allocator.retries, -1
