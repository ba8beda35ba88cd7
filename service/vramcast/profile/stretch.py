"""A tape of a few blocks, stretched to many: the blocks of a language model are alike, so four of them tell the rest.

Recording costs time per block. The marks cut a tape into runs of events, each belonging to one block or to none. A
deeper network has more runs in the middle, each a copy of the one before it, whose frees point to storages one block
further on. `stretch` checks that the two middle blocks are alike, event by event, and refuses a tape in which they are
not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from vramcast.errors import InvalidInput
from vramcast.forecast.recording import Piece, Recording
from vramcast.forecast.tape import Mark, Moment, Tape

# The first and the last block have neighbours of another kind, and two in between are compared with each other.
FEWEST_BLOCKS = 4
_BLOCK = 2  # the one that is copied
_CUTS = frozenset({Moment.ENTER, Moment.ENTER_BACKWARD})
_ENDS = frozenset({Moment.LEAVE, Moment.LEAVE_BACKWARD})


class NotAlike(InvalidInput):
    """The blocks differ, so a deeper network has to be recorded as a whole."""


@dataclass(frozen=True, slots=True)
class _Run:
    block: int  # 0: belongs to none
    phase: int  # the load, then forward, backward and so on of each step
    start: int
    stop: int
    falling: bool  # the blocks count down, as they do in backward


@dataclass(frozen=True, slots=True)
class _Made:
    """Where a storage is made: by which block, in which phase, and which of its storages there."""

    block: int
    phase: int
    place: int


def blocks_of(tape: Tape) -> int:
    return max((mark.unit for mark in tape.marks), default=0)


def stretch(tape: Tape, blocks: int) -> Tape:
    """The tape of the same network with `blocks` repeated blocks. Raises NotAlike."""
    known = blocks_of(tape)
    if blocks == known:
        return tape
    if known < FEWEST_BLOCKS or blocks < known:
        raise NotAlike(f"a tape of {known} blocks cannot be stretched to {blocks}: record at least {FEWEST_BLOCKS}")
    return _Stretching(tape, blocks - known).result()


def stretch_recording(recording: Recording, blocks: int) -> Recording:
    """The recording of the deeper network. Raises NotAlike.

    A piece that answers a single point and cannot be stretched is left out: a wider one answers that point.
    """
    pieces: list[Piece] = []
    for piece in recording.pieces:
        try:
            pieces.append(_stretch_piece(piece, blocks))
        except NotAlike:
            if any(span.low < span.high for span in piece.spans.values()):
                raise
    if not pieces:
        raise NotAlike("no two recorded points have alike blocks")
    return replace(recording, pieces=tuple(pieces))


def _stretch_piece(piece: Piece, blocks: int) -> Piece:
    """With classes in place of sizes, blocks are alike only if their sizes are the same polynomials."""
    deeper = stretch(piece.template.resized(piece.classes.astype(np.int64)), blocks)
    return replace(piece, template=deeper, classes=deeper.sizes.astype(np.uint16))


class _Stretching:
    def __init__(self, tape: Tape, more: int) -> None:
        self._tape, self._more = tape, more
        self._ends = {1, blocks_of(tape)}
        self._runs = _runs(tape)
        self._homes, self._storages = _homes(tape, self._runs)
        self._check_alike()
        # (storage, copy) in the order in which they are made; copy 0 is the recorded one
        self._numbers: dict[tuple[int, int], int] = {}
        self._events: list[int] = []
        self._units: list[int] = []
        self._marks: list[Mark] = []

    def result(self) -> Tape:
        tape, marks = self._tape, _Marks(self._tape.marks)
        for run in self._runs:
            for copy in self._copies(run):
                self._emit(run, copy, marks)
        self._marks += (Mark(len(self._events), mark.moment, mark.unit) for mark in marks.rest())
        picked = np.array([storage for storage, _ in self._numbers], np.int64)
        return Tape(
            sizes=tape.sizes[picked],
            roles=tape.roles[picked],
            units=np.array(self._units, np.int16),
            events=np.array(self._events, np.int32),
            marks=tuple(self._marks),
            streams=tape.streams[picked] if len(tape.streams) else tape.streams,
        )

    def _copies(self, run: _Run) -> Sequence[int]:
        if run.block != _BLOCK:
            return (0,)
        return range(self._more, -1, -1) if run.falling else range(self._more + 1)

    def _moved(self, block: int, copy: int) -> int:
        """The block's number in the deeper network."""
        return block + (copy if block == _BLOCK else self._more if block > _BLOCK else 0)

    def _emit(self, run: _Run, copy: int, marks: _Marks) -> None:
        shift = self._moved(run.block, copy) - run.block
        for at in range(run.start, run.stop + 1):
            for mark in marks.at(at, run, first=copy == self._copies(run)[0]):
                unit = mark.unit + shift if mark.unit else 0
                self._marks.append(Mark(len(self._events), mark.moment, unit))
            if at == run.stop:
                break
            event = int(self._tape.events[at])
            if event >= 0:
                self._make(event, copy, shift)
            else:
                self._events.append(~self._numbers[self._target(run, ~event, copy)])

    def _make(self, storage: int, copy: int, shift: int) -> None:
        number = self._numbers[storage, copy] = len(self._numbers)
        unit = int(self._tape.units[storage])
        self._units.append(unit + shift if unit > 0 else unit)
        self._events.append(number)

    def _target(self, run: _Run, storage: int, copy: int) -> tuple[int, int]:
        """The storage that this copy of a run frees: as far away, in blocks, as in the recorded run."""
        home = self._homes[storage]
        if not home.block or not run.block:
            return storage, 0
        apart = home.block - run.block
        if abs(apart) > 1 and {home.block, run.block} == self._ends:
            return storage, 0  # what the last block left is held until the first one runs again
        if abs(apart) > 1 and min(home.block, run.block) <= _BLOCK < max(home.block, run.block):
            raise NotAlike(f"block {run.block} frees what block {home.block} made")
        block = self._moved(run.block, copy) + apart
        if block <= _BLOCK:
            return self._counterpart(home, block), 0
        if block <= _BLOCK + self._more:
            return self._counterpart(home, _BLOCK), block - _BLOCK
        return self._counterpart(home, block - self._more), 0

    def _counterpart(self, home: _Made, block: int) -> int:
        try:
            return self._storages[block, home.phase][home.place]
        except (KeyError, IndexError):
            raise NotAlike(f"block {block} has nothing like storage {home.place} of block {home.block}") from None

    def _check_alike(self) -> None:
        one, other = ([run for run in self._runs if run.block == block] for block in (_BLOCK, _BLOCK + 1))
        if len(one) != len(other):
            raise NotAlike(f"block {_BLOCK} comes up {len(one)} times, block {_BLOCK + 1} {len(other)} times")
        for mine, its in zip(one, other, strict=True):
            if list(self._shape(mine)) != list(self._shape(its)):
                raise NotAlike(f"blocks {_BLOCK} and {_BLOCK + 1} differ near event {mine.start}")

    def _shape(self, run: _Run) -> Iterator[tuple[int, ...]]:
        """What a run does, told so that two like blocks tell the same."""
        for event in self._tape.events[run.start : run.stop].tolist():
            if event >= 0:
                yield int(self._tape.sizes[event]), int(self._tape.roles[event])
            else:
                home = self._homes[~event]
                apart = home.block - run.block if home.block else -(1 << 20)
                yield apart, home.phase, home.place


