"""From a JSON array of node names to the nodes' columns, without making a string of each.

kube-scheduler sends every feasible node's name with every call, thousands of them in no fixed order. Decoding them to
strings and looking each up in a dict costs several times what the decision itself does. Names are short runs of bytes
between quotes, so they are cut and looked up as arrays instead; what is not the plain compact form that Go writes, or
holds a name that is not known, is left to the slow way.

Names are kept by length, because equally long names are records of fixed size: one pool of nodes, often the whole
cluster, is one such array.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.placement.name_table import NameTable, Rows, Seeds, Text
from vramcast.placement.table import Ints

Bytes = npt.NDArray[np.uint8]

_QUOTE, _COMMA, _OPEN, _CLOSE = b'",[]'
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_MAX_NAME = 253
# Two quotes and a comma.
_FRAME_BYTES = 3
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
        self._seeds = Seeds.drawn(seed)
        self._columns: dict[int, dict[str, int]] = {}  # by the length of the name
        self._tables: dict[int, NameTable] = {}  # made when first needed; without those that are out of date
        self._quoted: npt.NDArray[np.object_] = np.empty(64, dtype=np.object_)
        self._last_frame: tuple[NameTable, Rows, bytearray] | None = None
        self._plain = True

    def put(self, name: str, column: int) -> None:
        if column >= len(self._quoted):
            self._quoted = np.resize(self._quoted, 2 * column + 1)
        self._columns.setdefault(len(name), {})[name] = column
        self._tables.pop(len(name), None)
        self._quoted[column] = f'"{name}"'.encode()
        # Kubernetes allows no other names; should one come from elsewhere, everything goes the slow way.
        self._plain = self._plain and _NAME.fullmatch(name) is not None

    def drop(self, name: str) -> None:
        self._columns.get(len(name), {}).pop(name, None)
        self._tables.pop(len(name), None)

    def quoted(self, columns: Ints) -> list[bytes]:
        """The names in JSON, of columns that `find` returned."""
        names: list[bytes] = self._quoted[columns].tolist()
        return names

    def find(self, raw: Text) -> Found | None:
        """The columns of a compact JSON array of known names, in its order; None for anything else."""
        if len(raw) < _WORTH_IT_BYTES or not self._plain:
            return None
        return self._find_alike(raw) or self._find_mixed(raw)

    def _find_alike(self, raw: Text) -> Found | None:
        """All names as long as the first: then the array is a table, and what frames the names is the same in each."""
        length = bytes(raw[2 : _MAX_NAME + 3]).find(b'"')
        table = self._table(length)
        rows = Rows(2, length + _FRAME_BYTES, (len(raw) - 1) // (length + _FRAME_BYTES))
        if table is None or len(raw) != 1 + rows.stride * rows.count:
            return None
        if table.erased(raw, rows) != self._framed(table, rows):
            return None
        columns = table.look_up(raw, rows)
        return Found(columns, length) if columns is not None else None

    def _framed(self, table: NameTable, rows: Rows) -> bytearray:
        """What is left of such an array without what tells the names apart: the same from call to call."""
        known = self._last_frame
        if known is None or known[:2] != (table, rows):
            array = b'["' + b'","'.join([table.sample] * rows.count) + b'"]'
            known = self._last_frame = table, rows, table.erased(array, rows)
        return known[2]

    def _find_mixed(self, raw: Text) -> Found | None:
        text = np.frombuffer(raw, dtype=np.uint8)
        cut = _cut(text)
        if cut is None:
            return None
        starts, lengths = cut
        columns = np.empty(len(starts), dtype=np.int64)
        for length in np.flatnonzero(np.bincount(lengths)).tolist():
            here = np.flatnonzero(lengths == length)
            found = self._find_equally_long(_records(text, length)[starts[here]].tobytes(), length)
            if found is None:
                return None
            columns[here] = found
        return Found(columns, None)

    def _find_equally_long(self, names: bytes, length: int) -> Ints | None:
        """Of names one after the other, with nothing between them."""
        table, rows = self._table(length), Rows(0, length, len(names) // length)
        if table is None or table.erased(names, rows) != table.erased(table.sample * rows.count, rows):
            return None
        return table.look_up(names, rows)

    def _table(self, length: int) -> NameTable | None:
        """None: no name of that length is known."""
        table = self._tables.get(length)
        if table is None and (columns := self._columns.get(length)):
            table = self._tables[length] = NameTable(columns, self._seeds)
        return table


def _cut(text: Bytes) -> tuple[Ints, Ints] | None:
    """Where each string of `["a","b"]` starts, and how long it is; None unless it is exactly of that form."""
    quotes = np.flatnonzero(text == _QUOTE)
    if len(quotes) < 2 or len(quotes) % 2:
        return None
    opening, closing = quotes[::2], quotes[1::2]
    framed = text[0] == _OPEN and opening[0] == 1 and text[-1] == _CLOSE and closing[-1] == len(text) - 2
    apart = opening[1:] - closing[:-1]
    if not framed or (apart != 2).any() or (text[closing[:-1] + 1] != _COMMA).any():
        return None
    lengths = closing - opening - 1
    return (opening + 1, lengths) if lengths.min() > 0 and lengths.max() <= _MAX_NAME else None


def _records(text: Bytes, length: int) -> npt.NDArray[np.void]:
    """At every byte, the `length` bytes from there on."""
    return np.ndarray((len(text) - length + 1,), dtype=f"V{length}", buffer=text, strides=(1,))


def quote_all(names: Iterable[str] | Sequence[str]) -> bytes:
    """The compact form of plain names."""
    return ("[" + ",".join(f'"{name}"' for name in names) + "]").encode()
