"""What was learned, how far the runs are from what the artifact knew, and whether it is kept, as Prometheus sees it.

Series are by (product, family), of which there are never more than the calibrator has cells.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.forecast.conformal import RISKS
from vramcast.outcomes.calibration import CellState
from vramcast.outcomes.drift import measure_drift

_CELL = ("product", "family")


@dataclass(frozen=True, slots=True)
class ModelView:
    """One artifact, and what it does here."""

    version: str
    source: str  # model or physics
    role: str  # active model or candidate


@dataclass(frozen=True, slots=True)
class LearnedView:
    """At the moment of a scrape. `unsaved_seconds` None: nothing is kept anywhere."""

    mode: str
    modes: Sequence[str]
    cells: Sequence[CellState]
    records: int
    saves: Mapping[str, int]
    unsaved_seconds: float | None
    models: Sequence[ModelView]


class CalibrationCollector(Collector):
    def __init__(self, view: Callable[[], LearnedView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        cells = sorted(view.cells, key=lambda cell: (cell.product, cell.family))
        yield from _learned(cells)
        yield from _drift(cells)
        yield from _state(view)


def _learned(cells: Iterable[CellState]) -> Iterator[Metric]:
    factor = GaugeMetricFamily(
        "vramcast_calibration_factor",
        "What this cluster's runs made of the artifact's bound at a risk (0.5: of its median), as a factor",
        labels=[*_CELL, "risk"],
    )
    level = GaugeMetricFamily(
        "vramcast_calibration_level",
        "Risk that is aimed at over risk that is promised: below 1 after more misses than promised",
        labels=_CELL,
    )
    outcomes, misses, shifts = (
        CounterMetricFamily(f"vramcast_calibration_{name}", text, labels=_CELL)
        for name, text in (
            ("outcomes", "Outcomes that calibration learned from"),
            ("misses", "Of these, the ones above their promise"),
            ("shifts", "Times that runs were plainly unlike those before, which were forgotten"),
        )
    )
    for cell in cells:
        labels = [cell.product, cell.family]
        for risk, correction in zip(RISKS, cell.corrections, strict=True):
            factor.add_metric([*labels, f"{risk:g}"], math.exp(correction))
        level.add_metric(labels, cell.level)
        outcomes.add_metric(labels, cell.outcomes)
        misses.add_metric(labels, cell.misses)
        shifts.add_metric(labels, cell.shifts)
    yield from (factor, level, outcomes, misses, shifts)


def _drift(cells: Iterable[CellState]) -> Iterator[Metric]:
    ratio = GaugeMetricFamily(
        "vramcast_drift_ratio", "The typical run over the artifact's own median, without calibration", labels=_CELL
    )
    coverage = GaugeMetricFamily(
        "vramcast_drift_coverage_ratio",
        "Runs that the artifact's own bound at a risk of 0.05 would have held: 0.95 is right",
        labels=_CELL,
    )
    deviations = GaugeMetricFamily(
        "vramcast_drift_deviations",
        "How surely the runs are not what the artifact was calibrated on, in standard deviations of chance",
        labels=_CELL,
    )
    for cell in cells:
        drift = measure_drift(cell)
        labels = [cell.product, cell.family]
        ratio.add_metric(labels, drift.ratio)
        coverage.add_metric(labels, drift.coverage)
        deviations.add_metric(labels, drift.deviations)
    yield from (ratio, coverage, deviations)


def _state(view: LearnedView) -> Iterator[Metric]:
    mode = GaugeMetricFamily("vramcast_calibration_mode", "1 for the mode of calibration", labels=["mode"])
    for known in view.modes:
        mode.add_metric([known], float(known == view.mode))
    yield mode
    yield GaugeMetricFamily(
        "vramcast_oom_history_tasks", "Tasks that died of OOM and get more if they return", value=view.records
    )
    saves = CounterMetricFamily(
        "vramcast_learned_state_saves", "Writes of what was learned, by result", labels=["result"]
    )
    for result, count in view.saves.items():
        saves.add_metric([result], count)
    yield saves
    unsaved = GaugeMetricFamily(
        "vramcast_learned_state_unsaved_seconds",
        "Since the oldest change that a restart would forget; none: nothing is kept",
    )
    if view.unsaved_seconds is not None:
        unsaved.add_metric([], view.unsaved_seconds)
    yield unsaved
    info = GaugeMetricFamily(
        "vramcast_model_info",
        "1, with the model's version, what it is and whether it is active",
        labels=["version", "source", "role"],
    )
    for model in view.models:
        info.add_metric([model.version, model.source, model.role], 1)
    yield info
