"""A piece of a recording with a task's accumulation, sharding and optimizer, for every batch and length.

These rewrite the order of events by the weights alone, so the result has the same events at every batch and length.
They are applied once, to a tape in which each size that varies is a *ticket* that names its row of the table. Where a
ticket comes out, the storage has that row's size; all other sizes are constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.recording import Piece
from vramcast.forecast.sizes import Point, SizeTable, Variable
from vramcast.forecast.tape import Tape

# No tensor is as large as the smallest number that a ticket could be divided into.
_TICKET = 1 << 60
_LARGEST = 1 << 44
# What a prepared tape answers any value of. The rank of LoRA changes the weights.
_VARIES = frozenset({Variable.BATCH, Variable.LENGTH, Variable.SIDE})


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    template: Tape  # its sizes are not used
    rows: NDArray[np.int32]  # (storages,) of the table, or behind it of the constants
    table: SizeTable
    constants: NDArray[np.int64]

    def tape(self, point: Point) -> Tape:
        """Raises InvalidInput where the recording's sizes end."""
        return self.template.resized(np.concatenate([self.table.at(point), self.constants])[self.rows])


def prepared(piece: Piece, point: Point, transform: Callable[[Tape], Tape]) -> Prepared | None:
    """For points of the same rank. None if `transform` computes with a size that varies."""
    rows = len(piece.table.denominators)
    sizes = np.where(_varying_rows(piece.table), _TICKET + np.arange(rows), piece.table.at(point))
    try:
        result = transform(piece.template.resized(sizes[piece.classes]))
    except OverflowError:
        return None
    constant = np.flatnonzero(result.sizes < _TICKET)
    constants = result.sizes[constant]
    if result.sizes.max(initial=0) >= _TICKET + rows or constants.max(initial=0) >= _LARGEST:
        return None
    every = (result.sizes - _TICKET).astype(np.int32)
    every[constant] = np.arange(rows, rows + len(constants))
    # Zeros that nobody reads take no memory.
    return Prepared(result.resized(np.zeros(len(every), np.int64)), every, piece.table, constants)


def _varying_rows(table: SizeTable) -> NDArray[np.bool_]:
    terms = [any(factor.variable in _VARIES for factor in monomial) for monomial in table.monomials]
    return np.asarray((table.numerators[:, terms] != 0).any(axis=1), np.bool_)
