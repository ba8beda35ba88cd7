"""Looks up a whole JSON array of node names at once.

kube-scheduler sends the name of every feasible node with every call, in no fixed order. Decoding 5,000 names and
looking each up in a dict takes 0.6 ms, about as long as the decision itself. Names of equal length, the usual case in
one pool of nodes, are records of fixed size: hashed and compared as arrays they take 0.1 ms. Everything else, such as
names of several lengths, an unknown name or a body with spaces, goes through the JSON decoder and the dict.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from vramcast.names import NodeName

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Records = npt.NDArray[np.void]
Text = bytes | bytearray | memoryview

_WORD_BYTES = 8
# Quotes and comma around a name: `"name",`.
_FRAME_BYTES = 3
_EMPTY = -1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
# Names that collide more often than this go through the dict instead.
_MAX_PROBES = 32


class NameIndex:
    """An open-addressing hash table that looks up all names in parallel. Immutable: build a new one after a change."""

    def __init__(self, quoted: bytes, row_bytes: int, columns: Ints) -> None:
        self._row_bytes = row_bytes
        self._rows = np.frombuffer(quoted, dtype=f"V{row_bytes}")  # `"name",` each, (names,)
        self._columns = columns
        self._words = _distinct_words(quoted, row_bytes)
        self._keys = self._hash(quoted, len(columns))
        bits = (8 * len(columns)).bit_length()
        self._shift, self._mask = np.uint64(64 - bits), np.uint64((1 << bits) - 1)
        self._slots = np.full(1 << bits, _EMPTY, dtype=np.int64)
        self._probes = 0

    @classmethod
    def build(cls, columns: Mapping[NodeName, int]) -> NameIndex | None:
        """None where the names are not equally long ASCII, or collide too often."""
        names = list(columns)
        length = len(names[0]) if names else 0
        if length < _WORD_BYTES or any(len(name) != length or not name.isascii() or '"' in name for name in names):
            return None
        quoted = "".join(f'"{name}",' for name in names).encode()
        index = cls(quoted, length + _FRAME_BYTES, np.array(list(columns.values()), dtype=np.int64))
        return index if index._fill() else None

    def _fill(self) -> bool:
        waiting = np.arange(len(self._keys))
        while len(waiting) and self._probes < _MAX_PROBES:
            slots = self._slot(self._keys[waiting], self._probes)
            free = self._slots[slots] == _EMPTY
            self._slots[slots[free]] = waiting[free]  # of several for one slot, the last stays
            waiting = waiting[self._slots[slots] != waiting]
            self._probes += 1
        return not len(waiting)

    def find(self, raw: Text) -> tuple[Ints, Records] | None:
        """The columns of a compact JSON array of known names, and the quoted names in place; None for anything else."""
        count = (len(raw) - 1) // self._row_bytes
        if not count or len(raw) != 1 + count * self._row_bytes or raw[-1:] != b"]":
            return None
        keys = self._hash(raw[1:], count)
        ranks = self._slots[self._slot(keys, 0)]
        for probe in range(1, self._probes):
            missed = np.flatnonzero(self._keys[ranks] != keys)
            if not len(missed):
                break
            ranks[missed] = self._slots[self._slot(keys[missed], probe)]
        # Equal hashes prove nothing. Equal bytes prove the names and the array's form in one comparison.
        # As bytes: a memoryview would compare element by element.
        if np.take(self._rows, ranks).tobytes()[:-1] != bytes(raw[1:-1]):
            return None
        quoted = np.ndarray((count,), f"V{self._row_bytes - 1}", raw, offset=1, strides=(self._row_bytes,))
        return self._columns[ranks], quoted

    def _hash(self, text: Text, count: int) -> Words:
        """One number per row. What the hash leaves out, the comparison of bytes covers."""
        first, *others = (
            np.ndarray((count,), "<u8", text, offset=start, strides=(self._row_bytes,)) for start in self._words
        )
        keys: Words = first * _MULTIPLIER
        for word in others:
            keys ^= keys >> np.uint64(29)
            keys += word
            keys *= _MULTIPLIER
        return keys

    def _slot(self, keys: Words, probe: int) -> Ints:
        """From the top bits: those of a product depend on all bits that went in."""
        return ((keys >> self._shift) + np.uint64(probe) & self._mask).view(np.int64)


def _distinct_words(quoted: bytes, row_bytes: int) -> list[int]:
    """Offsets in a row of the 8-byte words that cover every byte in which the names differ: often a single one."""
    rows = np.frombuffer(quoted, dtype=np.uint8).reshape(-1, row_bytes)
    last = row_bytes - _FRAME_BYTES - _WORD_BYTES + 1
    starts: list[int] = []
    for position in np.flatnonzero((rows != rows[0]).any(axis=0)).tolist():
        if not starts or position >= starts[-1] + _WORD_BYTES:
            starts.append(min(position, last))
    return starts or [last]
