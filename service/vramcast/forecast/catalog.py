"""Models known by name: one file with an index in front and an entry for each, opened when the first name is asked for.

An entry is a traced profile and how its figures grow with the size of the input (`scaling`). It is unpacked when it is
asked for, and what was described is remembered by the sizes that were asked for.
"""

from __future__ import annotations

import json
import math
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

from vramcast.errors import FieldError, InvalidTask, WorldUnavailable
from vramcast.forecast.description import Description, parse_profile, unfold_layers
from vramcast.forecast.scaling import scaled_profile
from vramcast.task.vocabulary import PREFIX

FILE = "catalog.bin"
MAGIC = b"vramcast catalog 2\n"
_LENGTH = struct.Struct("<I")
_NEAREST = 4
# Exponents hold near where they were found.
_MOST_GROWTH = 4096.0
SOURCES = ("timm", "torchvision", "hf", "diffusers")


class CatalogUnusable(WorldUnavailable):
    """Missing or damaged."""


@dataclass(frozen=True, slots=True)
class Line:
    """What the index says of a model."""

    name: str
    family: str
    parameters: int
    layers: int
    activations: int  # elements per sample at the size below, as a summary tells them
    input_shape: tuple[int, ...] | None
    sequence_length: int | None
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Named:
    """A model at a size; `assumptions` tell which size was taken where none was given."""

    network: Description
    assumptions: tuple[str, ...]


class Catalog:
    def __init__(self, lines: Mapping[str, Line], entries: bytes) -> None:
        self._lines = lines
        self._entries = entries
        self._by_plain_name = {plain(name): name for name in lines}
        self._by_layers: dict[int, list[Line]] = {}
        for line in lines.values():
            self._by_layers.setdefault(line.layers, []).append(line)
        self._described: dict[tuple[str, tuple[int, ...] | None, int | None], Named] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lines)

    def lines(self, search: str = "") -> Iterator[Line]:
        """Every model whose name has all the words."""
        words = search.lower().split()
        return (line for name, line in self._lines.items() if all(word in name.lower() for word in words))

    def find(self, name: str) -> Line | None:
        """By its name, however it is spelled: case, a timm tag or the organization on the hub do not matter."""
        known = self._lines.get(name)
        return known if known is not None else self._lines.get(self._by_plain_name.get(plain(name), ""))

    def with_layers(self, count: int) -> Sequence[Line]:
        """Every model of so many layers."""
        return self._by_layers.get(count, ())

    def nearest(self, name: str) -> list[str]:
        """Names to suggest: the same model of another source first."""
        asked = plain(name)
        bare = asked.rsplit("/", maxsplit=1)[-1]
        same = [full for at, full in self._by_plain_name.items() if at.rsplit("/", maxsplit=1)[-1] == bare]
        near = get_close_matches(asked, self._by_plain_name, n=_NEAREST, cutoff=0.6)
        prefix = asked.partition("/")[0]
        own = [at for at in self._by_plain_name if at.startswith(f"{prefix}/{bare}")][:_NEAREST]
        return list(dict.fromkeys([*same, *(self._by_plain_name[at] for at in [*near, *own])]))[:_NEAREST]

    def describe(self, name: str, input_size: tuple[int, ...] | None, sequence_length: int | None) -> Named:
        """Raises InvalidTask that names the annotation, and the nearest names of a model that is not known."""
        key = (name, input_size, sequence_length)
        known = self._described.get(key)
        if known is None:
            known = self._describe(self._known(name), input_size, sequence_length)
            with self._lock:
                if len(self._described) >= 1024:
                    del self._described[next(iter(self._described))]
                self._described[key] = known
        return known

    def profile(self, line: Line, input_size: tuple[int, ...] | None, length: int | None) -> dict[str, Any]:
        """As JSON, at these sizes or at those that it was traced at."""
        entry = self.entry(line)
        shape = input_size or line.input_shape
        tokens = length or line.sequence_length
        profile = scaled_profile(entry, _ratio(line, shape, tokens))
        sizes = {"input_shape": list(shape) if shape else None, "sequence_length": tokens}
        return profile | {name: size for name, size in sizes.items() if size is not None}

    def entry(self, line: Line) -> dict[str, Any]:
        entry = json.loads(zlib.decompress(self._entries[line.start : line.start + line.length]))
        entry["layers"] = unfold_layers(entry["layers"])
        return dict(entry)

    def _known(self, name: str) -> Line:
        line = self.find(name)
        if line is None:
            near = self.nearest(name)
            meant = f"did you mean {', '.join(near)}?" if near else f"names start with {'/, '.join(SOURCES)}/"
            raise InvalidTask([
                FieldError(f"{PREFIX}model", name, f"no model of the catalog has this name; {meant} `vramcast catalog` "
                           f"lists all {len(self)}; or run `vramcast profile` on your own, or give {PREFIX}gpu-memory")
            ])  # fmt: skip
        return line

    def _describe(self, line: Line, input_size: tuple[int, ...] | None, length: int | None) -> Named:
        if line.sequence_length is None:
            shape, assumptions = _image_size(line, input_size, length)
            return Named(parse_profile(self.profile(line, shape, None)), assumptions)
        if input_size is not None and line.input_shape is None:
            wrong = f"{line.name} reads tokens: give {PREFIX}sequence-length such as {line.sequence_length}"
            raise InvalidTask([FieldError(f"{PREFIX}input-size", _shown(input_size), wrong)])
        assumptions = () if length else (f"sequence-length {line.sequence_length}",)
        return Named(parse_profile(self.profile(line, None, length)), assumptions)


