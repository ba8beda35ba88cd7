"""Tapes of a small language model, written by hand: a root, units, forward, backward and an open update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.tape import Moment, Role, Tape
from vramcast.forecast.tape_writer import TapeWriter

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Model:
    units: int = 4
    root_bytes: int = 7 * MIB  # embedding, and as much for the head
    unit_bytes: int = 16 * MIB
    frozen: bool = False  # the units' weights are frozen, with adapters of `adapter_bytes`
    adapter_bytes: int = MIB
    buffer_bytes: int = 0  # of each unit
    hidden_bytes: int = 2 * MIB
    inner_bytes: int = 4 * MIB  # what a unit saves for its own backward
    checkpointing: bool = False
    late_frees: bool = False  # a unit's incoming gradient is freed when its backward is over, as autograd does
    workspace_bytes: int = 0  # what a library takes in the first unit of the first step and keeps
    steps: int = 2


class Steps:
    def __init__(self, model: Model) -> None:
        self.model, self.write = model, TapeWriter()
        self.gradients: list[int] = []
        self.begun = False

    def load(self) -> None:
        model, make = self.model, self.write.make
        make(model.root_bytes, Role.WEIGHT, 0)
        for unit in range(1, model.units + 1):
            make(model.unit_bytes, Role.FROZEN if model.frozen else Role.WEIGHT, unit)
            if model.frozen:
                make(model.adapter_bytes, Role.WEIGHT, unit)
            if model.buffer_bytes:
                make(model.buffer_bytes, Role.BUFFER, unit)
        make(model.root_bytes, Role.WEIGHT, 0)

    def step(self) -> None:
        write, model = self.write, self.model
        write.mark(Moment.STEP)
        for number in self.gradients:
            write.free(number)
        self.gradients.clear()
        write.mark(Moment.FORWARD)
        hidden, inner = [write.make(model.hidden_bytes, Role.SAVED)], {}
        for unit in range(1, model.units + 1):
            write.mark(Moment.ENTER, unit)
            if model.workspace_bytes and not self.begun:
                write.make(model.workspace_bytes, Role.WORKSPACE)
            self.begun = True
            saved = write.make(model.inner_bytes, Role.TEMPORARY if model.checkpointing else Role.SAVED)
            hidden.append(write.make(model.hidden_bytes, Role.SAVED))
            if model.checkpointing:
                write.free(saved)
            else:
                inner[unit] = saved
            write.mark(Moment.LEAVE, unit)
        write.mark(Moment.BACKWARD)
        self._backward(hidden, inner)
        write.mark(Moment.UPDATE)

    def ended(self) -> Tape:
        self.write.mark(Moment.END)
        return self.write.tape()

    def _backward(self, hidden: list[int], inner: dict[int, int]) -> None:
        write, model = self.write, self.model
        self.gradients.append(write.make(model.root_bytes, Role.GRADIENT, 0))
        gradient = write.make(model.hidden_bytes, Role.TEMPORARY)
        write.free(hidden.pop())
        for unit in range(model.units, 0, -1):
            write.mark(Moment.ENTER_BACKWARD, unit)
            if model.checkpointing:
                write.mark(Moment.ENTER, unit)
                inner[unit] = write.make(model.inner_bytes, Role.TEMPORARY)
                write.mark(Moment.LEAVE, unit)
            size = model.adapter_bytes if model.frozen else model.unit_bytes
            self.gradients.append(write.make(size, Role.GRADIENT, unit))
            incoming, gradient = gradient, write.make(model.hidden_bytes, Role.TEMPORARY)
            if not model.late_frees:
                write.free(incoming)
            write.free(inner[unit])
            write.mark(Moment.LEAVE_BACKWARD, unit)
            if model.late_frees:
                write.free(incoming)
            write.free(hidden.pop())
        self.gradients.append(write.make(model.root_bytes, Role.GRADIENT, 0))
        write.free(gradient)


def recorded(model: Model) -> Tape:
    steps = Steps(model)
    steps.load()
    for _ in range(model.steps):
        steps.step()
    return steps.ended()


def live_bytes(tape: Tape) -> NDArray[np.int64]:
    """(events,) bytes as asked for that are live behind each event."""
    storages = np.where(tape.events >= 0, tape.events, ~tape.events)
    return np.cumsum(np.where(tape.events >= 0, 1, -1) * tape.sizes[storages])


def peak_bytes(tape: Tape) -> int:
    return int(live_bytes(tape).max())


def at_mark(tape: Tape, moment: Moment, which: int = -1) -> int:
    """Live bytes in front of the mark."""
    marks = [mark for mark in tape.marks if mark.moment is moment]
    return int(live_bytes(tape)[marks[which].event - 1])


def stored_bytes(tape: Tape, role: Role, unit: int | None = None) -> int:
    chosen = (tape.roles == role) & ((tape.units == unit) if unit is not None else True)
    return int(tape.sizes[chosen].sum())
