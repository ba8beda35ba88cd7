"""Models known by name: one file with an index, then one compressed entry per model.

The file is read on the first lookup. An entry is unpacked on demand, and the result is cached by name and size.

An entry is a profile traced at one size, with exponents for other image sizes and sequence lengths. The builder traces
each network at two or three sizes. Each figure of a layer grows with a power of the size: a convolution with the area,
a linear layer with the tokens, an attention matrix with their square. Totals are kept at every traced size and
interpolated.
"""

from __future__ import annotations

import json
import math
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from vramcast.errors import FieldError, InvalidTask, WorldUnavailable
from vramcast.forecast import latents
from vramcast.forecast.description import Description, parse_profile, unfold_layers
from vramcast.forecast.latents import shown_size
from vramcast.forecast.model_names import SOURCES, ModelNames
from vramcast.task.vocabulary import PREFIX

FILE = "catalog.bin"
MAGIC = b"vramcast catalog 2\n"
_LENGTH = struct.Struct("<I")
# The exponents are only valid near the traced size.
_MOST_GROWTH = 4096.0
# An entry's layer has one field more than a profile's: the index of its exponents in `growths`.
_GROWTH = 9
_TOTALS = ("kept", "fused", "largest")
_CACHE_SIZE = 1024
_IN_INDEX = ("summary", "also", "shrink")


class CatalogUnusable(WorldUnavailable):
    """The file is missing or damaged."""


@dataclass(frozen=True, slots=True)
class Line:
    """A model's line in the index."""

    name: str
    family: str
    parameters: int
    layers: int
    activations: int  # elements per sample at the traced size, as in a summary
    input_shape: tuple[int, ...] | None
    sequence_length: int | None
    start: int
    length: int
    also: tuple[str, ...] = ()  # bare names of models that have the same network
    shrink: tuple[float, int] = latents.USUAL  # of a denoiser: pixels in a row, and frames, to a latent


@dataclass(frozen=True, slots=True)
class Named:
    """A model at a size; `assumptions` names the default size if none was given."""

    network: Description
    assumptions: tuple[str, ...]


class Catalog:
    def __init__(self, lines: Mapping[str, Line], entries: bytes) -> None:
        self._lines = lines
        self._entries = entries
        self._names = ModelNames((line.name, line.also) for line in lines.values())
        self._by_layers: dict[int, list[Line]] = {}
        for line in lines.values():
            self._by_layers.setdefault(line.layers, []).append(line)
        self._described: dict[tuple[str, tuple[int, ...] | None, int | None], Named] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._lines)

    def lines(self, search: str = "") -> Iterator[Line]:
        """Every model that has a name which contains all the words."""
        words = search.lower().split()
        for line in self._lines.values():
            source = line.name.partition("/")[0]
            if any(all(word in name.lower() for word in words) for name in (line.name, *_full(source, line.also))):
                yield line

    def find(self, name: str) -> Line | None:
        """By any spelling, see model_names.py."""
        known = self._lines.get(name)
        return known if known is not None else self._lines.get(self._names.find(name) or "")

    def line(self, name: str) -> Line | None:
        """By its full name only."""
        return self._lines.get(name)

    def with_layers(self, count: int) -> Sequence[Line]:
        """Every model with this many layers."""
        return self._by_layers.get(count, ())

    def nearest(self, name: str) -> list[str]:
        """Names to suggest."""
        return self._names.nearest(name)

    def describe(self, name: str, input_size: tuple[int, ...] | None, sequence_length: int | None) -> Named:
        """Raises InvalidTask, which names the annotation and suggests names for an unknown model."""
        key = (name, input_size, sequence_length)
        known = self._described.get(key)
        if known is None:
            known = self._describe(self._known(name), input_size, sequence_length)
            with self._lock:
                if len(self._described) >= _CACHE_SIZE:
                    del self._described[next(iter(self._described))]
                self._described[key] = known
        return known

    def profile(self, line: Line, input_size: tuple[int, ...] | None, length: int | None) -> dict[str, Any]:
        """As JSON, at these sizes, or by default at the traced ones."""
        entry = self.entry(line)
        shape = input_size or line.input_shape
        tokens = length or line.sequence_length
        profile = _scaled(entry, _ratio(line, shape, tokens))
        sizes = {"input_shape": list(shape) if shape else None, "sequence_length": tokens}
        return profile | {name: size for name, size in sizes.items() if size is not None}

    def entry(self, line: Line) -> dict[str, Any]:
        entry = self.stored(line)
        return entry | {"layers": unfold_layers(entry["layers"])}

    def stored(self, line: Line) -> dict[str, Any]:
        """With folded layers."""
        return dict(json.loads(zlib.decompress(self._entries[line.start : line.start + line.length])))

    def _known(self, name: str) -> Line:
        line = self.find(name)
        if line is None:
            near = self.nearest(name)
            meant = f"did you mean {', '.join(near)}?" if near else f"names start with {'/, '.join(SOURCES)}/"
            raise InvalidTask([
                FieldError(f"{PREFIX}model", name, f"no model in the catalog has this name; {meant} `vramcast catalog` "
                           f"lists all {len(self)}. Or run `vramcast profile` on your model, or set {PREFIX}gpu-memory")
            ])  # fmt: skip
        return line

    def _describe(self, line: Line, input_size: tuple[int, ...] | None, length: int | None) -> Named:
        if line.sequence_length is None:
            shape, assumptions = image_size(line, input_size, length)
            return Named(parse_profile(self.profile(line, shape, None)), assumptions)
        if input_size is not None and line.input_shape is None:
            wrong = f"{line.name} reads tokens: set {PREFIX}sequence-length instead, for example {line.sequence_length}"
            raise InvalidTask([FieldError(f"{PREFIX}input-size", shown_size(input_size), wrong)])
        assumptions = () if length else (f"sequence-length {line.sequence_length}",)
        return Named(parse_profile(self.profile(line, None, length)), assumptions)


