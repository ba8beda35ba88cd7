"""The trained artifact, `model.onnx` and `manifest.json`: load it, run it, bound what it predicts.

It loads only if the manifest matches the model file and this version's feature layout.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import ArtifactUnusable
from vramcast.forecast import features, totals_model
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.description import Description
from vramcast.forecast.features import Features, unfamiliar_settings
from vramcast.forecast.forecast import (
    NOVEL,
    Calibration,
    Cell,
    Factors,
    Forecast,
    Part,
    Source,
    Spreads,
    bound,
)
from vramcast.forecast.forecaster import CachingForecaster, PhysicsForecaster
from vramcast.forecast.learned_totals import forecast_learned
from vramcast.forecast.onnx_session import open_session
from vramcast.forecast.recorded_bounds import Learned, RecordedCalibration
from vramcast.forecast.totals_model import TotalsModel
from vramcast.forecast.warnings import warn
from vramcast.hardware.utilization import Utilization
from vramcast.names import Product
from vramcast.task.task import Task

BUILTIN = "builtin"
PHYSICS = "physics"
MODEL = "model.onnx"
MANIFEST = "manifest.json"
FORMAT = 1
INPUTS = ("facts", "tokens", "kinds")
OUTPUTS = ("quantiles", "utilization", "network_quantiles")
# Novelty per setting that no measured run had.
_UNFAMILIAR = 0.25
_MOST_UNFAMILIAR = 1.0


class ModelForecaster(CachingForecaster):
    """The physics prior, the learned correction and a calibrated bound."""

    def __init__(self, artifact: Artifact, default_risk: float, *, when_needed: bool = False) -> None:
        """`when_needed`: load the model with the first forecast that needs it. A recording does not."""
        super().__init__(default_risk)
        self._artifact = artifact
        if not when_needed:
            self._session  # noqa: B018 - loads it

    @cached_property
    def _session(self) -> ModelSession:
        return ModelSession(self._artifact)

    @property
    def version(self) -> str:
        return self._artifact.version

    @property
    def recorded_calibration(self) -> RecordedCalibration:
        return self._artifact.recorded

    @cached_property
    def _totals(self) -> TotalsModel:
        """The artifact's own, or what ships: it depends on recordings, not on anybody's runs."""
        own = self._artifact.model.parent
        return TotalsModel(own if (own / totals_model.MANIFEST).exists() else builtin_artifact())

    def forecast_network(self, network: Description | None, task: Task, product: Product, risk: float) -> Forecast:
        described = features.describe(network, task, product)
        predicted = self._session.predict(described)
        if unfamiliar_settings(task):
            learned = forecast_learned(self._totals, network, task, product, risk, self.recorded_calibration)
            if learned is not None:
                # Recordings teach memory alone: how busy the GPU is still comes from the model of measured runs.
                return replace(learned, utilization=predicted.utilization, model_version=self.version)
        return self._corrected(described, predicted, network, task, product, risk)

    def _corrected(
        self, described: Features, predicted: Prediction, network: Description | None, task: Task, product: Product,
        risk: float,
    ) -> Forecast:  # fmt: skip
        new = novelty_of(self._artifact.ranges, described)
        family = network.family if network else str(task.architecture or "")
        factors = self._artifact.calibration.factors(Cell(product, family, described.regime.name.lower()))
        prior = described.prior
        # Far from the runs it was trained on, the correction may take away what every run holds.
        median = max(predicted.median_bytes, float(prior.held_bytes))
        learned = round(median - prior.total_bytes)
        ratio = median / prior.total_bytes
        return Forecast(
            product=product,
            median_bytes=round(median),
            bound_bytes=round(bound(median, predicted.spreads, factors, risk, new)),
            risk=risk,
            source=Source.MODEL,
            model_version=self._artifact.version,
            parts=(*prior.parts, Part("learned correction", learned, f"x {ratio:.3f}, novelty {new:.2f}")),
            assumptions=(*task.assumptions, *_novelty_warning(new)),
            utilization=predicted.utilization,
            family=family,
        )


def _novelty_warning(novelty_score: float) -> tuple[str, ...]:
    if novelty_score < NOVEL:
        return ()
    return (f"unlike the training data (novelty {novelty_score:.1f}): the bound is widened",)


def choose_forecaster(
    artifact: str, default_risk: float, *, physics_if_unusable: bool, when_needed: bool = False
) -> CachingForecaster:
    """`artifact` is a directory, `builtin` or `physics`. Raises ArtifactUnusable, unless physics may replace it.

    `when_needed`: see ModelForecaster. For commands, whose first answer should not wait for what it does not need.
    """
    if artifact == PHYSICS:
        return PhysicsForecaster(default_risk)
    directory = builtin_artifact() if artifact == BUILTIN else Path(artifact)
    try:
        return ModelForecaster(load_artifact(directory), default_risk, when_needed=when_needed)
    except ArtifactUnusable as error:
        if not physics_if_unusable:
            raise
        warn("the artifact cannot be used, forecasting from physics alone", error=str(error))
        return PhysicsForecaster(default_risk)


@dataclass(frozen=True, slots=True)
class Ranges:
    """The range of each fact in the training data; anything outside is novel. Arrays are (regimes, facts)."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    width: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Artifact:
    version: str
    model: Path
    quantiles: tuple[float, ...]
    calibration: Calibration
    ranges: Ranges
    recorded: RecordedCalibration
    manifest: dict[str, Any]