def _image_size(
    line: Line, input_size: tuple[int, ...] | None, length: int | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    assert line.input_shape is not None  # noqa: S101 - the builder writes one of the two
    if length is not None:
        wrong = f"{line.name} reads images: give {PREFIX}input-size such as {_shown(line.input_shape)}"
        raise InvalidTask([FieldError(f"{PREFIX}sequence-length", str(length), wrong)])
    if input_size is None:
        return line.input_shape, (f"input-size {_shown(line.input_shape)}",)
    growth = math.prod(input_size[1:]) / math.prod(line.input_shape[1:]) if input_size[1:] else 0.0
    if len(input_size) != len(line.input_shape) or not 1 / _MOST_GROWTH < growth < _MOST_GROWTH:
        wrong = f"expected the size of an image for {line.name} such as {_shown(line.input_shape)}"
        raise InvalidTask([FieldError(f"{PREFIX}input-size", _shown(input_size), wrong)])
    return input_size, ()


def _shown(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _ratio(line: Line, shape: tuple[int, ...] | None, tokens: int | None) -> float:
    if line.sequence_length is not None:
        return (tokens or line.sequence_length) / line.sequence_length
    assert shape is not None and line.input_shape is not None  # noqa: S101, PT018 - the builder writes one of the two
    return math.prod(shape[1:]) / math.prod(line.input_shape[1:])


def plain(name: str) -> str:
    """`hf/meta-llama/Llama-2-7b-hf` and `timm/resnet50.a1_in1k` are known without organization and tag."""
    source, _, rest = name.strip().lower().partition("/")
    bare = rest.rsplit("/", maxsplit=1)[-1]
    if source == "timm":
        bare = bare.partition(".")[0]
    return f"{source}/{bare}"


def write_catalog(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """`entries` have a `summary` (layers, activations) for the index; their layers may be folded."""
    index, blobs, start = [], [], 0
    for name, entry in sorted(entries.items()):
        blob = zlib.compress(json.dumps({k: v for k, v in entry.items() if k != "summary"}).encode(), 9)
        shape, tokens = entry.get("input_shape"), entry.get("sequence_length")
        totals = [entry["parameters"], *entry["summary"]]
        index.append([name, entry["family"], *totals, shape, tokens, start, len(blob)])
        blobs.append(blob)
        start += len(blob)
    packed = zlib.compress(json.dumps(index, separators=(",", ":")).encode(), 9)
    path.write_bytes(MAGIC + _LENGTH.pack(len(packed)) + packed + b"".join(blobs))


def read_catalog(path: Path) -> Catalog:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CatalogUnusable(f"no catalog at {path}: {error.strerror or error}") from error
    try:
        if not data.startswith(MAGIC):
            raise ValueError(f"it starts with {data[: len(MAGIC)]!r}")
        (length,) = _LENGTH.unpack_from(data, len(MAGIC))
        start = len(MAGIC) + _LENGTH.size
        rows = json.loads(zlib.decompress(data[start : start + length]))
        return Catalog({row[0]: _line(row) for row in rows}, data[start + length :])
    except (ValueError, TypeError, struct.error, zlib.error) as error:
        raise CatalogUnusable(f"{path} is no catalog of this version: {error}") from error


def _line(row: list[Any]) -> Line:
    name, family, parameters, layers, activations, shape, tokens, start, length = row
    input_shape = tuple(shape) if shape else None
    return Line(name, family, parameters, layers, activations, input_shape, tokens, start, length)


@lru_cache(maxsize=1)
def builtin_catalog() -> Catalog:
    """Inside the installed package; in a checkout, at its top."""
    package = Path(__file__).parents[1]
    inside = package / "model_artifacts"
    return read_catalog((inside if inside.is_dir() else package.parents[1] / "model_artifacts") / FILE)
