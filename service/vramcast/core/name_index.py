"""From a JSON array of node names to the nodes' columns, without making a string of each.

kube-scheduler sends every feasible node's name with every call, thousands of them in no fixed order. Decoding them to
strings and looking each up in a dict costs several times what the decision itself does. Names are short runs of bytes
between quotes, so they are cut, hashed and looked up as arrays instead; what is not the plain compact form that Go
writes, or holds a name that is not known, is left to the slow way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.core.table import Ints

Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]

_QUOTE, _COMMA, _OPEN, _CLOSE = b'",[]'
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_WORD_BYTES = 8
_MAX_NAME = 253
# Keeps the first n bytes of a little-endian word.
_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(_WORD_BYTES + 1)], dtype=np.uint64)
_EMPTY = -1
_MOST_MOVES = 500
# A few dozen names are decoded faster than arrays are set up.
_WORTH_IT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Found:
    """`name_bytes`: the length of each name where all are equally long, as in one pool of nodes they often are."""

    columns: Ints
    name_bytes: int | None


class NameIndex:
    """`seed`: makes the hash one that nobody outside can know, so nobody can make two names collide."""

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._multiplier, self._start = (int(n) | 1 for n in draw.integers(1 << 62, 1 << 63, size=2, dtype=np.uint64))
        self._columns: dict[str, int] = {}
        self._quoted: npt.NDArray[np.object_] = np.empty(64, dtype=np.object_)
        self._plain = True
        self._stale = True
        self._slot_hashes: Words = np.zeros(1, dtype=np.uint64)
        self._slot_columns: Ints = np.full(1, _EMPTY, dtype=np.int64)

    def put(self, name: str, column: int) -> None:
        if column >= len(self._quoted):
            self._quoted = np.resize(self._quoted, 2 * column + 1)
        self._columns[name] = column
        self._quoted[column] = f'"{name}"'.encode()
        # Kubernetes allows no other names; should one come from elsewhere, everything goes the slow way.
        self._plain = self._plain and _NAME.fullmatch(name) is not None
        self._stale = True

    def drop(self, name: str) -> None:
        self._columns.pop(name, None)
        self._stale = True

    def quoted(self, columns: Ints) -> list[bytes]:
        """The names in JSON, of columns that `find` returned."""
        names: list[bytes] = self._quoted[columns].tolist()
        return names

    def find(self, raw: bytes) -> Found | None:
        """The columns of a compact JSON array of known names, in its order; None for anything else."""
        if len(raw) < _WORTH_IT_BYTES or not self._plain or not self._columns or b"\\" in raw:
            return None
        buffer = _padded(raw)
        cut = _cut(buffer, len(raw))
        if cut is None:
            return None
        if self._stale:
            self._build()
        columns = self._look_up(self._hash(buffer, *cut))
        if columns is None:
            return None
        lengths = cut[1]
        return Found(columns, int(lengths[0]) if lengths.min() == lengths.max() else None)

    def _look_up(self, hashes: Words) -> Ints | None:
        """Every known name sits in one of its two slots, so two looks settle each."""
        first, second = self._slots(hashes)
        columns = self._slot_columns[first]
        missed = np.flatnonzero(self._slot_hashes[first] != hashes)
        if len(missed):
            other = second[missed]
            if (self._slot_hashes[other] != hashes[missed]).any():
                return None
            columns[missed] = self._slot_columns[other]
        return None if columns.min() == _EMPTY else columns

    def _build(self) -> None:
        """Cuckoo hashing at most half full: who finds a slot taken sends its holder to that one's other slot."""
        names = sorted(self._columns)
        raw = quote_all(names)
        buffer = _padded(raw)
        cut = _cut(buffer, len(raw))
        hashes = self._hash(buffer, *cut) if cut is not None else np.zeros(0, dtype=np.uint64)
        size = 1 << (2 * len(names)).bit_length()
        while (table := self._place(hashes, size)) is None:
            size *= 2
        self._slot_hashes, holders = table
        columns = np.array([self._columns[name] for name in names], dtype=np.int64)
        self._slot_columns = np.where(holders == _EMPTY, _EMPTY, columns[holders])
        self._stale = False

    def _place(self, hashes: Words, size: int) -> tuple[Words, Ints] | None:
        """The hash and the holder (by position in `hashes`) of each slot; None: too crowded."""
        slots = np.stack(self._slots(hashes, size), axis=1).tolist()
        holders = [_EMPTY] * size
        for newcomer in range(len(slots)):
            homeless, slot = newcomer, slots[newcomer][0]
            for _ in range(_MOST_MOVES):
                holders[slot], homeless = homeless, holders[slot]
                if homeless == _EMPTY:
                    break
                first, second = slots[homeless]
                slot = second if slot == first else first
            else:
                return None
        placed = np.array(holders, dtype=np.int64)
        return np.where(placed == _EMPTY, np.uint64(0), hashes[placed]), placed

    def _slots(self, hashes: Words, size: int = 0) -> tuple[Ints, Ints]:
        """From the top bits: a product's low bits know only the low bits of what went in, its top bits know all."""
        shift = np.uint64(65 - (size or len(self._slot_hashes)).bit_length())
        first = (hashes * np.uint64(self._multiplier)) >> shift
        second = ((hashes ^ (hashes >> np.uint64(32))) * np.uint64(self._start)) >> shift
        return first.astype(np.int64), second.astype(np.int64)

    def _hash(self, buffer: Bytes, starts: Ints, lengths: Ints) -> Words:
        """Eight bytes at a time, all names at once; a name's hash does not depend on its neighbours."""
        shortest, longest = int(lengths.min()), int(lengths.max())
        width = -(-longest // _WORD_BYTES)
        # All bytes of a name in one go, and what follows it up to the longest name's end: masked away below.
        records = np.ndarray((len(buffer) - _MAX_NAME,), dtype=f"V{width * _WORD_BYTES}", buffer=buffer, strides=(1,))
        words = records[starts].view("<u8").reshape(-1, width)
        multiplier = np.uint64(self._multiplier)
        hashes = lengths.astype(np.uint64) * np.uint64(self._start)
        for position in range(width):
            offset = position * _WORD_BYTES
            word = words[:, position]
            if shortest < offset + _WORD_BYTES:
                word &= _MASKS[np.clip(lengths - offset, 0, _WORD_BYTES)]
            word ^= hashes
            word *= multiplier
            word ^= word >> np.uint64(29)
            hashes = word if shortest > offset else np.where(lengths > offset, word, hashes)
        return hashes


def _cut(buffer: Bytes, length: int) -> tuple[Ints, Ints] | None:
    """Where each string of `["a","b"]` starts, and how long it is; None unless it is exactly of that form."""
    text = buffer[:length]
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) < 2 or len(quotes) % 2:
        return None
    opening, closing = quotes[::2], quotes[1::2]
    framed = text[0] == _OPEN and opening[0] == 1 and text[-1] == _CLOSE and closing[-1] == length - 2
    apart = opening[1:] - closing[:-1]
    if not framed or (apart != 2).any() or (text[closing[:-1] + 1] != _COMMA).any():
        return None
    lengths = closing - opening - 1
    return (opening + 1, lengths) if lengths.min() > 0 and lengths.max() <= _MAX_NAME else None


def _padded(raw: bytes) -> Bytes:
    """With room to read as many bytes as the longest name has, from the start of the last."""
    return np.frombuffer(raw + bytes(_MAX_NAME + _WORD_BYTES), dtype=np.uint8)


def quote_all(names: Sequence[str]) -> bytes:
    """The compact form of plain names."""
    return ("[" + ",".join(f'"{name}"' for name in names) + "]").encode()
