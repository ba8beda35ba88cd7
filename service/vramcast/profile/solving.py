"""From tapes at a few points to a recording for all points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import exp, gcd, lcm, log

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import ENDLESS, NO_LIMIT, Piece, Recording, Span
from vramcast.forecast.sizes import CONSTANT, Monomial, Point, SizeTable, Variable
from vramcast.forecast.tape import Tape
from vramcast.profile.fitting import Polynomial, approximate, fit_all

Recorded = tuple[Point, Tape]
# Two terms and a point to check them with.
_FEWEST_POINTS = 3
_MOST_CLASSES = 1 << 16
# One sample often takes another path, so batches begin with two. Ranks and batches must not grow together.
_BATCHES = (2, 3, 5, 3, 7, 2, 4, 6, 9)
_RANKS = (5, 11, 7, 3, 13, 8, 16, 6, 12)
_MULTIPLES = 5
# Where nothing else varies, two batches tell the terms, a third checks them, and one more shows a quadratic term.
_ONLY_BATCHES = 5
# How much more than a multiple, and where in the span. The odd ones lie among the larger values: the order of events
# is another for very small ones. Images have more of them, because networks halve a side again and again. These four
# tell apart every quotient by up to 32 that is rounded up, down, or first up and then down.
_ODD_LENGTHS = ((1, 0.5), (-1, 0.75))
_ODD_SIDES = ((13, 0.5), (-1, 0.75), (-6, 0.9), (-12, 0.6))
# Lengths that people use are multiples of this, and kernels pad the others.
_LENGTH_STEP = 128
# Networks halve an image up to five times. A side that is no multiple of this is rounded somewhere on the way.
SIDE_STEP = 32


def points_for(spans: Mapping[Variable, Span]) -> list[Point]:
    """Where to record: points whose sizes tell the polynomials apart, spread over the spans.

    Spans of BATCH and RANK only say that these vary. Five lengths or sides are multiples of the span's step (of 128, if
    a length has none), from the span's lower end to its upper. The others are a little more or less than a multiple,
    and show what the network does then: whether it rounds up or down, and to what.
    """
    odd = _ODD_SIDES if Variable.SIDE in spans else _ODD_LENGTHS
    values: dict[Variable, list[int]] = {}
    for variable, span in spans.items():
        if variable in ENDLESS:
            values[variable] = list(_BATCHES if variable is Variable.BATCH else _RANKS)
        else:
            length = variable is Variable.LENGTH
            values[variable] = _spread(span, _LENGTH_STEP if length else 1, odd, span.step if length else 1)
    count = _ONLY_BATCHES if set(values) == {Variable.BATCH} else _MULTIPLES + len(odd)
    return [{variable: column[at] for variable, column in values.items()} for at in range(count)]


def _spread(span: Span, usual_step: int, odd: Sequence[tuple[int, float]], unit: int = 1) -> list[int]:
    """The odd ones are so many units more or less than a multiple."""
    step = span.step if span.step > 1 else usual_step
    while step > 1 and span.high // step - -(-span.low // step) < _MULTIPLES - 1:
        step //= 2  # a short span has finer multiples
    low, high = -(-span.low // step) * step, span.high // step * step

    def near(share: float) -> int:
        return step * round(low * exp(share * log(high / low)) / step)

    multiples = [near(at / (_MULTIPLES - 1)) for at in range(_MULTIPLES)]
    return [*multiples, *(min(span.high, max(span.low, near(share) + more * unit)) for more, share in odd)]


def solve(
    recorded: Sequence[Recorded],
    limits: Mapping[Variable, Span] | None = None,
    info: Mapping[str, str] | None = None,
) -> Recording:
    """`limits`: how far lengths and sides may go beyond the recorded values; by default not at all.

    Points whose events are in the same order become one piece. A piece of one or two points answers only these.
    """
    if not recorded:
        raise InvalidInput("nothing was recorded")
    variables = tuple(recorded[0][0])
    if any(tuple(point) != variables for point, _ in recorded):
        raise InvalidInput("the recorded points have different variables")
    pieces: list[Piece] = []
    for group in _same_order(recorded):
        if len(group) >= _FEWEST_POINTS:
            pieces += _pieces(group, limits or {})
        else:
            pieces += [_piece([one], {}) for one in group]
    return Recording(variables, tuple(pieces), dict(info or {}))


def _same_order(recorded: Sequence[Recorded]) -> list[list[Recorded]]:
    groups: dict[tuple[object, ...], list[Recorded]] = {}
    for point, tape in recorded:
        arrays = (tape.events, tape.roles, tape.units, tape.streams)
        key = (*(array.tobytes() for array in arrays), tape.marks)
        groups.setdefault(key, []).append((point, tape))
    return list(groups.values())


def _pieces(group: Sequence[Recorded], limits: Mapping[Variable, Span]) -> list[Piece]:
    """One; or, where odd image sides spoil the polynomials of the even ones, another that has only the even ones."""
    whole = _piece(group, limits)
    even = [one for one in group if one[0].get(Variable.SIDE, 1) % SIDE_STEP == 0]
    exact = all(np.array_equal(whole.tape(point).sizes, tape.sizes) for point, tape in group)
    if exact or not _FEWEST_POINTS <= len(even) < len(group):
        return [whole]
    return [whole, _piece(even, limits)]


def _piece(group: Sequence[Recorded], limits: Mapping[Variable, Span]) -> Piece:
    points = [point for point, _ in group]
    template = group[0][1]
    sizes = np.stack([tape.sizes for _, tape in group])  # (points, storages)
    distinct, column = np.unique(sizes, axis=1, return_inverse=True)
    # Storages of one size may have several roles; the template knows which.
    polynomials = _polynomials(points, distinct)
    if len(polynomials) > _MOST_CLASSES:
        raise InvalidInput(f"the steps have {len(polynomials)} different sizes, more than {_MOST_CLASSES}")
    spans = {variable: _span(variable, points, limits) for variable in points[0]}
    piece = Piece(spans, template, column.ravel().astype(np.uint16), _table(polynomials))
    error = max((_error(piece, point, tape) for point, tape in group), default=0.0)
    return Piece(spans, template, piece.classes, piece.table, error)


def _polynomials(points: Sequence[Point], sizes: NDArray[np.int64]) -> list[Polynomial]:
    if len(points) == 1:
        return [{CONSTANT: Fraction(size)} for size in sizes[0].tolist()]
    found = fit_all(points, sizes)
    return [
        polynomial if polynomial is not None else approximate(points, sizes[:, at])
        for at, polynomial in enumerate(found)
    ]


def _span(variable: Variable, points: Sequence[Point], limits: Mapping[Variable, Span]) -> Span:
    values = [point[variable] for point in points]
    low, high = min(values), max(values)
    if len(points) == 1:
        return Span(low, high)
    if variable in ENDLESS:
        return Span(low, NO_LIMIT)
    wider = limits.get(variable, Span(low, high))
    step = min(gcd(*values), SIDE_STEP) if variable is Variable.SIDE else gcd(*values)
    return Span(min(low, wider.low), max(high, wider.high), max(1, step))


def _table(polynomials: Sequence[Polynomial]) -> SizeTable:
    monomials: list[Monomial] = sorted({term for polynomial in polynomials for term in polynomial})
    column = {monomial: at for at, monomial in enumerate(monomials)}
    numerators = np.zeros((len(polynomials), len(monomials)), np.int64)
    denominators = np.ones(len(polynomials), np.int64)
    for row, polynomial in enumerate(polynomials):
        shared = lcm(*(value.denominator for value in polynomial.values()))
        denominators[row] = shared
        for term, value in polynomial.items():
            numerators[row, column[term]] = int(value * shared)
    return SizeTable(tuple(monomials), numerators, denominators)


def _error(piece: Piece, point: Point, tape: Tape) -> float:
    """How far the peaks are off at a recorded point."""
    said = piece.tape(point)
    if np.array_equal(said.sizes, tape.sizes):
        return 0.0
    ours, true = peaks(said), peaks(tape)
    pairs = ((ours.active_bytes, true.active_bytes), (ours.reserved_bytes, true.reserved_bytes))
    return max(abs(mine - right) / max(right, 1) for mine, right in pairs)