def load_artifact(directory: Path) -> Artifact:
    manifest = _read_manifest(directory / MANIFEST)
    # Resolved, because the kubelet replaces a mounted directory by moving a link.
    model = (directory / MODEL).resolve()
    _check_model(model, str(manifest.get("sha256")))
    _check_layout(manifest, directory)
    try:
        return Artifact(
            version=str(manifest["version"]),
            model=model,
            quantiles=tuple(manifest["quantiles"]),
            calibration=_calibration(manifest["calibration"]),
            ranges=Ranges(*(np.array(manifest["ranges"][name], np.float32) for name in ("low", "high", "width"))),
            recorded=_recorded(manifest.get("recorded", {})),
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


def _check_model(path: Path, sha256: str) -> None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ArtifactUnusable(f"no model at {path}: {error.strerror or error}") from error
    if found != sha256:
        raise ArtifactUnusable(f"{path} has sha256 {found[:12]}…, the manifest expects {sha256[:12]}…")


def _check_layout(manifest: dict[str, Any], directory: Path) -> None:
    expected = {
        "features": features.VERSION,
        "facts": len(features.FACTS),
        "tokens": features.TOKENS,
        "token_width": features.TOKEN_WIDTH,
    }
    wrong = [
        f"{name} {manifest.get(name)!r}, expected {value!r}"
        for name, value in expected.items()
        if manifest.get(name) != value
    ]
    if wrong:
        raise ArtifactUnusable(f"{directory} was trained on another feature layout: {'; '.join(wrong)}")


def _calibration(cells: dict[str, Any]) -> Calibration:
    return Calibration({
        key: Factors(int(cell["scores"]), {float(risk): float(value) for risk, value in cell["factors"].items()})
        for key, cell in cells.items()
    })  # fmt: skip


def _recorded(cells: dict[str, Any]) -> RecordedCalibration:
    """Absent from artifacts that were made before recordings."""
    return RecordedCalibration({
        name: Learned(
            float(cell["shift"]),
            Factors(int(cell["runs"]), {float(risk): float(value) for risk, value in cell["margins"].items()}),
            int(cell["networks"]),
        )
        for name, cell in cells.items()
    })  # fmt: skip


def novelty_of(ranges: Ranges, described: Features) -> float:
    """Novelty of the facts and of settings that no fact covers. Physics covers those settings, so they are capped."""
    of_facts = novelty(ranges, described.facts, described.regime)
    if not described.unfamiliar:
        return of_facts
    return min(of_facts + _UNFAMILIAR * described.unfamiliar, _MOST_UNFAMILIAR)


def novelty(ranges: Ranges, facts: NDArray[np.float32], regime: int) -> float:
    """Mean distance from the training ranges, in units of their width: 0 inside, at most 3."""
    low, high, width = ranges.low[regime], ranges.high[regime], ranges.width[regime]
    outside = np.maximum(low - facts, 0.0) + np.maximum(facts - high, 0.0)
    return float(min(3.0, 10.0 * np.minimum(outside / width, 3.0).mean()))


@dataclass(frozen=True, slots=True)
class Prediction:
    median_bytes: float
    network_median_bytes: float  # without the trees, for comparison
    spreads: Spreads
    utilization: Utilization


class ModelSession:
    def __init__(self, artifact: Artifact) -> None:
        self._session = open_session(artifact.model)
        self._quantiles = artifact.quantiles
        self._median = artifact.quantiles.index(0.5)

    def predict(self, features: Features) -> Prediction:
        quantiles, utilization, network = self._session.run(
            OUTPUTS,
            {"facts": features.facts[None], "tokens": features.tokens[None], "kinds": features.kinds[None]},
        )
        # Each unfamiliar setting gives physics more weight.
        trust = 1.0 / (1.0 + features.unfamiliar)
        return self.interpret(features.prior.total_bytes, quantiles[0], utilization[0], network[0], trust)

    def interpret(
        self, prior_bytes: float, quantiles: np.ndarray, utilization: np.ndarray, network: np.ndarray, trust: float
    ) -> Prediction:
        median = float(quantiles[self._median])
        spreads = {
            round(1.0 - level, 6): float(quantiles[index]) - median
            for index, level in enumerate(self._quantiles)
            if level > 0.5
        }
        gpu_util, sm_active, sm_occupancy = (float(value) for value in utilization)
        return Prediction(
            prior_bytes * math.exp(trust * median),
            prior_bytes * math.exp(trust * float(network[self._median])),
            Spreads(spreads),
            Utilization(gpu_util=gpu_util, sm_active=sm_active, sm_occupancy=sm_occupancy),
        )
