"""What this cluster's runs taught, put on top of a forecast; after its memory, so that no answer grows old."""

from __future__ import annotations

from dataclasses import replace

from vramcast.forecast.adjustment import UNADJUSTED, Adjustment
from vramcast.forecast.forecast import Forecast, Forecaster, Part, Source
from vramcast.names import Product
from vramcast.outcomes.calibration import Calibrator
from vramcast.task.task import Task

PART = "this cluster"


class AdaptedForecaster:
    """A forecaster and its calibrator, which go together: another model comes with one of its own.

    `calibrator` None: the artifact's bounds as they are.
    """

    def __init__(self, base: Forecaster, calibrator: Calibrator | None) -> None:
        # One reference, replaced as a whole: forecasts are made on more than one thread.
        self._pair = (base, calibrator)

    @property
    def base(self) -> Forecaster:
        return self._pair[0]

    def adopt(self, base: Forecaster, calibrator: Calibrator | None) -> None:
        self._pair = (base, calibrator)

    def forecast(self, task: Task, product: Product) -> Forecast:
        base, calibrator = self._pair
        said = base.forecast(task, product)
        if calibrator is None or said.source is Source.GIVEN:
            return said
        return adjust(said, calibrator.adjustment(product, said.family, said.risk))


def adjust(said: Forecast, adjustment: Adjustment) -> Forecast:
    """The factors that were really applied are kept: a bound never falls below its median."""
    if adjustment == UNADJUSTED:
        return said
    median = round(said.median_bytes * adjustment.median)
    bound = max(median, round(said.bound_bytes * adjustment.bound))
    applied = replace(adjustment, bound=round(bound / max(said.bound_bytes, 1), 4))
    return replace(
        said,
        median_bytes=median,
        bound_bytes=bound,
        parts=(*said.parts, Part(PART, median - said.median_bytes, explain(said, applied))),
        adjustment=applied,
    )


def explain(said: Forecast, adjustment: Adjustment) -> str:
    share = abs(adjustment.median - 1.0)
    took = f"{share:.0%} {'more' if adjustment.median > 1.0 else 'less'} than" if share >= 0.005 else "as much as"
    bound = f"bound x {adjustment.bound:.2f}"
    if not adjustment.outcomes:
        return f"other runs on {said.product} took {took} forecast, {bound}"
    return f"this cluster's runs took {took} forecast, {bound}: {adjustment.outcomes} outcomes"
