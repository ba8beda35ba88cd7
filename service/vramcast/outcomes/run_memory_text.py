"""Run memory as text. Ten thousand tasks must fit into a ConfigMap beside everything else, so they are compressed."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, Final

from vramcast.outcomes.run_memory import KEPT_PEAKS, Remembered, TaskHere
from vramcast.task.run_point import RunPoint

MOST_STORED_BYTES: Final = 500 << 10
_FORMAT: Final = 1


def memory_text(tasks: Sequence[Remembered]) -> str:
    """The tasks that ran last, as many as fit."""
    while True:
        rows = [_row(task) for task in tasks]
        text = base64.b64encode(zlib.compress(json.dumps([_FORMAT, rows], separators=(",", ":")).encode(), 3)).decode()
        if len(text) <= MOST_STORED_BYTES:
            return text
        tasks = tasks[len(tasks) // 10 + 1 :]


def read_memory(text: str) -> list[Remembered]:
    """Raises ValueError, TypeError or KeyError if it is damaged."""
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(base64.b64decode(text, validate=True), 16 * MOST_STORED_BYTES)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    version, rows = json.loads(raw)
    if version != _FORMAT:
        raise ValueError(f"format {version}: expected {_FORMAT}")
    return [_remembered(row) for row in rows]


def _row(task: Remembered) -> list[Any]:
    key, point = task.key, task.point
    return [
        key.namespace, key.product, key.fingerprint, task.network, point.batch, point.length, list(point.shape),
        list(task.peaks_mib), task.runs, task.floor_mib, task.surprise, round(task.last_at),
    ]  # fmt: skip


def _remembered(row: Sequence[Any]) -> Remembered:
    namespace, product, fingerprint, network, batch, length, shape, peaks, runs, floor_mib, surprise, last_at = row
    point = RunPoint(max(int(batch), 1), int(length), math.prod(shape) if shape else 0, tuple(map(int, shape)))
    peaks_mib = tuple(max(int(peak), 1) for peak in peaks)[-KEPT_PEAKS:]
    return Remembered(
        TaskHere(str(namespace), str(product), str(fingerprint)), str(network), point, peaks_mib, int(runs),
        int(floor_mib), None if surprise is None else float(surprise), float(last_at),
    )  # fmt: skip
