"""The model of step times on disk: its weights by kind of kernel, and the network of its learned factor."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vramcast.errors import ArtifactUnusable
from vramcast.forecast import speed_features
from vramcast.forecast.saved import Array
from vramcast.forecast.step_parts import CELLS, PARTS

MODEL = "speed.onnx"
MANIFEST = "speed.json"
FORMAT = 2
INPUTS = ("facts", "tokens", "kinds")
OUTPUTS = ("quantiles", "network_quantiles")
QUANTILES = (0.05, 0.5, 0.95)


@dataclass(frozen=True, slots=True)
class SpeedArtifact:
    version: str
    model: Path
    products: frozenset[str]  # that runs were timed on
    range_factor: float  # by which the learned range is stretched, so that it holds nine of ten unseen networks
    margin: float  # in logarithms, for each trait that no timed run had
    weights: dict[str, Array]  # of the parts, by cell
    manifest: dict[str, Any]


def load_speed_artifact(directory: Path) -> SpeedArtifact:
    """Raises ArtifactUnusable."""
    path, model = directory / MANIFEST, (directory / MODEL).resolve()
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = hashlib.sha256(model.read_bytes()).hexdigest()
        expected = {
            "format": FORMAT, "features": speed_features.VERSION, "facts": len(speed_features.FACTS),
            "tokens": speed_features.TOKENS, "token_width": speed_features.TOKEN_WIDTH,
            "quantiles": list(QUANTILES), "parts": list(PARTS), "sha256": found,
        }  # fmt: skip
        wrong = [f"{name} {manifest.get(name)!r}, expected {value!r}" for name, value in expected.items()
                 if manifest.get(name) != value]  # fmt: skip
        if wrong:
            raise ArtifactUnusable(f"{path} does not fit: {'; '.join(wrong)}")
        weights = {cell: np.array([float(manifest["weights"][cell][part]) for part in PARTS]) for cell in CELLS}
        return SpeedArtifact(
            str(manifest["version"]), model, frozenset(manifest["products"]), float(manifest["range_factor"]),
            float(manifest["margin"]), weights, manifest,
        )  # fmt: skip
    except OSError as error:
        raise ArtifactUnusable(f"no model of step times at {directory}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactUnusable(f"{path} is damaged: {error!r}") from error
