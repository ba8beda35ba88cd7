"""The optimizer's update, written into a tape whose UPDATE slots are open. One recording so answers every optimizer.

What each makes was read from torch's `_multi_tensor_*` functions, transformers' Adafactor, timm's Lion and
bitsandbytes, and is held to their recorded tapes by tests: states at the first step, in the order of the parameters,
and lists of temporaries as large as everything that is trained, freed from the last to the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.tape import Moment, Role, Tape, live_storages, phases_of
from vramcast.forecast.tape_writer import TapeWriter
from vramcast.task.vocabulary import Optimizer

_FLOAT_BYTES = 4
# bitsandbytes: weights that share a scale, the smallest tensor that has 8-bit states, and the table of codes.
_BLOCK = 256
_SMALLEST_8BIT = 4096
_CODES_BYTES = 256 * _FLOAT_BYTES
# Adafactor factors matrices only; what has fewer elements is taken for a vector.
_SMALLEST_MATRIX = 1 << 16


class Trained(NamedTuple):
    """A parameter that the optimizer steps."""

    size_bytes: int
    unit: int
    element_bytes: int

    @property
    def elements(self) -> int:
        return self.size_bytes // self.element_bytes


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """All of them, in lists: a forecast makes thousands of storages as large as they are."""

    sizes: list[int]
    units: list[int]
    element_bytes: int

    def __iter__(self) -> Iterator[Trained]:
        return (Trained(*pair, self.element_bytes) for pair in zip(self.sizes, self.units, strict=True))


@dataclass(frozen=True, slots=True)
class _Update:
    """What an optimizer makes: at the beginning, in the first update, and in every update."""

    states: int = 0  # made in the first update, each as large as its parameter
    first: Callable[[TapeWriter, TrainedWeights], None] | None = None  # other states
    lists: int = 0  # temporaries in each update: lists as large as all that is trained
    each: Callable[[TapeWriter, TrainedWeights], None] | None = None  # other temporaries in each update
    before: bool = False  # the states are made with the optimizer, before the first step
    fuses: bool = False  # can run fused: no lists, and a counter on the GPU for each parameter


def with_update(
    tape: Tape, optimizer: Optimizer, *, element_bytes: int = 4, fused: bool = False, sharded: bool = False
) -> Tape:
    """Fills the open UPDATE slots. `element_bytes` of a trained weight: 2 if the model was cast to 16 bits.

    `sharded`: the tape is a rank's (`sharding.py`), whose gradients are flat, so every weight is taken for trained.
    A slot that has events already is the recorded loop's own update and stays as it is.
    """
    slots = _open_slots(tape)
    if not slots:
        return tape
    update, write = _UPDATES[optimizer], TapeWriter(tape)
    trained = trained_weights(tape, slots[0][0], element_bytes, sharded=sharded)
    fused = fused and update.fuses
    counters = fused and optimizer is not Optimizer.SGD_MOMENTUM
    begin = next((at for at, mark in enumerate(tape.marks) if mark.moment is Moment.STEP), 0)
    first = (tape.marks[begin].event, begin) if update.before else slots[0]
    marked = 0
    for event, mark in [first, *slots] if update.before else slots:
        if event < write.reached:
            raise InvalidInput("the steps' marks are out of order")
        write.copy_marks(tape.marks[marked:mark])
        write.reached, marked = event, mark
        if (event, mark) == first:
            _make_states(write, update, trained, counters=counters)
        if (event, mark) in slots:
            if not fused:
                _make_lists(write, trained, update.lists)
            if update.each is not None:
                update.each(write, trained)
    write.copy_marks(tape.marks[marked:])
    return write.tape()


def trained_weights(tape: Tape, event: int, element_bytes: int, *, sharded: bool = False) -> TrainedWeights:
    """The weights that have a gradient at this event, in the order in which the model was loaded."""
    live = live_storages(tape, event)
    roles = tape.roles[live]
    weights = live[(roles == Role.WEIGHT) & (tape.units[live] >= 0)]
    if not sharded:
        gradients = live[roles == Role.GRADIENT]
        weights = weights[_matched(_identities(tape, weights), _identities(tape, gradients))]
    return TrainedWeights(tape.sizes[weights].tolist(), tape.units[weights].tolist(), element_bytes)


def _identities(tape: Tape, storages: NDArray[np.int64]) -> NDArray[np.int64]:
    """One number for a size and a unit: a weight and its gradient have the same."""
    return tape.sizes[storages] * (1 << 15) + tape.units[storages]


def _matched(weights: NDArray[np.int64], gradients: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(weights,) whether each has a gradient: of n equal weights, the first as many as there are equal gradients."""
    kinds, counts = np.unique(gradients, return_counts=True)
    order = np.argsort(weights, kind="stable")
    ordered = weights[order]
    earlier = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)  # equal weights before it
    at = np.searchsorted(kinds, ordered)
    inside = at < len(kinds)
    at[~inside] = 0
    found = np.zeros(len(weights), np.bool_)
    if len(kinds):
        found[order] = inside & (kinds[at] == ordered) & (earlier < counts[at])
    return found


