"""The trained artifact: `model.onnx` and `manifest.json`, loaded only if every claim in the manifest holds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import WorldUnavailable
from vramcast.forecast import features
from vramcast.forecast.conformal import Calibration, Factors
from vramcast.forecast.features import Features
from vramcast.forecast.tokens import TOKEN_WIDTH, TOKENS

MODEL = "model.onnx"
MANIFEST = "manifest.json"
FORMAT = 1


class ArtifactUnusable(WorldUnavailable):
    """Missing, corrupt, or made for another version of the features."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """Where the training data lay, per regime: a description outside is a novelty. Arrays are (regimes, facts)."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    width: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Artifact:
    version: str
    model: bytes
    quantiles: tuple[float, ...]
    calibration: Calibration
    ranges: Ranges
    manifest: dict[str, Any]


def load_artifact(directory: Path) -> Artifact:
    manifest = _read_manifest(directory / MANIFEST)
    model = _read_model(directory / MODEL, str(manifest.get("sha256")))
    _check_layout(manifest, directory)
    try:
        return Artifact(
            version=str(manifest["version"]),
            model=model,
            quantiles=tuple(manifest["quantiles"]),
            calibration=_calibration(manifest["calibration"]),
            ranges=Ranges(*(np.array(manifest["ranges"][name], np.float32) for name in ("low", "high", "width"))),
            manifest=manifest,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactUnusable(f"{directory / MANIFEST} is damaged: {error!r}") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArtifactUnusable(f"no artifact at {path.parent}: {error.strerror or error}") from error
    except ValueError as error:
        raise ArtifactUnusable(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        found = manifest.get("format") if isinstance(manifest, dict) else None
        raise ArtifactUnusable(f"{path} has format {found!r}, expected {FORMAT}")
    return manifest


def _read_model(path: Path, sha256: str) -> bytes:
    try:
        model = path.read_bytes()
    except OSError as error:
        raise ArtifactUnusable(f"no model at {path}: {error.strerror or error}") from error
    found = hashlib.sha256(model).hexdigest()
    if found != sha256:
        raise ArtifactUnusable(f"{path} has sha256 {found[:12]}…, the manifest says {sha256[:12]}…")
    return model


def _check_layout(manifest: dict[str, Any], directory: Path) -> None:
    expected = {
        "features": features.VERSION,
        "facts": len(features.FACTS),
        "tokens": TOKENS,
        "token_width": TOKEN_WIDTH,
    }
    wrong = [
        f"{name} {manifest.get(name)!r}, expected {value!r}"
        for name, value in expected.items()
        if manifest.get(name) != value
    ]
    if wrong:
        raise ArtifactUnusable(f"{directory} was trained on another layout: {'; '.join(wrong)}")


def _calibration(cells: dict[str, Any]) -> Calibration:
    return Calibration({
        key: Factors(int(cell["scores"]), {float(risk): float(value) for risk, value in cell["factors"].items()})
        for key, cell in cells.items()
    })  # fmt: skip


# Of each setting that no measured run had.
_UNFAMILIAR = 0.25
_MOST_UNFAMILIAR = 1.0


def novelty_of(ranges: Ranges, described: Features) -> float:
    """Of the facts, and of settings that no fact tells; what rests on physics is not doubted without end."""
    of_facts = novelty(ranges, described.facts, described.regime)
    if not described.unfamiliar:
        return of_facts
    return min(of_facts + _UNFAMILIAR * described.unfamiliar, _MOST_UNFAMILIAR)


def novelty(ranges: Ranges, facts: NDArray[np.float32], regime: int) -> float:
    """Mean distance outside the training ranges, in their widths: 0 inside, and never above 3."""
    low, high, width = ranges.low[regime], ranges.high[regime], ranges.width[regime]
    outside = np.maximum(low - facts, 0.0) + np.maximum(facts - high, 0.0)
    return float(min(3.0, 10.0 * np.minimum(outside / width, 3.0).mean()))