class _Marks:
    """The marks in order. A block's closing mark lies at the end of its run, where the next run may begin."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._at: dict[int, list[Mark]] = defaultdict(list)
        for mark in marks:
            self._at[mark.event].append(mark)
        self._plain_done: set[int] = set()

    def at(self, event: int, run: _Run, *, first: bool) -> Iterator[Mark]:
        """Marks of the run's block come with each copy of it, others once."""
        closing = event == run.stop
        for mark in self._at.get(event, ()):
            if mark.unit and mark.unit == run.block:
                if (mark.moment in _ENDS) == closing or run.start < event < run.stop:
                    yield mark
            elif not mark.unit and not closing and first and event not in self._plain_done:
                yield mark
        if not closing and first:
            self._plain_done.add(event)

    def rest(self) -> list[Mark]:
        return [mark for event, marks in self._at.items() if event not in self._plain_done for mark in marks
                if not mark.unit]  # fmt: skip


# ---------------------------------------------------------------------- cutting a tape into runs


def _runs(tape: Tape) -> list[_Run]:
    blocks, phases = _block_of_each_event(tape), _phases(tape)
    changes = set((np.flatnonzero(np.diff(blocks)) + 1).tolist())
    edges = sorted({*phases, *changes})
    spans = [(int(blocks[start]), start, stop) for start, stop in pairwise(edges)]
    around = [0, *(block for block, _, _ in spans), 0]
    return [
        _Run(
            block, bisect_right(phases, start), start, stop, around[at] == block + 1 or around[at + 2] == block - 1 > 0
        )
        for at, (block, start, stop) in enumerate(spans)
    ]


