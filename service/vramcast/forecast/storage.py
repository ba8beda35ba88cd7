"""A recording as bytes for the catalog, and as text for the `profile` annotation: `v2:` and URL-safe base64.

The bytes are a checksum and what LZMA compressed (a third less than zlib, whose window is shorter than a step). Inside
is a JSON header with the sizes' polynomials, and behind it, for each piece, one number per event: for a storage that is
made, its *kind* (polynomial, role, stream); for one that is freed, where it is among the others (`event_numbers.py`).
Repeated layers and steps repeat the same numbers, which collapse. Numbers are stored plane by plane, all low bytes
first.

Input may be hostile, so every count is limited before anything is built from it.
"""

from __future__ import annotations

import base64
import binascii
import lzma
import zlib
from collections.abc import Sequence
from dataclasses import astuple
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast.event_numbers import by_age, by_stack, from_ages, from_stacks
from vramcast.forecast.recording import NO_LIMIT, Piece, Recording, Span
from vramcast.forecast.sizes import Factor, SizeTable, Variable
from vramcast.forecast.tape import Mark, Moment, Role, Tape

MARK = "v2:"
MOST_TEXT_BYTES = 128 << 10
# The largest network that was tried, Mixtral with a quantized base, has 322,000. A hostile tape of this size replays in
# seconds.
MOST_EVENTS = 400_000
TO_RECORD_LESS = (
    "Record fewer micro-batches, iterations or layers in a step (two micro-batches take as much memory as more), or "
    "describe the task by parameters and activations"
)
# Of all pieces together. The deepest network that was tried has 1,000 blocks and 12,000 marks.
_MOST_MARKS = 1 << 14
_MOST_UNIT = 1 << 11
_MOST_CELLS = 1 << 18  # of the tables of sizes
_MOST_INFO_CHARACTERS = 256
_MOST_UNPACKED_BYTES = 4 << 20
_MOST_COEFFICIENT = 1 << 53
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 4 << 20, "pb": 0}]
_MOMENTS = tuple(Moment)

_Number = Annotated[int, Meta(ge=0, le=NO_LIMIT)]
_Positive = Annotated[int, Meta(ge=1, le=NO_LIMIT)]
_Coefficient = Annotated[int, Meta(ge=-_MOST_COEFFICIENT, le=_MOST_COEFFICIENT)]
_Count = Annotated[int, Meta(ge=0, le=MOST_EVENTS)]
_Info = Annotated[str, Meta(max_length=_MOST_INFO_CHARACTERS)]


