"""What tests ask of a tape."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.tape import Moment, Role, Tape


def bytes_of(tape: Tape, role: Role) -> int:
    return int(tape.sizes[tape.roles == role].sum())


def live_bytes(tape: Tape) -> NDArray[np.int64]:
    """(events,) after each event."""
    made = tape.events >= 0
    signed = np.where(made, tape.sizes[np.where(made, tape.events, ~tape.events)], -tape.sizes[~tape.events * ~made])
    return np.cumsum(signed)


def peak_bytes(tape: Tape) -> int:
    return int(live_bytes(tape).max())


def marked(tape: Tape, moment: Moment) -> list[int]:
    return [mark.event for mark in tape.marks if mark.moment is moment]


def steps(tape: Tape) -> list[list[tuple[str, int]]]:
    """Each step's events as sizes made and freed."""
    bounds = [*marked(tape, Moment.STEP), *marked(tape, Moment.END)]
    return [
        [("made" if event >= 0 else "freed", int(tape.sizes[max(event, ~event)])) for event in tape.events[begin:end]]
        for begin, end in itertools.pairwise(bounds)
    ]  # fmt: skip


def made_between(tape: Tape, begin: int, end: int) -> list[int]:
    """Sizes of the storages that these events make."""
    return [int(tape.sizes[event]) for event in tape.events[begin:end] if event >= 0]
