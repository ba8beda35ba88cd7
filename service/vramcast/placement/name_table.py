"""Names of one length, and where each stands: a hash table whose every step is done for all asked names at once.

What costs is how many bytes are touched, and in which order. Only the bytes in which the known names differ are
looked up: `gpu-worker-00017.example` is told from its neighbours by one word of eight bytes. The bytes between are
the same in all names, so a caller compares them in one go (`erased`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.placement.table import Ints

Words = npt.NDArray[np.uint64]
Text = bytes | bytearray | memoryview

_WORD_BYTES = 8
_EMPTY = -1
_MOST_MOVES = 500


@dataclass(frozen=True, slots=True)
class Seeds:
    """Odd numbers that nobody outside knows, so that nobody can make names collide."""

    first: np.uint64
    second: np.uint64

    @classmethod
    def drawn(cls, seed: int) -> Seeds:
        first, second = np.random.default_rng(seed).integers(1 << 62, 1 << 63, size=2, dtype=np.uint64).tolist()
        return cls(np.uint64(first | 1), np.uint64(second | 1))


@dataclass(frozen=True, slots=True)
class Rows:
    """Where names stand in a text: `count` of them, the first at `start`, each `stride` bytes after the last."""

    start: int
    stride: int
    count: int


class NameTable:
    """`sample`: one of the names. All are ASCII and equally long."""

    def __init__(self, columns: Mapping[str, int], seeds: Seeds) -> None:
        names = sorted(columns)
        raw = "".join(names).encode()
        self._seeds = seeds
        self._length = len(names[0])
        self.sample = raw[: self._length]
        self._telling = _telling_words(raw, self._length)
        keys = self._keys(raw, Rows(0, self._length, len(names)))
        size = 1 << (2 * len(names)).bit_length()
        while (holders := self._place(keys, size)) is None:
            size *= 2
        self._shift = _shift(size)
        # One more at the end, for the slots that are empty.
        self._slot_ranks = holders.astype(np.int32)
        self._rank_keys = np.append(keys, np.uint64(0))
        self._rank_columns: Ints = np.array([*(columns[name] for name in names), _EMPTY], dtype=np.int64)

    def look_up(self, text: Text, rows: Rows) -> Ints | None:
        """The columns of the known names that have these telling bytes; None where one is not known by them.

        Every known name sits in one of its two slots, so two looks settle each.
        """
        keys = self._keys(text, rows)
        ranks = self._slot_ranks[self._first_slot(keys, self._shift)]
        missed = np.flatnonzero(self._rank_keys[ranks] != keys)
        if len(missed):
            keys = keys[missed]
            others = self._slot_ranks[self._second_slot(keys, self._shift)]
            if (self._rank_keys[others] != keys).any():
                return None
            ranks[missed] = others
        columns = self._rank_columns[ranks]
        return None if columns.min(initial=0) == _EMPTY else columns

    def erased(self, text: Text, rows: Rows) -> bytearray:
        """The text without what tells names apart."""
        left = bytearray(text)
        for word in self._words(left, rows):
            word[:] = 0
        return left

    def _keys(self, text: Text, rows: Rows) -> Words:
        """A number for each name. With one telling word it is that word, so equal numbers mean equal words; with
        more it is a hash of them that nobody outside can foresee."""
        first, *others = self._words(text, rows)
        if self._length < _WORD_BYTES:
            padded = np.zeros((rows.count, _WORD_BYTES), dtype=np.uint8)
            padded[:, : self._length] = first
            short: Words = padded.view("<u8").reshape(rows.count)
            return short
        keys: Words = first.copy()
        for word in others:
            keys *= self._seeds.second
            keys ^= keys >> np.uint64(29)
            keys ^= word
        return keys

    def _words(self, text: Text, rows: Rows) -> list[npt.NDArray[np.unsignedinteger]]:
        """The telling words of all names, in place: (names,) each; of names shorter than a word, their bytes."""
        if self._length < _WORD_BYTES:
            return [np.ndarray((rows.count, self._length), np.uint8, text, rows.start, (rows.stride, 1))]
        return [np.ndarray((rows.count,), "<u8", text, rows.start + at, (rows.stride,)) for at in self._telling]

    def _first_slot(self, keys: Words, shift: np.uint64) -> Ints:
        """From the top bits: a product's low bits know only the low bits of what went in, its top bits know all."""
        return ((keys * self._seeds.first) >> shift).view(np.int64)

    def _second_slot(self, keys: Words, shift: np.uint64) -> Ints:
        return (((keys ^ (keys >> np.uint64(32))) * self._seeds.second) >> shift).view(np.int64)

    def _place(self, keys: Words, size: int) -> Ints | None:
        """The holder of each slot, by its position in `keys`; None: too crowded.

        Cuckoo hashing at most half full: who finds a slot taken sends its holder to that one's other slot.
        """
        firsts = self._first_slot(keys, _shift(size)).tolist()
        seconds = self._second_slot(keys, _shift(size)).tolist()
        holders = [_EMPTY] * size
        for newcomer, first in enumerate(firsts):
            homeless, slot = newcomer, first
            for _ in range(_MOST_MOVES):
                holders[slot], homeless = homeless, holders[slot]
                if homeless == _EMPTY:
                    break
                slot = seconds[homeless] if slot == firsts[homeless] else firsts[homeless]
            else:
                return None
        return np.array(holders, dtype=np.int64)


def _shift(size: int) -> np.uint64:
    """What leaves as many bits of 64 as it takes to number `size` slots."""
    return np.uint64(65 - size.bit_length())


def _telling_words(raw: bytes, length: int) -> list[int]:
    """Where the words start that cover every byte in which the names differ."""
    letters = np.frombuffer(raw, dtype=np.uint8).reshape(-1, length)
    starts, covered = [], -1
    for position in np.flatnonzero((letters != letters[0]).any(axis=0)).tolist():
        if position > covered:
            starts.append(max(0, min(position, length - _WORD_BYTES)))
            covered = starts[-1] + _WORD_BYTES - 1
    return starts or [0]