def _open_slots(tape: Tape) -> list[tuple[int, int]]:
    """(event, marks before it) of each UPDATE mark behind which nothing is made until the next phase.

    Something may be freed there: the names that the loop's body held.
    """
    phases = phases_of(tape.marks)
    ends = {at: after.event for (at, _), (_, after) in pairwise(phases)}
    return [
        (mark.event, at + 1)
        for at, mark in phases
        if mark.moment is Moment.UPDATE and (tape.events[mark.event : ends.get(at, len(tape.events))] < 0).all()
    ]


def _make_states(write: TapeWriter, update: _Update, trained: TrainedWeights, *, counters: bool) -> None:
    """`counters`: a fused optimizer counts its steps on the GPU, for each parameter."""
    if update.first is not None:
        update.first(write, trained)
    elif counters and update.states:
        for weight in trained:
            write.make(_FLOAT_BYTES, Role.STATE)
            write.make_all([weight.size_bytes] * update.states, Role.STATE, [weight.unit] * update.states)
    elif update.states:
        sizes, units = (np.repeat(values, update.states).tolist() for values in (trained.sizes, trained.units))
        write.make_all(sizes, Role.STATE, units)


def _make_lists(write: TapeWriter, trained: TrainedWeights, count: int) -> None:
    sizes, nobody = trained.sizes, [-1] * len(trained.sizes)
    firsts = [write.make_all(sizes, Role.TEMPORARY, nobody) for _ in range(count)]
    for first in firsts:
        write.free_all(range(first + len(sizes) - 1, first - 1, -1))


def _adam8bit(write: TapeWriter, trained: TrainedWeights) -> None:
    has_codes = False
    for weight in trained:
        small = weight.elements < _SMALLEST_8BIT
        if not small and not has_codes:
            write.make_all([_CODES_BYTES] * 2, Role.STATE, [-1] * 2)
            has_codes = True
        for _ in range(2):
            write.make(_FLOAT_BYTES * weight.elements if small else weight.elements, Role.STATE, weight.unit)
            if not small:
                write.make(_FLOAT_BYTES * -(-weight.elements // _BLOCK), Role.STATE, weight.unit)


def _adafactor_states(write: TapeWriter, trained: TrainedWeights) -> None:
    """A mean per row and per column of a matrix. A tape does not have shapes: matrices count as square."""
    for weight in trained:
        if weight.elements < _SMALLEST_MATRIX:
            write.make(_FLOAT_BYTES * weight.elements, Role.STATE, weight.unit)
        else:
            write.make_all([_FLOAT_BYTES * isqrt(weight.elements)] * 2, Role.STATE, [weight.unit] * 2)


def _adafactor(write: TapeWriter, trained: TrainedWeights) -> None:
    """One parameter after the other, in fp32. The loop's names hold what the parameter before made."""
    gradient = copy = update = -1
    for weight in trained:
        size = _FLOAT_BYTES * weight.elements
        if weight.element_bytes < _FLOAT_BYTES:
            if gradient >= 0:
                write.free(gradient)
            gradient = write.make(size, Role.TEMPORARY)
            if copy >= 0:
                write.free(copy)
            copy = write.make(size, Role.TEMPORARY)
        square = write.make(size, Role.TEMPORARY)
        shifted = write.make(size, Role.TEMPORARY)
        write.free(square)
        if update >= 0:
            write.free(update)
        update = write.make(size, Role.TEMPORARY)
        write.free(shifted)
        write.free(write.make(size, Role.TEMPORARY))
    for number in (gradient, copy, update):
        if number >= 0:
            write.free(number)


_UPDATES: dict[Optimizer, _Update] = {
    Optimizer.SGD: _Update(fuses=True),
    Optimizer.SGD_MOMENTUM: _Update(states=1, fuses=True),
    Optimizer.ADAM: _Update(states=2, lists=1, fuses=True),
    Optimizer.ADAMW: _Update(states=2, lists=1, fuses=True),
    Optimizer.RMSPROP: _Update(states=1, lists=1),
    Optimizer.ADAGRAD: _Update(states=1, lists=2, before=True),
    Optimizer.ADAFACTOR: _Update(first=_adafactor_states, each=_adafactor),
    Optimizer.LION: _Update(states=1, lists=1),
    Optimizer.ADAM8BIT: _Update(first=_adam8bit),
}
