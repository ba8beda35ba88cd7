"""A recording: a network's training steps at any batch, length or image side, and LoRA rank.

It has one or more *pieces*. Within a piece the order of events does not depend on the point, only the sizes do, and
these are polynomials. Where the order changes (one sample, a sliding window that begins to matter, image sides that
need padding) another piece begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.sizes import Point, SizeTable, Variable, shown
from vramcast.forecast.tape import Tape

# A batch or a rank may be larger than any that was recorded: neither changes what a step does.
ENDLESS = frozenset({Variable.BATCH, Variable.RANK})
NO_LIMIT = 1 << 31
# In the info of a recording of a denoiser: its lengths are numbers of latents.
COUNTS, LATENTS = "length", "latents"
# Its LoRA matrices have the number format of the base, as diffusers adds them.
ADAPTERS, NARROW = "adapters", "16-bit"


@dataclass(frozen=True, slots=True)
class Span:
    """The values of one variable that a piece answers: from `low` to `high`, multiples of `step`."""

    low: int
    high: int
    step: int = 1

    def contains(self, value: int) -> bool:
        return self.low <= value <= self.high and value % self.step == 0

    def distance(self, value: int) -> float:
        """By what factor the value lies outside, as a logarithm."""
        if value < 1:
            return inf
        return max(0.0, log(self.low / value), log(value / self.high))

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        values = f"{self.low} and up" if self.high >= NO_LIMIT else f"{self.low} to {self.high}"
        return f"{values} in steps of {self.step}" if self.step > 1 else values


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    spans: Mapping[Variable, Span]
    template: Tape  # its sizes are not used
    classes: NDArray[np.uint16]  # (storages,) rows of the table
    table: SizeTable
    error: float = 0.0  # largest relative error of a peak at the recorded points; 0 where all sizes are exact

    def tape(self, point: Point) -> Tape:
        return self.template.resized(self.table.at(point)[self.classes])

    def contains(self, point: Point) -> bool:
        return all(span.contains(point[variable]) for variable, span in self.spans.items())

    @property
    def is_one_point(self) -> bool:
        return all(span.low == span.high for span in self.spans.values())

    def distance(self, point: Point) -> float:
        return sum(span.distance(point[variable]) for variable, span in self.spans.items())


@dataclass(frozen=True, slots=True, eq=False)
class TapeAt:
    tape: Tape
    notes: tuple[str, ...] = ()  # why the tape may be a little off


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    variables: tuple[Variable, ...]
    pieces: tuple[Piece, ...]
    info: Mapping[str, str] = field(default_factory=dict)  # of what, and with which settings

    def at(self, point: Point) -> TapeAt:
        """Raises InvalidInput outside of what was recorded, and for a variable that is missing or unknown."""
        number, notes = self.piece_at(point)
        return TapeAt(self.pieces[number].tape(point), notes)

    def piece_at(self, point: Point) -> tuple[int, tuple[str, ...]]:
        """The number of the piece that answers, and why it may be a little off. Raises InvalidInput."""
        self._check(point)
        inside = [at for at, piece in enumerate(self.pieces) if piece.contains(point)]
        if inside:
            chosen = max(inside, key=lambda at: sum(span.step for span in self.pieces[at].spans.values()))
            error = self.pieces[chosen].error
            return chosen, () if error < 0.005 else (f"sizes at {shown(point)} are within {error:.1%}",)
        # A piece of one point knows its sizes there and nowhere else.
        solved = [at for at, piece in enumerate(self.pieces) if not piece.is_one_point]
        chosen = min(solved or range(len(self.pieces)), key=lambda at: self.pieces[at].distance(point))
        recorded = ", ".join(f"{variable} {span}" for variable, span in self.pieces[chosen].spans.items())
        return chosen, (f"{shown(point)} was not recorded; answered by the steps of {recorded}",)

    @property
    def counts_latents(self) -> bool:
        return self.info.get(COUNTS) == LATENTS

    def limits(self, variable: Variable) -> tuple[int, int]:
        """The smallest and the largest value that it answers."""
        low = 1 if variable in ENDLESS else min(piece.spans[variable].low for piece in self.pieces)
        return low, max(piece.spans[variable].high for piece in self.pieces)

    def _check(self, point: Point) -> None:
        if set(point) != set(self.variables):
            raise InvalidInput(f"the recording depends on {_names(self.variables)}, not on {_names(tuple(point))}")
        for variable, value in point.items():
            low, high = self.limits(variable)
            if not low <= value <= high:
                raise InvalidInput(f"{variable} {value} is outside of what was recorded, {low} to {high}")


def _names(variables: Sequence[Variable]) -> str:
    return ", ".join(variables) or "nothing"
