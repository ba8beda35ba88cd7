"""How measured runs miss their recordings, by kind of run: the calibration of recorded forecasts.

Few networks were measured in most kinds, so a quantile of all runs would be that of one network. Instead a run's miss
is the cell's shift, what its network adds, and what the run adds. Shift and spread are means over networks, each of
which counts once however many runs it has, and are drawn to the wider cell's as long as there are few. The bound is a
prediction interval of Student's distribution for a run of one more network: with three networks it is wider than with
thirty.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from vramcast.errors import InvalidTask
from vramcast.forecast.counters import Counter
from vramcast.forecast.forecast import RISKS, Factors, Source
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.named import KnownSteps, steps_of
from vramcast.forecast.recorded import load_recording, run_kind
from vramcast.forecast.recorded_bounds import Figure, Learned, RecordedCalibration, RunKind
from vramcast.task.quantity import GIB
from vramcast.train.progress import Progress
from vramcast.train.runs.reader import MeasuredRun, RunEnding, read_runs

# How many networks the wider cell counts for. It takes more to shift than to widen: that a recording is right on the
# average is known from how it is made.
_SHIFT_WEIGHT = 4.0
_SPREAD_WEIGHT = 2.0
# Before any run, as two networks of the widest cell: recordings are unbiased, tensors closer than what is reserved for
# them (docs/benchmarks/recordings.md).
_FIRST_SPREADS = {Figure.TENSORS: 0.04, Figure.DEVICE: 0.08}
# A smaller run misses by what does not shrink with it, and has half a GiB of margin for that anyway.
_LEAST_GIB = 4.0
# A cell of fewer networks is left to the next wider one.
_NETWORKS = 2
# Degrees of freedom that the wider cells lend.
_LENT = 1
_REPORTED = (0.05, 0.01)


@dataclass(frozen=True, slots=True)
class Miss:
    """One figure of a run against its recording: log(measured / recorded)."""

    run: MeasuredRun
    kind: RunKind
    figure: Figure
    counter: Counter
    log_ratio: float

    @property
    def network(self) -> str:
        return self.run.network


def fit_recorded(data: Path, progress: Progress) -> dict[str, Any]:
    """The manifest's entries: the cells, and their accuracy on networks and sources that they have not seen."""
    runs = [run for run in read_runs(data).runs if _trains(run)]
    found = misses(runs, progress)
    return {
        "recorded": {name: _entry(cell) for name, cell in sorted(fit(found).cells.items())},
        "recorded_accuracy": [
            *accuracy(found, "network", lambda miss: miss.network),
            *accuracy(found, "source", lambda miss: miss.run.source),
        ],
    }


def _trains(run: MeasuredRun) -> bool:
    """Where samples differ in length, nobody knows what was recorded is what ran."""
    large = max(run.gib.values(), default=0.0) >= _LEAST_GIB
    return run.ending is RunEnding.MEASURED and large and not run.varies and not run.evaluate_only


def misses(runs: Sequence[MeasuredRun], progress: Progress) -> list[Miss]:
    """Of the runs whose own settings were recorded; those that only resemble a recording say nothing about it."""
    forecaster = PhysicsForecaster(0.05)
    found: list[Miss] = []
    for run in progress.over(runs, "recorded runs"):
        steps = steps_of(run.task)
        if not isinstance(steps, KnownSteps) or any(" counted as " in note for note in steps.task.assumptions):
            continue
        try:
            said = forecaster.forecast(replace(run.task, share=True), run.product)
        except InvalidTask:
            continue
        if said.source is not Source.RECORDING:
            continue
        kind = run_kind(load_recording(steps.key), steps.task)
        for counter, gib in run.gib.items():
            figure = Figure.TENSORS if counter is Counter.ALLOCATED else Figure.DEVICE
            ratio = math.log(gib * GIB / said.counted(counter).median_bytes)
            found.append(Miss(run, kind, figure, counter, ratio))
    return [miss for miss in found if miss.kind.measured]


@dataclass(frozen=True, slots=True)
class _Spread:
    shift: float
    spread: float
    networks: int = 0
    runs: int = 0


