"""Run memory as text. Ten thousand tasks must fit into a ConfigMap beside everything else, so they are packed.

A table of names, then one record per task. Strings of the table end with a newline, as no name contains one.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from vramcast.outcomes.run_memory import KEPT_PEAKS, Remembered, TaskHere
from vramcast.task.run_point import RunPoint

MOST_STORED_BYTES: Final = 420 << 10
_FORMAT: Final = 2
_READABLE: Final = (1, 2)  # 1 had no mark for tasks whose last run died
_MOST_RAW_BYTES: Final = 4 << 20
# Indices into the tables of namespaces, products and networks; fingerprint, batch, length, runs, floor, when it ran
# last, surprise, and the numbers of peaks and of sizes that follow. _DIED marks the number of peaks.
_HEAD: Final = struct.Struct("<HHH6sIIIIIhBB")
_SIZE: Final = struct.Struct("<I")
_DIED: Final = 0x80
_UNIT: Final = 1e-4
_NO_SURPRISE: Final = -(1 << 15)
_HIGHEST: Final = (1 << 32) - 1


def memory_text(tasks: Sequence[Remembered]) -> str:
    """The tasks that ran last, as many as fit."""
    while True:
        text = base64.b85encode(zlib.compress(_packed(tasks), 6)).decode()
        if len(text) <= MOST_STORED_BYTES or not tasks:
            return text
        tasks = tasks[max(1, len(tasks) - int(0.98 * len(tasks) * MOST_STORED_BYTES / len(text))) :]


def read_memory(text: str) -> list[Remembered]:
    """Raises ValueError if it is damaged."""
    try:
        raw = zlib.decompressobj().decompress(base64.b85decode(text), _MOST_RAW_BYTES)
        return list(_unpacked(raw))
    except (zlib.error, struct.error, IndexError, TypeError, KeyError) as error:
        raise ValueError(f"run memory: {error!r}") from error


def _packed(tasks: Sequence[Remembered]) -> bytes:
    # A record's index has two bytes.
    tasks = tasks[-(1 << 16) + 1 :]
    names = [
        list(dict.fromkeys(column))
        for column in (
            (task.key.namespace for task in tasks),
            (task.key.product for task in tasks),
            (task.network for task in tasks),
        )
    ]
    places = [{name: place for place, name in enumerate(column)} for column in names]
    head = json.dumps({"format": _FORMAT, "names": names}, separators=(",", ":")).encode()
    return b"".join([head, b"\n", *(_record(task, places) for task in tasks)])


def _record(task: Remembered, places: Sequence[dict[str, int]]) -> bytes:
    namespaces, products, networks = places
    key, point = task.key, task.point
    surprise = _NO_SURPRISE if task.surprise is None else max(min(round(task.surprise / _UNIT), 32767), -32767)
    numbers = (point.batch, point.length, task.runs, task.floor_mib, round(task.last_at))
    return b"".join(
        [
            _HEAD.pack(
                namespaces[key.namespace], products[key.product], networks[task.network],
                bytes.fromhex(key.fingerprint), *(min(number, _HIGHEST) for number in numbers), surprise,
                len(task.peaks_mib) | (_DIED if task.died else 0), len(point.shape),
            ),
            *(_SIZE.pack(min(each, _HIGHEST)) for each in (*task.peaks_mib, *point.shape)),
        ]
    )  # fmt: skip


def _unpacked(raw: bytes) -> Iterator[Remembered]:
    head, _, records = raw.partition(b"\n")
    document = json.loads(head)
    if document["format"] not in _READABLE:
        raise ValueError(f"format {document['format']}: expected one of {_READABLE}")
    namespaces, products, networks = document["names"]
    at = 0
    while at < len(records):
        namespace, product, network, fingerprint, batch, length, runs, floor_mib, last_at, surprise, peaks, sizes = (
            _HEAD.unpack_from(records, at)
        )
        at += _HEAD.size
        died, peaks = bool(peaks & _DIED), peaks & ~_DIED
        end = at + _SIZE.size * (peaks + sizes)
        values = [value for (value,) in _SIZE.iter_unpack(records[at:end])]
        if len(values) != peaks + sizes:
            raise ValueError("cut off")
        at = end
        yield Remembered(
            TaskHere(str(namespaces[namespace]), str(products[product]), fingerprint.hex()), str(networks[network]),
            _point(batch, length, values[peaks:]), tuple(max(peak, 1) for peak in values[:peaks])[-KEPT_PEAKS:], runs,
            floor_mib, None if surprise == _NO_SURPRISE else round(surprise * _UNIT, 4), float(last_at), died,
        )  # fmt: skip


def _point(batch: int, length: int, shape: Iterable[int]) -> RunPoint:
    sizes = tuple(shape)
    return RunPoint(max(batch, 1), length, math.prod(sizes) if sizes else 0, sizes)
