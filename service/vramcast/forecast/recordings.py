"""Recordings of models known by name: one file with an index, then one packed recording per model and variant.

The index is read on the first lookup. A recording is read from the file when a task needs it, and the last few are
kept unpacked, so that the service's memory does not grow with the catalog.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from vramcast.errors import InvalidInput, WorldUnavailable
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.recording import Recording
from vramcast.forecast.storage import unpack
from vramcast.forecast.warnings import warn

FILE = "recordings.bin"
MAGIC = b"vramcast recordings 1\n"
_LENGTH = struct.Struct("<I")
# Unpacked, one of an 80-block model takes about 4 MB.
_KEPT = 4
# A model's name has no space.
_BETWEEN = " "


class RecordingsUnusable(WorldUnavailable):
    """The file is missing or damaged."""


def key_of(model: str, variant: str) -> str:
    """How a recording is found: `model` is a full name of the catalog."""
    return f"{model}{_BETWEEN}{variant}"


class Recordings:
    def __init__(self, path: Path, places: Mapping[str, tuple[int, int]]) -> None:
        self._path = path
        self._places = places
        self._models = {key.partition(_BETWEEN)[0] for key in places}
        self._unpacked = lru_cache(maxsize=_KEPT)(self._unpack)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    @property
    def models(self) -> frozenset[str]:
        """The full names of models with at least one recording."""
        return frozenset(self._models)

    def has_model(self, model: str) -> bool:
        return model in self._models

    def read(self, key: str) -> Recording:
        """Raises RecordingsUnusable."""
        return self._unpacked(key)

    def packed(self, key: str) -> bytes:
        """Raises RecordingsUnusable."""
        start, length = self._places[key]
        try:
            with self._path.open("rb") as file:
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise RecordingsUnusable(f"{self._path} cannot be read: {error.strerror or error}") from error

    def _unpack(self, key: str) -> Recording:
        try:
            return unpack(self.packed(key))
        except InvalidInput as error:
            raise RecordingsUnusable(f"the recording of {key} in {self._path} is damaged: {error}") from error


def write_recordings(path: Path, packed: Mapping[str, bytes]) -> None:
    """Equal recordings are stored once."""
    index: dict[str, tuple[int, int]] = {}
    starts: dict[bytes, int] = {}
    end = 0
    for key in sorted(packed):
        blob = packed[key]
        if blob not in starts:
            starts[blob] = end
            end += len(blob)
        index[key] = starts[blob], len(blob)
    head = zlib.compress(json.dumps(index, separators=(",", ":")).encode(), 9)
    path.write_bytes(MAGIC + _LENGTH.pack(len(head)) + head + b"".join(starts))


def read_recordings(path: Path) -> Recordings:
    """Reads the index only. Raises RecordingsUnusable."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            start = file.read(len(MAGIC) + _LENGTH.size)
            if not start.startswith(MAGIC):
                raise ValueError(f"it starts with {start[: len(MAGIC)]!r}")
            (length,) = _LENGTH.unpack_from(start, len(MAGIC))
            index = json.loads(zlib.decompress(file.read(min(length, size))))
            after = file.tell()
    except OSError as error:
        raise RecordingsUnusable(f"no recordings at {path}: {error.strerror or error}") from error
    except (ValueError, struct.error, zlib.error) as error:
        raise RecordingsUnusable(f"{path} has no recordings of this version: {error}") from error
    try:
        places = {str(key): (after + int(begin), int(count)) for key, (begin, count) in index.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise RecordingsUnusable(f"the index of {path} is damaged: {error}") from error
    if any(begin < after or count < 0 or begin + count > size for begin, count in places.values()):
        raise RecordingsUnusable(f"{path} is truncated: its index names recordings beyond its {size:,} bytes")
    return Recordings(path, places)


@lru_cache(maxsize=1)
def builtin_recordings() -> Recordings:
    """Without a usable file there are no recordings: a warning says so, once, and models are forecast from layers."""
    return usable_recordings(builtin_artifact() / FILE)


def usable_recordings(path: Path) -> Recordings:
    try:
        return read_recordings(path)
    except RecordingsUnusable as error:
        warn("models known by name are forecast from their layers only", reason=str(error))
        return Recordings(path, {})
