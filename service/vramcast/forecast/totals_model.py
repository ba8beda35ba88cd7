"""What totals leave out, learned from recordings: `totals.onnx` and `totals.json`, for tasks without a recording.

The model tells how much of the rules' figures a step really holds (`totals_features.py`). It was trained on recordings
of the catalog, replayed under random settings, so it knows only the kinds of run that were recorded. The rules answer
the others. Bounds come from networks whose whole architecture it never saw.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast import totals_features
from vramcast.forecast.description import Description
from vramcast.forecast.forecast import Factors, Spreads
from vramcast.forecast.onnx_session import open_session
from vramcast.forecast.totals_features import FACTS, RuledTotals, describe_totals, totals_of
from vramcast.forecast.warnings import warn
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Kind, Precision, Quantization

MODEL = "totals.onnx"
MANIFEST = "totals.json"
FORMAT = 2
INPUTS = ("facts", "tokens", "kinds")
OUTPUTS = ("active_factors", "reserved_factors")
# Of the floor, of where the line begins, of its slope.
FACTORS = 3
MOST_FACTOR = 6.0  # in logarithms
_ONE = Spreads({0.05: 1.0})  # margins are stored as they are


class Told(StrEnum):
    """How much of the network is known."""

    LAYERS = "layers"
    SUMMARY = "summary"
    UNSIZED = "unsized"  # a transformer's summary that tells neither tokens nor image
    TERSE = "terse"  # without architecture or layers


_WEIGHTS = {
    Precision.BF16: "16-bit", Precision.FP16: "16-bit", Precision.AMP_BF16: "amp", Precision.AMP_FP16: "amp",
    Precision.FP32: "fp32", Precision.TF32: "fp32",
}  # fmt: skip


_FINE_TUNED = frozenset({None, Architecture.TRANSFORMER, Architecture.DIFFUSION})
_FAMILIES = _FINE_TUNED | {Architecture.CNN}


def told_of(task: Task, network: Description | None) -> Told:
    if network is not None and network.ops:
        return Told.LAYERS
    if task.architecture is None or not task.layers:
        return Told.TERSE
    sized = task.sequence_length or task.input_size or task.architecture is not Architecture.TRANSFORMER
    return Told.SUMMARY if sized else Told.UNSIZED


def as_told(task: Task, told: Told) -> Task:
    """What little a terse summary tells is not used: there is too much of it to be learned one by one."""
    if told is not Told.TERSE:
        return task
    return replace(task, architecture=None, layers=None, sequence_length=None)


def cells_of(task: Task, told: Told) -> Iterator[str]:
    """The groups of runs that a run's bound may come from, the narrower first; none for what cannot be compared."""
    method = _method(task)
    plain = method == "full" and not task.gradient_checkpointing
    if task.precision not in _WEIGHTS or task.architecture not in (_FAMILIES if plain else _FINE_TUNED):
        return
    checkpointed = "/checkpointed" if task.gradient_checkpointing else ""
    sharded = "/sharded" if task.zero_stage else ""
    kind = f"{told}/{_family(task, told)}/{_WEIGHTS[task.precision]}/{method}"
    yield f"{kind}{checkpointed}{sharded}"
    yield f"{kind}{checkpointed}"


def _family(task: Task, told: Told) -> str:
    if told is Told.TERSE:
        return "any"
    if told is Told.UNSIZED:
        return str(task.architecture)
    reads = " of tokens" if task.sequence_length is not None and task.architecture is Architecture.TRANSFORMER else ""
    return f"{task.architecture}{reads}"


def _method(task: Task) -> str:
    if task.kind is Kind.INFERENCE:
        return "inference"
    if task.quantization is not Quantization.NONE:
        return "quantized"
    return "lora" if task.lora_rank is not None else "full"


@dataclass(frozen=True, slots=True)
class LearnedTotals:
    """Without the context. Margins are logarithms of how far a bound lies above the median, by risk."""

    active_bytes: float
    reserved_bytes: float
    margins: Factors
    cell: str

    def margin(self, risk: float) -> float:
        return self.margins.margin(_ONE, risk)


@dataclass(frozen=True, slots=True)
class TotalsArtifact:
    version: str
    model: Path
    cells: Mapping[str, Factors]
    manifest: dict[str, Any]


def load_totals(directory: Path) -> TotalsArtifact | None:
    """None, and a warning unless there is none: the rules answer alone."""
    path, model = directory / MANIFEST, (directory / MODEL).resolve()
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        expected = {
            "format": FORMAT, "features": totals_features.VERSION, "facts": len(FACTS),
            "sha256": hashlib.sha256(model.read_bytes()).hexdigest(),
        }  # fmt: skip
        wrong = [f"{name} {manifest.get(name)!r}, expected {value!r}" for name, value in expected.items()
                 if manifest.get(name) != value]  # fmt: skip
        if wrong:
            raise ValueError("; ".join(wrong))
        cells = {
            name: Factors(int(cell["architectures"]), {float(risk): float(m) for risk, m in cell["margins"].items()})
            for name, cell in manifest["cells"].items()
        }
        return TotalsArtifact(str(manifest["version"]), model, cells, manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        warn("totals are forecast by rules alone", reason=f"{path}: {error}")
        return None


class TotalsModel:
    """Loaded when it is first asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._loaded: tuple[TotalsArtifact, Any] | None = None
        self._tried = False

    @property
    def version(self) -> str:
        """Empty if there is no such model."""
        loaded = self._load()
        return "" if loaded is None else loaded[0].version

    def learned(self, task: Task, shown: Task, network: Description | None) -> LearnedTotals | None:
        """Of a summarized task; None for kinds of run that were never recorded.

        `shown` and `network` tell the facts: the same task, perhaps at a usual length.
        """
        loaded = self._load()
        if loaded is None:
            return None
        artifact, session = loaded
        told = told_of(task, network)
        cell = next((name for name in cells_of(task, told) if name in artifact.cells), None)
        if cell is None:
            return None
        described = describe_totals(as_told(shown, told), network)
        shown_layers = (described.facts[None], described.tokens[None], described.kinds[None])
        found = session.run(list(OUTPUTS), dict(zip(INPUTS, shown_layers, strict=True)))
        totals = totals_of(task, network if told is Told.LAYERS else None)
        active, reserved = (float(memory(np.asarray(factors)[0], totals)) for factors in found)
        return LearnedTotals(min(active, reserved), reserved, artifact.cells[cell], cell)

    def _load(self) -> tuple[TotalsArtifact, Any] | None:
        with self._lock:
            if not self._tried:
                self._tried = True
                artifact = load_totals(self._directory)
                self._loaded = None if artifact is None else (artifact, open_session(artifact.model))
            return self._loaded


def memory(factors: NDArray[np.floating], totals: RuledTotals) -> float:
    """The floor or the line, whichever is higher."""
    floor, start, slope = np.exp(np.clip(factors, -MOST_FACTOR, MOST_FACTOR))
    line = start * totals.held_bytes + slope * totals.unit_bytes * totals.units
    return float(max(floor * totals.held_bytes, line))
