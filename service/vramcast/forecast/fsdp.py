"""PyTorch's FullyShardedDataParallel, as one rank sees it.

- A rank keeps 1/N of each unit's weights. A unit is gathered when it begins and freed when it ends. The root
  (embeddings, head) stays gathered until backward ends.
- Backward gathers the next unit early, except when re-entrant checkpointing hides the outputs from FSDP's hooks.
- A unit's gradients are concatenated, then reduced and scattered.
- With gradient accumulation, gradients stay whole until the last batch of an update (`no_sync`, which accelerate uses).
- Where all weights of a unit are frozen (LoRA), FSDP's hook keeps the unit's input until backward ends. With
  checkpointing that input is a leaf and keeps its gradient too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.rank_view import GATHER, REDUCE, Plan, RankView, Scheme, bytes_by_unit, share
from vramcast.forecast.tape import Mark, Moment, Role, Tape

_ROOT = 0


class FsdpView(RankView):
    def __init__(self, tape: Tape, plan: Plan, *, ahead: bool) -> None:
        super().__init__(tape, ahead=ahead)
        self._plan = plan
        self._stored = {role: bytes_by_unit(tape, role) for role in (Role.WEIGHT, Role.FROZEN)}
        self._parameters = _weights_by_unit(tape)
        self._gathered: dict[int, list[int]] = {}
        self._pieces: dict[int, list[int]] = {}  # unit -> gradients that wait for their concatenation
        self._gradients: dict[int, int] = {}  # unit -> its sharded gradient
        self._until_backward_ends = held_by_hooks(tape, self._stored[Role.FROZEN], gradients=self.checkpointed)
        self.not_here = (Role.WEIGHT, Role.FROZEN)
        self.roles[self.gradients] = Role.TEMPORARY  # until they are concatenated
        self.made_seen |= self.gradients
        self.freed_seen |= self.gradients
        self.freed_seen[list(self._until_backward_ends)] = True
        self._unit_of = tape.units.tolist()
        self._held: list[int] = []
        self._batch = 0  # of the update: 1 is the first

    def loaded(self) -> None:
        if self._plan.offload:
            return
        for unit, size in self._stored[Role.FROZEN].items():
            self.write.make(share(size, self._plan.ranks), Role.FROZEN, unit)
        widened = 2 if self._plan.masters else 1
        for unit, size in self._stored[Role.WEIGHT].items():
            for piece in self._first_share(unit, share(size, self._plan.ranks)):
                self.write.make(widened * piece, Role.WEIGHT, unit)

    def _first_share(self, unit: int, part: int) -> Iterator[int]:
        """The parameters that lie in the first rank's shard, the last one cut off.

        A shard is one block. But the optimizer steps the original parameters (`use_orig_params`), so its states and
        temporaries are as many and as large as these. That decides how much of what backward left they can reuse.
        """
        for size in self._parameters[unit]:
            if part <= 0:
                return
            yield min(size, part)
            part -= size

    def made(self, storage: int) -> None:
        self._pieces.setdefault(self._unit_of[storage], []).append(storage)

    def freed(self, storage: int) -> None:
        if storage in self._until_backward_ends:
            self._held.append(storage)
        elif (number := self._gradients.pop(self._unit_of[storage], None)) is not None:
            self.write.free(number)

    def at(self, mark: Mark) -> None:
        if mark.moment is Moment.UPDATE:
            self._end_backward()
            self._batch = 0
        super().at(mark)
        if mark.moment is Moment.FORWARD:
            self._drop_held()  # the batch before has ended, whether or not it was synchronized
            self._batch += 1
            self._gather(_ROOT)
        elif mark.unit == _ROOT:
            return
        elif mark.moment in {Moment.ENTER, Moment.ENTER_BACKWARD}:
            self._gather(mark.unit)
            if mark.moment is Moment.ENTER_BACKWARD and mark.unit > 1 and not self.checkpointed:
                self._gather(mark.unit - 1)
        elif mark.moment is Moment.LEAVE:
            if self._plan.scheme is Scheme.FSDP:
                self._free_gathered(mark.unit)
            if self.phase is Moment.BACKWARD:
                self._gather(mark.unit)  # its backward follows
        elif mark.moment is Moment.LEAVE_BACKWARD:
            self._free_gathered(mark.unit)
            if not self._plan.unsynced or self._batch > 1:
                self._reduce(mark.unit)

    def _gather(self, unit: int) -> None:
        if unit in self._gathered:
            return
        self.in_flight()
        self._gathered[unit] = numbers = []
        for role, units in self._stored.items():
            if size := units.get(unit, 0):
                part = share(size, self._plan.ranks)
                narrowed = self._plan.offload or (self._plan.masters and role is Role.WEIGHT)
                copied = self.write.make(part, Role.TEMPORARY, stream=GATHER) if narrowed else None
                numbers.append(self.write.make(part * self._plan.ranks, Role.WORKSPACE, unit, GATHER))
                if copied is not None:
                    self.free_late((copied,))

    def _free_gathered(self, unit: int) -> None:
        self.free_late(self._gathered.pop(unit, ()))

    def _reduce(self, unit: int) -> None:
        pieces = self._pieces.pop(unit, [])
        if not pieces:
            return
        size = self._stored[Role.WEIGHT].get(unit, 0)
        part = share(size, self._plan.ranks)
        flat = self.write.make(part * self._plan.ranks, Role.TEMPORARY)
        self.write.free_all(pieces)
        reduced = self.write.make(part, Role.GRADIENT, unit, REDUCE)
        self.free_late((flat,))
        if self._plan.masters:
            widened = self.write.make(2 * part, Role.GRADIENT, unit, REDUCE)
            self.free_late((reduced,))
            reduced = widened
        if self._plan.offload or unit in self._gradients:  # added to the shard that is there
            self.write.free(reduced)
        else:
            self._gradients[unit] = reduced

    def _end_backward(self) -> None:
        for unit in sorted(self._pieces, reverse=True):
            self._reduce(unit)
        for unit in list(self._gathered):
            self._free_gathered(unit)
        self._drop_held()
        self.wait_for_gpu()

    def _drop_held(self) -> None:
        self.write.free_all(self._held)
        self._held.clear()


def _weights_by_unit(tape: Tape) -> dict[int, list[int]]:
    weights: dict[int, list[int]] = {}
    for storage in np.flatnonzero(tape.roles == Role.WEIGHT).tolist():
        weights.setdefault(int(tape.units[storage]), []).append(int(tape.sizes[storage]))
    return weights


def held_by_hooks(tape: Tape, frozen: dict[int, int], *, gradients: bool) -> frozenset[int]:
    """The inputs of units with frozen weights, and their gradients, that live until backward ends."""
    made_at, freed_at = _lifetimes(tape)
    saved, temporary = tape.roles == Role.SAVED, tape.roles == Role.TEMPORARY
    held: set[int] = set()
    for forward, backward in _unit_passes(tape):
        for unit, (begin, end) in backward.items():
            if not frozen.get(unit) or unit not in forward:
                continue
            later = backward.get(unit - 1, (end, len(tape.events)))[1]
            dies = (end <= freed_at) & (freed_at <= later)
            inputs = saved & (forward.get(unit - 1, 0) <= made_at) & (made_at < forward[unit])
            their_gradients = temporary & (begin <= made_at) & (made_at < end)
            chosen = inputs | their_gradients if gradients else inputs
            held.update(np.flatnonzero(dies & chosen).tolist())
    return frozenset(held)


def _lifetimes(tape: Tape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(storages,) the events that make and free each storage."""
    made = tape.events >= 0
    freed_at = np.full(len(tape.sizes), len(tape.events) + 1, np.int64)
    freed_at[~tape.events[~made]] = np.flatnonzero(~made)
    return np.flatnonzero(made), freed_at


def _unit_passes(tape: Tape) -> list[tuple[dict[int, int], dict[int, tuple[int, int]]]]:
    """For each pass: where each unit's forward begins, and from where to where its backward lasts."""
    passes: list[tuple[dict[int, int], dict[int, tuple[int, int]]]] = []
    phase = Moment.STEP
    for mark in tape.marks:
        if mark.moment <= Moment.END:
            phase = mark.moment
            if phase is Moment.FORWARD:
                passes.append(({}, {}))
        elif not passes:
            continue
        elif mark.moment is Moment.ENTER and phase is Moment.FORWARD:
            passes[-1][0].setdefault(mark.unit, mark.event)
        elif mark.moment is Moment.ENTER_BACKWARD or (mark.moment is Moment.ENTER and phase is Moment.BACKWARD):
            passes[-1][1].setdefault(mark.unit, (mark.event, mark.event))
        elif mark.moment is Moment.LEAVE_BACKWARD and mark.unit in passes[-1][1]:
            passes[-1][1][mark.unit] = (passes[-1][1][mark.unit][0], mark.event)
    return passes
