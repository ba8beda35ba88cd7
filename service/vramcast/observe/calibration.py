"""Metrics of calibration, drift and the models. Series are per (product, family): at most one per calibrator cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.forecast.forecast import RISKS
from vramcast.outcomes.calibration import CellState
from vramcast.outcomes.drift import measure_drift
from vramcast.outcomes.oom_history import OomRecord

_CELL = ("product", "family")


@dataclass(frozen=True, slots=True)
class ModelView:
    """One artifact and its role."""

    version: str
    source: str  # model or physics
    role: str  # active or candidate


@dataclass(frozen=True, slots=True)
class LearnedView:
    """At the moment of a scrape. `unsaved_seconds` None: nothing is stored."""

    mode: str
    modes: Sequence[str]
    cells: Sequence[CellState]
    ooms: Sequence[OomRecord]
    remembered_tasks: int
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
        "Factor on the artifact's bound at a risk (0.5: on its median), learned from this cluster's runs",
        labels=[*_CELL, "risk"],
    )
    level = GaugeMetricFamily(
        "vramcast_calibration_level",
        "Targeted risk over promised risk: below 1 after more misses than promised",
        labels=_CELL,
    )
    outcomes, misses, shifts = (
        CounterMetricFamily(f"vramcast_calibration_{name}", text, labels=_CELL)
        for name, text in (
            ("outcomes", "Outcomes that calibration learned from"),
            ("misses", "Outcomes above their promise, of those that calibration learned from"),
            ("shifts", "Times that runs changed so clearly that older ones were discarded"),
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
        "vramcast_drift_ratio", "The typical run over the artifact's own median, before calibration", labels=_CELL
    )
    coverage = GaugeMetricFamily(
        "vramcast_drift_coverage_ratio",
        "Share of runs within the artifact's own bound at a risk of 0.05: 0.95 is right",
        labels=_CELL,
    )
    deviations = GaugeMetricFamily(
        "vramcast_drift_deviations",
        "How certain it is that runs differ from those the artifact was calibrated on, in standard deviations",
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
    mode = GaugeMetricFamily("vramcast_calibration_mode", "1 for the mode in use", labels=["mode"])
    for known in view.modes:
        mode.add_metric([known], float(known == view.mode))
    yield mode
    yield GaugeMetricFamily(
        "vramcast_oom_history_tasks",
        "Tasks in the OOM history, which get more memory when they run again",
        value=len(view.ooms),
    )
    yield GaugeMetricFamily(
        "vramcast_remembered_tasks", "Tasks whose former runs are remembered", value=view.remembered_tasks
    )
    saves = CounterMetricFamily(
        "vramcast_learned_state_saves", "Writes of the learned state, by result", labels=["result"]
    )
    for result, count in view.saves.items():
        saves.add_metric([result], count)
    yield saves
    unsaved = GaugeMetricFamily(
        "vramcast_learned_state_unsaved_seconds",
        "Age of the oldest change that a restart would lose; absent where nothing is stored",
    )
    if view.unsaved_seconds is not None:
        unsaved.add_metric([], view.unsaved_seconds)
    yield unsaved
    info = GaugeMetricFamily(
        "vramcast_model_info",
        "Always 1; version, kind and role of each model are labels",
        labels=["version", "source", "role"],
    )
    for model in view.models:
        info.add_metric([model.version, model.source, model.role], 1)
    yield info