def image_size(
    line: Line, input_size: tuple[int, ...] | None, length: int | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """What a network that reads images gets, and what was assumed. Raises InvalidTask."""
    assert line.input_shape is not None  # noqa: S101 - the builder writes one of the two
    if length is not None:
        wrong = f"{line.name} reads images: set {PREFIX}input-size instead, for example {shown_size(line.input_shape)}"
        raise InvalidTask([FieldError(f"{PREFIX}sequence-length", str(length), wrong)])
    if input_size is None:
        return line.input_shape, (f"input-size {shown_size(line.input_shape)}",)
    if line.name.startswith("diffusers/"):
        return latents.size(line.name, line.input_shape, input_size, line.shrink)
    growth = math.prod(input_size[1:]) / math.prod(line.input_shape[1:]) if input_size[1:] else 0.0
    if len(input_size) != len(line.input_shape) or not 1 / _MOST_GROWTH < growth < _MOST_GROWTH:
        wrong = f"expected an image size for {line.name}, for example {shown_size(line.input_shape)}"
        raise InvalidTask([FieldError(f"{PREFIX}input-size", shown_size(input_size), wrong)])
    return input_size, ()


def _ratio(line: Line, shape: tuple[int, ...] | None, tokens: int | None) -> float:
    if line.sequence_length is not None:
        return (tokens or line.sequence_length) / line.sequence_length
    assert shape is not None and line.input_shape is not None  # noqa: S101, PT018 - the builder writes one of the two
    return math.prod(shape[1:]) / math.prod(line.input_shape[1:])


def _full(source: str, bare: Iterable[str]) -> Iterator[str]:
    return (f"{source}/{name}" for name in bare)


def write_catalog(path: Path, entries: Mapping[str, Mapping[str, Any]]) -> None:
    """Each entry needs a `summary` (layers, activations) for the index, and may have other names; its layers may be
    folded.
    """
    index, blobs, start = [], [], 0
    for name, entry in sorted(entries.items()):
        blob = zlib.compress(json.dumps({k: v for k, v in entry.items() if k not in _IN_INDEX}).encode(), 9)
        shape, tokens = entry.get("input_shape"), entry.get("sequence_length")
        totals = [entry["parameters"], *entry["summary"]]
        last = [list(entry.get("also", ())), *([list(entry["shrink"])] if entry.get("shrink") else [])]
        index.append([name, entry["family"], *totals, shape, tokens, start, len(blob), *last])
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
        raise CatalogUnusable(f"{path} is not a catalog of this version: {error}") from error


def _line(row: list[Any]) -> Line:
    name, family, parameters, layers, activations, shape, tokens, start, length, *last = row
    input_shape = tuple(shape) if shape else None
    also, shrink = (*last, (), ())[:2]
    side, frames = shrink or latents.USUAL
    return Line(
        name, family, parameters, layers, activations, input_shape, tokens, start, length, tuple(also),
        (float(side), int(frames)),
    )  # fmt: skip


@lru_cache(maxsize=1)
def builtin_catalog() -> Catalog:
    return read_catalog(builtin_artifact() / FILE)


def builtin_artifact() -> Path:
    """Inside the installed package; in a checkout, at its top."""
    package = Path(__file__).parents[1]
    inside = package / "model_artifacts"
    return inside if inside.is_dir() else package.parents[1] / "model_artifacts"


# ---------------------------------------------------------------------- a profile at another size


def _scaled(entry: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """The profile at `ratio` times the traced area, or tokens. Expects unfolded layers."""
    totals = dict(zip(_TOTALS, (_total(entry["totals"], at, ratio) for at in range(1, 4)), strict=True))
    layers = entry["layers"] if ratio == 1.0 else [_grown(layer, entry["growths"], ratio) for layer in entry["layers"]]
    profile = {
        "id": entry["id"],
        "family": entry["family"],
        "parameters": entry["parameters"],
        "buffers": entry["buffers"],
        "saved_bytes_per_sample": totals["kept"] + totals["fused"],
        "largest_saved_bytes_per_sample": totals["largest"],
        "layers": [layer[:_GROWTH] for layer in layers],
    }
    fused = {"fused_attention_bytes_per_sample": totals["fused"]} if totals["fused"] else {}
    return profile | fused | ({"work": _work(entry["work"], ratio)} if "work" in entry else {})


def _work(base: Sequence[float], ratio: float) -> list[int]:
    """The figures of `CountedWork`. Attention grows with the square of the tokens, the number of kernels not at all."""
    macs, elements, kernels, attention_macs, attention_elements, attention_kernels = base
    attending = attention_macs * ratio**2
    rest = (macs - attention_macs) * ratio
    figures = (rest + attending, elements * ratio, kernels, attending, attention_elements * ratio**2, attention_kernels)
    return [round(figure) for figure in figures]


def _total(points: Sequence[Sequence[float]], at: int, ratio: float) -> int:
    """Points are (ratio, kept, fused, largest); the first is the base size."""
    known = {float(point[0]): float(point[at]) for point in points}
    if ratio in known or len(known) == 1:
        return round(known.get(ratio, known[1.0] * ratio))
    if len(known) == 2:
        return round(_by_power(known, ratio))
    return max(0, round(_by_curve(known, ratio)))


def _by_power(known: Mapping[float, float], ratio: float) -> float:
    """For images: a power law, so that rounding at one size does not bend the curve."""
    (_, value), (other, grown) = known.items()
    if value <= 0 or grown <= 0:
        return value
    return float(value * ratio ** (math.log(grown / value) / math.log(other)))


def _by_curve(known: Mapping[float, float], ratio: float) -> float:
    """For tokens: exactly a quadratic."""
    places = list(known)
    return sum(
        known[at] * math.prod((ratio - other) / (at - other) for other in places if other != at) for at in places
    )


def _grown(layer: Sequence[Any], growths: Sequence[Sequence[float]], ratio: float) -> list[Any]:
    """Elements stay a whole multiple of the shape, which distinguishes per-sample tensors from static ones."""
    repeats_power, input_power, *shape_powers = growths[layer[_GROWTH]]
    out, given, shape = layer[1], layer[6], layer[7]
    size = max(1, math.prod(shape))
    repeats = out / size
    if repeats_power:
        repeats = max(1, round(repeats * ratio**repeats_power))
    new_shape = [max(1, round(side * ratio**power)) for side, power in zip(shape, shape_powers, strict=True)]
    grown = list(layer)
    grown[1] = round(repeats * math.prod(new_shape))
    grown[6] = round(given * ratio**input_power)
    grown[7] = new_shape
    return grown
