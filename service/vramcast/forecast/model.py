"""The trained model behind the seam: prior, learned correction, calibrated bound."""

from __future__ import annotations

from pathlib import Path

import structlog

from vramcast.forecast.artifact import Artifact, ArtifactUnusable, load_artifact, novelty_of
from vramcast.forecast.conformal import NOVEL, Cell, bound
from vramcast.forecast.description import Description
from vramcast.forecast.features import describe
from vramcast.forecast.forecast import Forecast, Part, Source
from vramcast.forecast.forecaster import PhysicsForecaster, RememberingForecaster
from vramcast.forecast.session import ModelSession
from vramcast.names import Product
from vramcast.task.task import Task

BUILTIN = "builtin"
PHYSICS = "physics"

log = structlog.get_logger("vramcast")


class ModelForecaster(RememberingForecaster):
    """The prior, the learned correction and a calibrated bound."""

    def __init__(self, artifact: Artifact, default_risk: float) -> None:
        super().__init__(default_risk)
        self._artifact = artifact
        self._session = ModelSession(artifact)

    @property
    def version(self) -> str:
        return self._artifact.version

    def forecast_network(self, network: Description | None, task: Task, product: Product, risk: float) -> Forecast:
        features = describe(network, task, product)
        said = self._session.predict(features)
        new = novelty_of(self._artifact.ranges, features)
        family = network.family if network else str(task.architecture or "")
        factors = self._artifact.calibration.factors(Cell(product, family, features.regime.name.lower()))
        learned = round(said.median_bytes - features.prior.total_bytes)
        ratio = said.median_bytes / features.prior.total_bytes
        return Forecast(
            product=product,
            median_bytes=round(said.median_bytes),
            bound_bytes=round(bound(said.median_bytes, said.spreads, factors, risk, new)),
            risk=risk,
            source=Source.MODEL,
            model_version=self._artifact.version,
            parts=(*features.prior.parts, Part("learned correction", learned, f"x {ratio:.3f}, novelty {new:.2f}")),
            assumptions=(*task.assumptions, *_doubts(new)),
            utilization=said.utilization,
            family=family,
        )


def _doubts(novelty_score: float) -> tuple[str, ...]:
    if novelty_score < NOVEL:
        return ()
    return (f"unlike the training data (novelty {novelty_score:.1f}): the bound is widened",)


def choose_forecaster(artifact: str, default_risk: float, *, physics_if_unusable: bool) -> RememberingForecaster:
    """The model of the artifact; physics where that is asked for, or where a damaged one may be passed over."""
    if artifact == PHYSICS:
        return PhysicsForecaster(default_risk)
    directory = builtin_artifact() if artifact == BUILTIN else Path(artifact)
    try:
        return ModelForecaster(load_artifact(directory), default_risk)
    except ArtifactUnusable as error:
        if not physics_if_unusable:
            raise
        log.warning("the artifact cannot be used, physics forecasts alone", error=str(error))
        return PhysicsForecaster(default_risk)


def builtin_artifact() -> Path:
    """Inside the installed package; in a checkout, at its top."""
    package = Path(__file__).parents[1]
    inside = package / "model_artifacts"
    return inside if inside.is_dir() else package.parents[1] / "model_artifacts"
