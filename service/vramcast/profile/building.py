"""Builds the catalog: traces every source at its sizes, and collects the results in one file.

Each source's result is a file of its own as soon as it is known, so an interrupted build can resume and several
processes can share the work. What the catalog already has is not traced again unless it is asked for.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vramcast.forecast.catalog import Line, read_catalog, write_catalog
from vramcast.forecast.description import fold_layers, parse_profile
from vramcast.forecast.summary import summarize
from vramcast.profile.inputs import make_call
from vramcast.profile.profiling import SAMPLES, attention_modules, make_profile, quiet, traced_on_cpu
from vramcast.profile.recording.patching import patched
from vramcast.profile.sources import ModelSource
from vramcast.profile.tracing import Trace, trace

Say = Callable[[str], None]
_FAILED = ".failed"


@dataclass(frozen=True, slots=True)
class Built:
    """What a build left: models in the catalog, models still to trace, and models that cannot be traced."""

    models: int
    missing: int
    failed: tuple[str, ...]


def build_catalog(
    out: Path, sources: Sequence[ModelSource], work: Iterable[ModelSource], say: Say, *, again: bool = False
) -> Built:
    """Traces the sources in `work` that neither the catalog nor a part has; `again`: all of them.

    Writes the catalog with every source that was ever traced.
    """
    parts = Parts(out.with_suffix(".parts"), out)
    with _quick_shapes():
        for source in work:
            if again or not parts.has(source):
                parts.build(source, say)
    entries = {source.name: entry for source in sources if (entry := parts.entry(source)) is not None}
    if entries:
        half = out.with_suffix(f".{os.getpid()}")
        write_catalog(half, entries)
        half.replace(out)
    failed = tuple(source.name for source in sources if source.name not in entries and parts.failed(source))
    return Built(len(entries), len(sources) - len(entries) - len(failed), failed)


class Parts:
    """Each source's result: a file of its own, or else its entry in the catalog that is to be replaced."""

    def __init__(self, folder: Path, catalog: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._known = read_catalog(catalog) if catalog.exists() else None

    def has(self, source: ModelSource) -> bool:
        return self._path(source).exists() or self.failed(source) or self._line(source) is not None

    def failed(self, source: ModelSource) -> bool:
        return self._path(source).with_suffix(_FAILED).exists()

    def build(self, source: ModelSource, say: Say) -> None:
        path = self._path(source)
        try:
            text = json.dumps(make_entry(source), separators=(",", ":"))
        except Exception as error:
            first = str(error).split("\n", maxsplit=1)[0]
            say(f"skipping {source.name}: {type(error).__name__}: {first}")
            path.with_suffix(_FAILED).write_text(f"{type(error).__name__}: {error}")
            return
        half = path.with_suffix(f".{os.getpid()}")
        half.write_text(text)
        half.replace(path)
        path.with_suffix(_FAILED).unlink(missing_ok=True)

    def entry(self, source: ModelSource) -> dict[str, Any] | None:
        path, line = self._path(source), self._line(source)
        if path.exists():
            return dict(json.loads(path.read_text())) | _told(source)
        if self._known is None or line is None:
            return None
        # The layers stay as they were traced, but how they are summarized may have changed since.
        summary = summarize(parse_profile(self._known.profile(line, None, None)))
        changed = {"summary": [summary.layers, summary.activations], **_told(source)}
        return self._known.stored(line) | changed

    def _path(self, source: ModelSource) -> Path:
        return self._folder / f"{source.name.replace('/', '@')}~.json"

    def _line(self, source: ModelSource) -> Line | None:
        """Under exactly this name: an alias may be another network's by now."""
        return self._known.line(source.name) if self._known is not None else None


def _told(source: ModelSource) -> dict[str, Any]:
    """What the source says of itself, which may have changed since it was traced."""
    return {"also": source.also, "shrink": source.shrink}


def make_entry(source: ModelSource) -> dict[str, Any]:
    """The profile at the base size, the totals at every size, and each layer's exponents."""
    device = "cpu" if source.real else "meta"
    model = build_network(source, source.base, device)
    seen = _trace(model, source, source.base, device)
    profile = make_profile(model, seen, source.inputs(source.base), source.name)
    if source.tokens:
        profile.pop("input_shape", None)
    others = [] if _only_area_counts(model, source, seen) else _other_sizes(model, source, device)
    totals = [_totals(seen, 1.0), *(_totals(other, source.growth(size)) for size, other in others)]
    growths, places = _growths(source, seen, others)
    layers = [[*layer, place] for layer, place in zip(seen.layers, places, strict=True)]
    summary = summarize(parse_profile(profile))
    del profile["saved_bytes_per_sample"], profile["largest_saved_bytes_per_sample"]
    profile.pop("fused_attention_bytes_per_sample", None)
    if not source.tokens:
        profile.pop("sequence_length", None)
    return profile | {
        "layers": fold_layers(layers),
        "growths": growths,
        "totals": totals,
        "summary": [summary.layers, summary.activations],
    }


def profile_at(source: ModelSource, size: int) -> dict[str, Any]:
    """A trace at exactly this size, to check the catalog's scaling against."""
    device = "cpu" if source.real else "meta"
    model = build_network(source, source.base, device)
    profile = make_profile(model, _at_size(model, source, size, device), source.inputs(size), source.name)
    return profile | ({"sequence_length": size} if source.tokens else {})


def build_network(source: ModelSource, size: int, device: str) -> nn.Module:
    with quiet():
        try:
            with torch.device(device):
                return source.make(size).to(device).train()
        except (NotImplementedError, RuntimeError):
            # Some networks compute their widths with tensors, which need values.
            return source.make(size).to(device).train()


def _trace(model: nn.Module, source: ModelSource, size: int, device: str) -> Trace:
    torch.manual_seed(0)
    if source.real:
        return traced_on_cpu(model, source.inputs(size))
    return trace(model, make_call(source.inputs(size), SAMPLES, device), SAMPLES)


def _only_area_counts(model: nn.Module, source: ModelSource, seen: Trace) -> bool:
    """True for plain convolutional networks at a size that halves evenly: everything grows with the area."""
    if source.tokens or source.real or source.base % 32 or any(True for _ in attention_modules(model)):
        return False
    return all(_is_plain(layer[0], layer[7]) for layer in seen.layers)


def _is_plain(kind: str, shape: Sequence[int]) -> bool:
    pooled = len(shape) <= 1 or shape[1:] == [1, 1]
    if kind == "Linear" or "Adaptive" in kind:
        return pooled
    return kind in _PLAIN and (pooled or len(shape) == 3)


_PLAIN = frozenset({
    "Conv2d", "Conv2dSame", "BatchNorm2d", "BatchNormAct2d", "FrozenBatchNorm2d", "ReLU", "ReLU6", "SiLU", "GELU",
    "Hardswish", "Hardsigmoid", "Sigmoid", "LeakyReLU", "Identity", "Dropout", "Dropout2d", "MaxPool2d", "AvgPool2d",
    "MaxPool2dSame", "AvgPool2dSame", "Flatten", "BlurPool2d", "DropPath", "FastAdaptiveAvgPool",
})  # fmt: skip


def _other_sizes(model: nn.Module, source: ModelSource, device: str) -> list[tuple[int, Trace]]:
    """Skips sizes that the network neither accepts nor can be built for."""
    found = []
    for size in source.others:
        try:
            found.append((size, _at_size(model, source, size, device)))
        except Exception:  # noqa: S112 - a network with one fixed size
            continue
    return found


def _at_size(model: nn.Module, source: ModelSource, size: int, device: str) -> Trace:
    if source.remake:
        return _trace(build_network(source, size, device), source, size, device)
    try:
        return _trace(model, source, size, device)
    except Exception:
        return _trace(build_network(source, size, device), source, size, device)


def _totals(seen: Trace, ratio: float) -> list[float]:
    fused = seen.fused_attention_bytes // seen.samples
    return [ratio, seen.saved_bytes // seen.samples - fused, fused, seen.largest_saved_bytes // seen.samples]


def _growths(
    source: ModelSource, seen: Trace, others: Sequence[tuple[int, Trace]]
) -> tuple[list[list[float]], list[int]]:
    """The distinct exponents, and an index per layer. Uses the farthest size, where rounding matters least."""
    types = [layer[0] for layer in seen.layers]
    same = [(size, other) for size, other in others if [layer[0] for layer in other.layers] == types]
    if same:
        size, other = max(same, key=lambda traced: abs(math.log(source.growth(traced[0]))))
        found = _find_growths(seen.layers, other.layers, source.growth(size))
    else:
        found = [[0.0, _input_power(layer), *_sides(layer[7])] for layer in seen.layers]
    kinds = list(dict.fromkeys(map(tuple, found)))
    return [list(kind) for kind in kinds], [kinds.index(tuple(growth)) for growth in found]


def _find_growths(base: Sequence[Sequence[Any]], other: Sequence[Sequence[Any]], ratio: float) -> list[list[float]]:
    """Exponents of every layer, from the same layers traced at `ratio` times the size. See forecast/catalog.py."""
    return [_growth(layer, grown, ratio) for layer, grown in zip(base, other, strict=True)]


def _growth(layer: Sequence[Any], grown: Sequence[Any], ratio: float) -> list[float]:
    if len(layer[7]) != len(grown[7]):
        return [_power(layer[1], grown[1], ratio), _power(layer[6], grown[6], ratio), *([0.0] * len(layer[7]))]
    repeats = _power(layer[1] / max(1, math.prod(layer[7])), grown[1] / max(1, math.prod(grown[7])), ratio)
    sides = [_power(side, after, ratio) for side, after in zip(layer[7], grown[7], strict=True)]
    return [repeats, _power(layer[6], grown[6], ratio), *sides]


def _power(before: float, after: float, ratio: float) -> float:
    if before <= 0 or after <= 0 or before == after:
        return 0.0
    return round(math.log(after / before) / math.log(ratio), 3)


def _input_power(layer: Sequence[Any]) -> float:
    """0 for a layer after global pooling, where only channels are left."""
    pooled = len(layer[7]) <= 1 or list(layer[7][1:]) == [1, 1]
    return 0.0 if pooled and "Pool" not in layer[0] else 1.0


def _sides(shape: Sequence[int]) -> list[float]:
    """For a network with one fixed size: images grow with both sides, token lists with their length."""
    if len(shape) >= 3:
        return [0.0] * (len(shape) - 2) + [0.5 if side > 1 else 0.0 for side in shape[-2:]]
    return [1.0, 0.0] if len(shape) == 2 else [0.0] * len(shape)


@contextmanager
def _quick_shapes() -> Iterator[None]:
    """Replaces meta kernels that dominate the time of a trace by ones that return the known shapes."""
    library = torch.library.Library("aten", "IMPL")
    for name, kernel in _KERNELS.items():
        library.impl(name, kernel, "Meta", allow_override=True)
    try:
        with patched([(torch, "autocast", _no_autocast)]):
            yield
    finally:
        library._destroy()


def _no_autocast(*_settings: Any, **_more: Any) -> AbstractContextManager[None]:
    """Some networks switch it off for a few operations, which the meta device does not know. Here it is never on."""
    return nullcontext()


def _batch_norm(
    given: Tensor, _weight: Any, _bias: Any, _mean: Any, _var: Any, training: bool, _momentum: float, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    kept = given.shape[1] if training else 0
    return torch.empty_like(given), given.new_empty(kept), given.new_empty(kept)


def _layer_norm(
    given: Tensor, shape: Sequence[int], _weight: Any, _bias: Any, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    kept = [*given.shape[: given.dim() - len(shape)], *([1] * len(shape))]
    return torch.empty_like(given, memory_format=torch.contiguous_format), given.new_empty(kept), given.new_empty(kept)


def _addmm(_bias: Tensor, left: Tensor, right: Tensor, **_scales: Any) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def _clamp(given: Tensor, _low: Any = None, _high: Any = None) -> Tensor:
    return given


_KERNELS: dict[str, Callable[..., Any]] = {
    "native_batch_norm": _batch_norm,
    "native_layer_norm": _layer_norm,
    "addmm": _addmm,
    "clamp_": _clamp,
}