def fit(found: Iterable[Miss]) -> RecordedCalibration:
    """Wide cells first, because narrow ones are drawn to them."""
    gathered: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    wider: dict[str, str | None] = {}
    for miss in found:
        cells = list(miss.kind.cells(miss.figure))
        wider |= dict(zip(cells, [*cells[1:], None], strict=True))
        for cell in cells:
            gathered[cell][miss.network].append(miss.log_ratio)
    spreads: dict[str, _Spread] = {}
    for cell in sorted(gathered, key=lambda name: name.count("/")):
        above = wider[cell]
        first = _Spread(0.0, _FIRST_SPREADS[Figure(cell.split("/", maxsplit=1)[0])])
        spreads[cell] = _spread(gathered[cell], first if above is None else spreads[above])
    kept = {cell: spread for cell, spread in spreads.items() if spread.networks >= _NETWORKS or wider[cell] is None}
    return RecordedCalibration({cell: _learned(spread) for cell, spread in kept.items()})


def _spread(by_network: Mapping[str, Sequence[float]], above: _Spread) -> _Spread:
    count = len(by_network)
    middles = [float(np.median(ratios)) for ratios in by_network.values()]
    shift = (sum(middles) + _SHIFT_WEIGHT * above.shift) / (count + _SHIFT_WEIGHT)
    squares = sum(float(np.mean((np.array(ratios) - shift) ** 2)) for ratios in by_network.values())
    spread = math.sqrt((squares + _SPREAD_WEIGHT * above.spread**2) / (count + _SPREAD_WEIGHT))
    return _Spread(shift, spread, count, sum(map(len, by_network.values())))


def _learned(spread: _Spread) -> Learned:
    wide = spread.spread * math.sqrt(1.0 + 1.0 / (spread.networks + 1))
    quantile = stats.t(spread.networks + _LENT).ppf
    margins = {risk: float(wide * quantile(1.0 - risk)) for risk in RISKS}
    return Learned(spread.shift, Factors(spread.runs, margins), spread.networks)


def _entry(cell: Learned) -> dict[str, Any]:
    return {
        "shift": round(cell.shift, 4),
        "networks": cell.networks,
        "runs": cell.factors.scores,
        "margins": {f"{risk:g}": round(margin, 4) for risk, margin in cell.factors.by_risk.items()},
    }


def accuracy(found: Sequence[Miss], split: str, group: Callable[[Miss], str]) -> list[dict[str, Any]]:
    """Each network, or source, judged by cells that were fitted on the others."""
    judged: dict[tuple[str, ...], list[tuple[float, dict[float, float]]]] = defaultdict(list)
    for left_out in sorted({group(miss) for miss in found}):
        others = fit(miss for miss in found if group(miss) != left_out)
        for miss in found:
            if group(miss) == left_out:
                slice_of = (miss.run.source, str(miss.kind.method), "sharded" if miss.kind.sharded else "single")
                judged[*slice_of, str(miss.counter)].append((miss.log_ratio, _margins(miss, others)))
    return [_accuracy(split, name, rows) for name, rows in sorted(judged.items())]


def _margins(miss: Miss, calibration: RecordedCalibration) -> dict[float, float]:
    """How far the bound at each reported risk lies above the recording."""
    bounds = calibration.bounds(miss.kind, miss.run.product)
    recorded = round(miss.run.gib[miss.counter] * GIB / math.exp(miss.log_ratio))
    return {risk: math.log(bounds.bound_bytes(miss.figure, recorded, risk) / recorded) for risk in _REPORTED}


def _accuracy(split: str, name: tuple[str, ...], rows: Sequence[tuple[float, dict[float, float]]]) -> dict[str, Any]:
    off = np.array([miss for miss, _ in rows])
    return {
        "unseen": split,
        "slice": "/".join(name),
        "rows": len(rows),
        "median_error": float(np.median(np.abs(np.expm1(-off)))),
        "coverage": {f"{r:g}": float(np.mean([miss <= margins[r] for miss, margins in rows])) for r in _REPORTED},
        "over_reservation": {
            f"{r:g}": float(np.median([math.expm1(margins[r] - miss) for miss, margins in rows])) for r in _REPORTED
        },
    }
