"""Sizes as polynomials: what a storage takes at any batch, length, image side and LoRA rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from operator import mul

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput

_MOST = 1 << 62


class Variable(StrEnum):
    BATCH = "batch"
    LENGTH = "length"  # tokens of a sequence
    SIDE = "side"  # pixels of a square image
    RANK = "rank"  # of LoRA's matrices


Point = Mapping[Variable, int]


@dataclass(frozen=True, slots=True, order=True)
class Factor:
    """A variable to a power; divided first, and rounded, if kernels pad or strides drop the rest.

    `then` divides once more and rounds the other way: a convolution that pads, then a pooling that does not.
    """

    variable: Variable
    power: int = 1
    divisor: int = 1
    rounds_up: bool = True
    then: int = 1

    def at(self, point: Point) -> int:
        divided = _divided(point[self.variable], self.divisor, self.rounds_up)
        return int(_divided(divided, self.then, not self.rounds_up) ** self.power)


def _divided(value: int, divisor: int, rounds_up: bool) -> int:
    return -(-value // divisor) if rounds_up else value // divisor


Monomial = tuple[Factor, ...]  # an empty one is 1
CONSTANT: Monomial = ()


def value_of(monomial: Monomial, point: Point) -> int:
    return reduce(mul, (factor.at(point) for factor in monomial), 1)


@dataclass(frozen=True, slots=True, eq=False)
class SizeTable:
    """One polynomial per class of storages, with exact coefficients."""

    monomials: tuple[Monomial, ...]
    numerators: NDArray[np.int64]  # (classes, monomials)
    denominators: NDArray[np.int64]  # (classes,)

    def at(self, point: Point) -> NDArray[np.int64]:
        """(classes,) bytes. Raises InvalidInput where no GPU's memory would do, or a polynomial ends."""
        values = [value_of(monomial, point) for monomial in self.monomials]
        if max(values, default=0) >= _MOST:
            raise InvalidInput(_too_large(point))
        roughly = np.abs(self.numerators).astype(np.float64) @ np.array(values, np.float64)
        if (roughly >= _MOST).any():
            raise InvalidInput(_too_large(point))
        sizes = self.numerators @ np.array(values, np.int64) // self.denominators
        if (sizes < 0).any():
            raise InvalidInput(f"the recording does not reach to {shown(point)}: a size would be negative")
        return np.asarray(sizes, np.int64)


def _too_large(point: Point) -> str:
    return f"{shown(point)} is too large: a tensor would take more than any GPU has"


def shown(point: Point) -> str:
    return ", ".join(f"{variable} {value}" for variable, value in point.items())