class _Factor(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    variable: Variable
    power: Annotated[int, Meta(ge=1, le=4)]
    divisor: Annotated[int, Meta(ge=1, le=4096)]
    rounds_up: bool
    then: Annotated[int, Meta(ge=1, le=4096)] = 1


class _Row(msgspec.Struct, array_like=True):
    denominator: Annotated[int, Meta(ge=1, le=1 << 24)]
    terms: Annotated[list[tuple[_Number, _Coefficient]], Meta(max_length=8)]


class _Piece(msgspec.Struct):
    spans: list[tuple[_Positive, _Positive, _Positive]]
    error: Annotated[float, Meta(ge=0, le=1e6)]
    monomials: Annotated[list[Annotated[list[_Factor], Meta(max_length=4)]], Meta(max_length=256)]
    rows: Annotated[list[_Row], Meta(max_length=1 << 16)]
    kinds: Annotated[list[tuple[_Number, Role, Annotated[int, Meta(ge=0, le=255)], bool]], Meta(max_length=1 << 16)]
    events: _Count
    units: _Count  # storages that belong to a unit
    marks: _Count
    stacked: bool = False  # how events are numbered, see `event_numbers.py`


class _Header(msgspec.Struct):
    variables: Annotated[list[Variable], Meta(max_length=len(Variable))]
    pieces: Annotated[list[_Piece], Meta(min_length=1, max_length=64)]
    info: Annotated[dict[_Info, _Info], Meta(max_length=64)] = {}


def encode(recording: Recording) -> str:
    return MARK + base64.urlsafe_b64encode(pack(recording, small=True)).decode()


def decode(text: str) -> Recording:
    """Raises InvalidInput if the text is damaged, hostile or of another version."""
    if not text.startswith(MARK):
        raise InvalidInput(f"it starts with {text[:6]!r} instead of {MARK!r}")
    if len(text) > MOST_TEXT_BYTES:
        raise InvalidInput(f"it has {len(text):,} characters, more than {MOST_TEXT_BYTES:,}")
    try:
        packed = base64.b64decode(text.removeprefix(MARK), b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(f"it is not base64: {error}") from error
    return unpack(packed)


def pack(recording: Recording, *, small: bool = False) -> bytes:
    """`small` is a fraction of the size, and takes longer to read.

    Raises InvalidInput for a recording that `unpack` would refuse: whoever records it can still do something.
    """
    pieces, body = [], b""
    for piece in recording.pieces:
        piece_header, numbers = _pack_piece(piece, recording.variables, small=small)
        pieces.append(piece_header)
        body += numbers
    header = msgspec.json.encode(_Header(list(recording.variables), pieces, dict(recording.info)))
    data = len(header).to_bytes(4, "little") + header + body
    try:
        _check_totals(pieces)
        packed = zlib.crc32(data).to_bytes(4, "little") + lzma.compress(data, lzma.FORMAT_RAW, filters=_FILTERS)
        unpack(packed)
    except InvalidInput as error:
        raise InvalidInput(f"the recording cannot be stored: {error}. {TO_RECORD_LESS}") from error
    return packed


def unpack(packed: bytes) -> Recording:
    """Raises InvalidInput."""
    data = _decompressed(packed)
    start = 4 + int.from_bytes(data[:4], "little")
    try:
        header = msgspec.json.decode(data[4:start], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"its header is invalid: {error}") from error
    _check_totals(header.pieces)
    body = _Reader(data, start)
    pieces = tuple(_unpack_piece(piece, header.variables, body) for piece in header.pieces)
    body.check_end()
    return Recording(tuple(header.variables), pieces, header.info)


def _check_totals(pieces: Sequence[_Piece]) -> None:
    totals = (
        ("events", MOST_EVENTS, sum(piece.events for piece in pieces)),
        ("marks", _MOST_MARKS, sum(piece.marks for piece in pieces)),
        ("terms of sizes", _MOST_CELLS, sum(len(piece.rows) * len(piece.monomials) for piece in pieces)),
    )
    for name, most, total in totals:
        if total > most:
            raise InvalidInput(f"it has {total:,} {name}, more than {most:,}")


def _decompressed(packed: bytes) -> bytes:
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=_FILTERS)
    try:
        data = unpacker.decompress(packed[4:], _MOST_UNPACKED_BYTES)
    except (lzma.LZMAError, EOFError) as error:
        raise InvalidInput(f"it cannot be unpacked: {error}") from error
    if not unpacker.eof:
        raise InvalidInput("it is truncated, or unpacks to more than any recording")
    if zlib.crc32(data) != int.from_bytes(packed[:4], "little"):
        raise InvalidInput("its checksum is wrong")
    return data


# ---------------------------------------------------------------------- one piece


def _pack_piece(piece: Piece, variables: Sequence[Variable], *, small: bool) -> tuple[_Piece, bytes]:
    tape, table = piece.template, piece.table
    has_unit = tape.units >= 0
    streams = tape.streams if len(tape.streams) else np.zeros(len(tape.sizes), np.uint8)
    each = np.stack([piece.classes, tape.roles, streams, has_unit]).astype(np.int64)  # (4, storages)
    kinds, kind_of = np.unique(each, axis=1, return_inverse=True)
    stacked = by_stack(tape, kind_of.ravel()) if small else None
    events = by_age(tape, kind_of.ravel()) if stacked is None else stacked
    units = _steps(tape.units[has_unit])
    places = _steps([mark.event for mark in tape.marks])
    mark_units = _steps([mark.unit for mark in tape.marks])
    header = _Piece(
        spans=[(span.low, span.high, span.step) for span in (piece.spans[variable] for variable in variables)],
        error=piece.error,
        monomials=[[_Factor(*astuple(factor)) for factor in terms] for terms in table.monomials],
        rows=[
            _Row(denominator, [(at, value) for at, value in enumerate(row) if value])
            for denominator, row in zip(table.denominators.tolist(), table.numerators.tolist(), strict=True)
        ],
        kinds=[(row, Role(role), stream, bool(unit)) for row, role, stream, unit in kinds.T.tolist()],
        events=len(tape.events),
        units=len(units),
        marks=len(tape.marks),
        stacked=stacked is not None,
    )
    moments = np.array([mark.moment for mark in tape.marks], np.int64)
    numbers = (events, _folded(units), places, moments, _folded(mark_units))
    return header, b"".join(_planes(array) for array in numbers)


def _unpack_piece(header: _Piece, variables: Sequence[Variable], body: _Reader) -> Piece:
    numbers = body.numbers(header.events)
    units = np.cumsum(_unfolded(body.numbers(header.units)))
    places = np.cumsum(body.numbers(header.marks))
    moments = body.numbers(header.marks)
    mark_units = np.cumsum(_unfolded(body.numbers(header.marks)))
    roles_of_kinds = [role for _, role, _, _ in header.kinds]
    events, kind_of = from_stacks(numbers, roles_of_kinds) if header.stacked else from_ages(numbers)
    kinds = np.array(header.kinds, np.int64).reshape(-1, 4).T
    if len(kind_of) and kind_of.max() >= len(header.kinds):
        raise InvalidInput("an event makes a storage of an unknown kind")
    classes = kinds[0][kind_of]
    roles, streams, has_unit = (of_kind.astype(np.uint8)[kind_of] for of_kind in kinds[1:])
    if has_unit.sum() != len(units) or (len(units) and not 0 <= units.min() <= units.max() < _MOST_UNIT):
        raise InvalidInput("the units do not match the storages")
    if (
        (moments >= len(Moment)).any()
        or (places > len(numbers)).any()
        or ((mark_units < 0) | (mark_units >= _MOST_UNIT)).any()
    ):
        raise InvalidInput("a mark is invalid")
    all_units = np.full(len(kind_of), -1, np.int16)
    all_units[has_unit.astype(np.bool_)] = units
    marks = zip(places.tolist(), moments.tolist(), mark_units.tolist(), strict=True)
    template = Tape(
        sizes=np.zeros(len(kind_of), np.int64),
        roles=roles,
        units=all_units,
        events=events,
        marks=tuple(Mark(event, _MOMENTS[moment], unit) for event, moment, unit in marks),
        streams=streams if streams.any() else np.zeros(0, np.uint8),
    )
    table = _table(header, variables)
    if len(classes) and classes.max() >= len(header.rows):
        raise InvalidInput("a storage has a size that is not in the table")
    return Piece(_spans(header, variables), template, classes.astype(np.uint16), table, header.error)


def _spans(header: _Piece, variables: Sequence[Variable]) -> dict[Variable, Span]:
    if len(header.spans) != len(variables) or len(set(variables)) != len(variables):
        raise InvalidInput("the spans do not match the variables")
    if any(low > high for low, high, _ in header.spans):
        raise InvalidInput("a span ends before it begins")
    return {variable: Span(*span) for variable, span in zip(variables, header.spans, strict=True)}


def _table(header: _Piece, variables: Sequence[Variable]) -> SizeTable:
    if any(factor.variable not in variables for terms in header.monomials for factor in terms):
        raise InvalidInput("a size depends on a variable that the recording does not have")
    numerators = np.zeros((len(header.rows), len(header.monomials)), np.int64)
    for at, row in enumerate(header.rows):
        for term, value in row.terms:
            if term >= len(header.monomials):
                raise InvalidInput("a size has an unknown term")
            numerators[at, term] = value
    monomials = tuple(
        tuple(Factor(f.variable, f.power, f.divisor, f.rounds_up, f.then) for f in terms) for terms in header.monomials
    )
    return SizeTable(monomials, numerators, np.array([row.denominator for row in header.rows], np.int64))


# ---------------------------------------------------------------------- arrays as bytes


def _steps(numbers: Sequence[int] | NDArray[np.int16]) -> NDArray[np.int64]:
    """What each number is more than the one before it."""
    steps = np.array(numbers, np.int64)
    steps[1:] -= steps[:-1].copy()
    return steps


def _folded(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, -1, 1, -2 ... as 0, 1, 2, 3 ..."""
    return np.where(numbers < 0, -2 * numbers - 1, 2 * numbers)


def _unfolded(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.where(numbers % 2, -(numbers + 1) // 2, numbers // 2)


def _planes(numbers: NDArray[np.int64]) -> bytes:
    """How many bytes a number has, then all low bytes, then the next ones."""
    width = max(1, (int(numbers.max(initial=0)).bit_length() + 7) // 8)
    return bytes([width]) + b"".join((numbers >> 8 * at & 255).astype(np.uint8).tobytes() for at in range(width))


class _Reader:
    """Reads planes of numbers, one array after the other."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._at = data, start

    def numbers(self, count: int) -> NDArray[np.int64]:
        """(count,)"""
        width = self._data[self._at] if self._at < len(self._data) else 0
        stop = self._at + 1 + width * count
        if not 1 <= width <= 4 or stop > len(self._data):
            raise InvalidInput("its numbers are truncated")
        planes = np.frombuffer(self._data, np.uint8, width * count, self._at + 1).reshape(width, count)
        self._at = stop
        numbers: NDArray[np.int64] = planes[0].astype(np.int64)
        for at in range(1, width):
            numbers |= planes[at].astype(np.int64) << 8 * at
        return numbers

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise InvalidInput(f"{len(self._data) - self._at} bytes are left over")
