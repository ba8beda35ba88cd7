"""Finds the polynomial behind sizes that were seen at a few points: few terms, exact coefficients, or none at all.

Every polynomial is checked with at least one point more than it has terms, mostly with several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.sizes import CONSTANT, Factor, Monomial, Point, Variable, value_of

Polynomial = dict[Monomial, Fraction]
_MOST_TERMS = 4
_LARGEST_DENOMINATOR = 1 << 16
# Kernels pad a length to a multiple of these; strides and patches divide an image's side by these.
_PADDINGS = (8, 16, 32, 64, 128)
_STRIDES = (2, 4, 8, 14, 16, 32, 64)
# Convolutions that pad round up, and poolings behind them down. A stem of four pixels is the most usual.
_STEMS = (4, 2, 8, 16)
_LATER = (2, 4, 8)
_EXACT = 1e-9


def fit_all(points: Sequence[Point], sizes: NDArray[np.int64]) -> list[Polynomial | None]:
    """`sizes` (points, columns). None for a column that no polynomial explains."""
    found: list[Polynomial | None] = [None] * sizes.shape[1]
    plain, *rounded = _families(points[0])
    # Fewest terms first, whatever is rounded in them: a long polynomial can imitate a rounded one at a few points.
    for count in range(1, min(len(points), _MOST_TERMS + 1)):
        for family in [plain, *rounded] if count < _MOST_TERMS else [plain]:
            missing = [at for at, polynomial in enumerate(found) if polynomial is None]
            if not missing:
                return found
            for at, polynomial in _fit(points, family, _choices(len(family), count), sizes[:, missing]).items():
                found[missing[at]] = polynomial
    return found


def approximate(points: Sequence[Point], sizes: NDArray[np.int64]) -> Polynomial:
    """The closest polynomial with few terms: what is left where no exact one was found. `sizes` (points,)."""
    family = next(_families(points[0]))
    scale = np.maximum(sizes, 1.0)
    best: tuple[float, Polynomial] = (np.inf, {CONSTANT: Fraction(int(sizes.max()))})
    for terms in (row for count in range(1, len(points) // 2 + 1) for row in _choices(len(family), count)):
        matrix = _matrix(points, [family[term] for term in terms]) / scale[:, None]
        coefficients = np.linalg.lstsq(matrix, sizes / scale, rcond=None)[0]
        off = float(np.abs(matrix @ coefficients - sizes / scale).max())
        if (coefficients >= 0).all() and off < best[0]:
            exact = [Fraction(round(float(value) * 256), 256) for value in coefficients]
            best = off, {family[term]: value for term, value in zip(terms, exact, strict=True) if value}
    return best[1]


def _families(point: Point) -> Iterator[list[Monomial]]:
    """Sets of monomials that may occur together, the likeliest first."""
    inner = Variable.LENGTH if Variable.LENGTH in point else Variable.SIDE if Variable.SIDE in point else None
    outer = [CONSTANT, *((Factor(v),) for v in (Variable.BATCH, Variable.RANK) if v in point)]
    if len(outer) == 3:
        outer.append((Factor(Variable.BATCH), Factor(Variable.RANK)))
    square: Monomial = (Factor(Variable.BATCH, 2),)
    if inner is None:
        yield [*outer, square]
        return
    powers = (1, 2) if inner is Variable.LENGTH else (1, 2, 4)
    yield [*_products(outer, [CONSTANT, *((Factor(inner, power),) for power in powers)]), square]
    for divisor, rounds_up, then in _roundings(inner):
        rounded = [(Factor(inner, power, divisor, rounds_up, then),) for power in powers]
        mixed = [(Factor(inner), Factor(inner, 1, divisor, rounds_up, then))]
        yield _products(outer, [CONSTANT, *rounded, *mixed])


def _roundings(inner: Variable) -> Iterator[tuple[int, bool, int]]:
    """Divisor, whether it rounds up, and a second divisor that rounds the other way."""
    for divisor, rounds_up in product(_PADDINGS if inner is Variable.LENGTH else _STRIDES, (True, False)):
        yield divisor, rounds_up, 1
    if inner is Variable.SIDE:
        yield from ((divisor, True, then) for divisor, then in product(_STEMS, _LATER))


def _products(outer: Sequence[Monomial], inner: Sequence[Monomial]) -> list[Monomial]:
    return [left + right for right in inner for left in outer]


def _choices(size: int, count: int) -> NDArray[np.int64]:
    """(sets, count) all choices of so many monomials."""
    return np.array(list(combinations(range(size), count)), np.int64).reshape(-1, count)


def _matrix(points: Sequence[Point], terms: Sequence[Monomial]) -> NDArray[np.float64]:
    """(points, terms)"""
    return np.array([[float(value_of(term, point)) for term in terms] for point in points])


def _fit(
    points: Sequence[Point], family: Sequence[Monomial], terms: NDArray[np.int64], sizes: NDArray[np.int64]
) -> dict[int, Polynomial]:
    """Column to polynomial, for the columns that one of these sets of terms explains."""
    matrices = _matrix(points, family)[:, terms].transpose(1, 0, 2)  # (sets, points, terms)
    # A side that is smaller than a divisor leaves only zeros.
    matrices = matrices / np.maximum(np.linalg.norm(matrices, axis=1, keepdims=True), 1.0)
    off = np.abs(matrices @ (np.linalg.pinv(matrices) @ sizes) - sizes).max(axis=1)  # (sets, columns)
    likely = off <= _EXACT * np.maximum(sizes.max(axis=0), 1)
    found: dict[int, Polynomial] = {}
    for at in np.flatnonzero(likely.any(axis=0)).tolist():
        for row in np.flatnonzero(likely[:, at]).tolist():
            polynomial = _solve(points, [family[term] for term in terms[row]], sizes[:, at])
            if polynomial is not None:
                found[at] = polynomial
                break
    return found


def _solve(points: Sequence[Point], terms: Sequence[Monomial], sizes: NDArray[np.int64]) -> Polynomial | None:
    """Exactly, by elimination over all points; None if they contradict each other."""
    rows = [
        [*(Fraction(value_of(term, point)) for term in terms), Fraction(int(size))]
        for point, size in zip(points, sizes, strict=True)
    ]
    for column in range(len(terms)):
        pivot = next((at for at in range(column, len(rows)) if rows[at][column]), None)
        if pivot is None:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column][column]
        rows[column] = [value / lead for value in rows[column]]
        for at, row in enumerate(rows):
            if at != column and row[column]:
                times = row[column]
                rows[at] = [value - times * other for value, other in zip(row, rows[column], strict=True)]
    if any(row[-1] for row in rows[len(terms) :]):
        return None
    solved = {term: rows[at][-1] for at, term in enumerate(terms)}
    fine = all(value.denominator <= _LARGEST_DENOMINATOR for value in solved.values())
    return {term: value for term, value in solved.items() if value} if fine else None