def _phases(tape: Tape) -> list[int]:
    """The events at which a phase begins, and the end."""
    return sorted({0, len(tape.events), *(mark.event for mark in tape.marks if not mark.unit)})


def _block_of_each_event(tape: Tape) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Inside a block's forward or backward, that block. Elsewhere, the block of the storage."""
    inside = np.full(len(tape.events), -1, np.int64)
    for start, stop in pairwise(_phases(tape)):
        for block, begin, end in _periods([mark for mark in tape.marks if mark.unit and start <= mark.event <= stop]):
            inside[begin:end] = block
    made = tape.events >= 0
    outside = inside < 0
    inside[made & outside] = np.maximum(tape.units[tape.events[made & outside]], 0)
    homes = inside[made]
    freed = ~made & outside
    inside[freed] = homes[~tape.events[freed]]
    for start, stop in pairwise(_phases(tape)):
        found, those = inside[start:stop], freed[start:stop]
        if (found[those] == _BLOCK).sum() != (found[those] == _BLOCK + 1).sum():
            found[those] = 0  # left over by the last block that ran, and not something that each block leaves
    return inside


def _periods(marks: Sequence[Mark]) -> Iterator[tuple[int, int, int]]:
    """(block, start, stop): from a block's first mark to the next block's, and for the last to its closing mark."""
    starts: dict[int, int] = {}
    for mark in marks:
        if mark.moment in _CUTS:
            starts.setdefault(mark.unit, mark.event)
    ordered = sorted(starts.items(), key=lambda item: item[1])
    for (block, start), (_, stop) in pairwise(ordered):
        yield block, start, stop
    for block, start in ordered[-1:]:
        closing = [mark.event for mark in marks if mark.unit == block and mark.moment in _ENDS]
        yield block, start, max(closing, default=start)


def _homes(tape: Tape, runs: Sequence[_Run]) -> tuple[list[_Made], dict[tuple[int, int], list[int]]]:
    """Where each storage is made; and by block and phase the storages made there.

    What is never freed, such as the workspace that a library takes once, belongs to no block.
    """
    freed = set((~tape.events[tape.events < 0]).tolist())
    homes: list[_Made] = []
    storages: dict[tuple[int, int], list[int]] = defaultdict(list)
    for run in runs:
        there = storages[run.block, run.phase]
        for event in tape.events[run.start : run.stop].tolist():
            if event >= 0 and event in freed:
                homes.append(_Made(run.block, run.phase, len(there)))
                there.append(event)
            elif event >= 0:
                homes.append(_Made(0, run.phase, -1))
    return homes, storages
