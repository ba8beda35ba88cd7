"""How measured runs miss their recordings, by kind of run: the calibration of recorded forecasts.

Few networks were measured in most kinds, so a quantile of all runs would be that of one network. Instead a run's miss
is the cell's shift, what its source and its network add, and what the run adds. Shift and spread are means over
networks of a source, each of which counts once however many runs it has, and are drawn to the wider cell's as long as
there are few. The bound is a prediction interval of Student's distribution for a run of one more network from one more
source: with three networks it is wider than with thirty. What a wider cell lends to the spread, it lends in degrees of
freedom too, so that a kind that only one network had is bounded by what networks differ by elsewhere.

Of image networks there are hundreds, each with the largest batch that ran and the next one, which did not. Their need
is taken as the middle between the two, and the bound is a conformal quantile.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from vramcast.errors import InvalidTask
from vramcast.forecast.counters import Counter
from vramcast.forecast.forecast import MIN_SCORES, RISKS, Factors, Forecast, Source, conformal_quantile
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.lengths import at_longest
from vramcast.forecast.named import KnownSteps, steps_of
from vramcast.forecast.recorded import load_recording
from vramcast.forecast.recorded_bounds import Figure, Learned, RecordedCalibration, RunKind
from vramcast.forecast.report import usable_mib
from vramcast.forecast.run_kind import run_kind
from vramcast.task.quantity import GIB, MIB
from vramcast.train.progress import Progress
from vramcast.train.recorded_accuracy import Groups, accuracy
from vramcast.train.runs.reader import MeasuredRun, RunEnding, read_runs

# How many networks the wider cell counts for. It takes more to shift than to widen: that a recording is right on the
# average is known from how it is made.
_SHIFT_WEIGHT = 4.0
_SPREAD_WEIGHT = 3.0
# Before any run, as two networks of the widest cell: recordings are unbiased, tensors closer than what is reserved for
# them (docs/benchmarks/recordings.md), and nobody knows the longest batch to the token.
_FIRST_SPREADS = {
    "tensors/fixed": 0.04, "device/fixed": 0.08, "tensors/varying": 0.06, "device/varying": 0.12, "tensors/images": 0.1,
    "device/images": 0.2,
}  # fmt: skip
# What another source adds: its counters, versions and loop; where lengths vary, its data. This is before any run, as
# four degrees of freedom: few kinds have more than three sources.
_SOURCE_SPREADS = {
    "tensors/fixed": 0.06, "device/fixed": 0.05, "tensors/varying": 0.06, "device/varying": 0.1,
    "tensors/images": 0.05, "device/images": 0.08,
}  # fmt: skip
_SOURCE_FREEDOM = 4.0
# A network that is further off counts as if it were as far: something else was wrong with it, and it would widen the
# bounds of all others. Varying lengths can do that by themselves.
_FURTHEST = {"fixed": 0.25, "varying": 0.4, "images": 0.25}
# A smaller run misses by what does not shrink with it, and has half a GiB of margin for that anyway.
_LEAST_GIB = 4.0
# Degrees of freedom that the wider cells lend: as many as networks, and one for what is known before any run.
_LENT = _SPREAD_WEIGHT + 1.0
# Runs of a sweep over sizes that count.
_SWEEP = 12
# Where a run fills its GPU, the allocator gives cached memory back: what it reserved says little about what it would
# have reserved.
_FULL = 0.92


@dataclass(frozen=True, slots=True)
class Miss:
    """One figure of a run against its recording: log(measured / recorded)."""

    run: MeasuredRun
    kind: RunKind
    figure: Figure
    counter: Counter
    log_ratio: float

    @property
    def group(self) -> tuple[str, str]:
        return self.run.source, self.run.network


def fit_recorded(data: Path, progress: Progress) -> dict[str, Any]:
    """The manifest's entries: the cells, and their accuracy on networks and sources that they have not seen."""
    found = misses(_thinned([run for run in read_runs(data).runs if _counts(run)]), progress)
    runs = list({id(miss.run): miss.run for miss in found}.values())
    language = [run for run in runs if run.task.sequence_length is not None]

    def fit_others(left_out: Groups) -> RecordedCalibration:
        return fit(miss for miss in found if miss.run.peak and not left_out(miss.run))

    cells = fit_others(lambda _: False).cells
    return {
        "recorded": {name: _entry(cell) for name, cell in sorted(cells.items())},
        "recorded_accuracy": [
            *accuracy(runs, "network", lambda run: run.network, fit_others, progress),
            *accuracy(language, "source", lambda run: run.source, fit_others, progress),
        ],
    }


def _counts(run: MeasuredRun) -> bool:
    if run.evaluate_only:
        return False
    if run.ending is RunEnding.INTERVAL:
        return run.fail_batch < 2 * run.task.batch_size  # twice the batch says little about what one takes
    return run.ending is RunEnding.MEASURED and max(run.gib.values()) >= _LEAST_GIB


def _thinned(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Of a dense sweep over sizes, some from the smallest to the largest: neighbours say the same."""
    sweeps: dict[object, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        key = replace(run.task, batch_size=1, sequence_length=None, input_size=None)
        sweeps[run.source, run.network, key, run.ending].append(run)
    kept: list[MeasuredRun] = []
    for sweep in sweeps.values():
        sweep.sort(key=lambda run: run.task.batch_size * (run.task.sequence_length or 1))
        kept += sweep[:: max(1, len(sweep) // _SWEEP)]
    return kept


def misses(runs: Sequence[MeasuredRun], progress: Progress) -> list[Miss]:
    """Of the runs whose own settings were recorded; those that only resemble a recording say nothing about it."""
    forecaster = PhysicsForecaster(0.05)
    return [miss for run in progress.over(runs, "recorded runs") for miss in _misses(run, forecaster)]


def _misses(run: MeasuredRun, forecaster: PhysicsForecaster) -> Iterable[Miss]:
    steps = steps_of(at_longest(run.task))
    if not isinstance(steps, KnownSteps) or any(" counted as " in note for note in steps.task.assumptions):
        return
    kind = run_kind(load_recording(steps.key), steps.task)
    room_bytes = (usable_mib(run.product) or math.inf) * MIB
    try:
        said = forecaster.forecast(replace(run.task, share=True), run.product)
        if not kind.measured or said.source is not Source.RECORDING:
            return
        if run.ending is RunEnding.INTERVAL:
            failing = forecaster.forecast(replace(run.task, share=True, batch_size=run.fail_batch), run.product)
            yield from _between(run, kind, (said, failing), room_bytes)
            return
    except InvalidTask:
        return
    for counter, gib in run.gib.items():
        figure = Figure.TENSORS if counter is Counter.ALLOCATED else Figure.DEVICE
        median_bytes = said.counted(counter).median_bytes
        if figure is Figure.TENSORS or max(gib * GIB, median_bytes) < _FULL * room_bytes:
            yield Miss(run, kind, figure, counter, math.log(gib * GIB / median_bytes))


def _between(run: MeasuredRun, kind: RunKind, both: tuple[Forecast, Forecast], room_bytes: float) -> Iterable[Miss]:
    """A batch ran and the next did not: whatever the figure, it passed the room somewhere between them."""
    for figure, counter in ((Figure.DEVICE, Counter.DEVICE), (Figure.TENSORS, Counter.ALLOCATED)):
        rooms = [room_bytes - (said.context_bytes if figure is Figure.TENSORS else 0) for said in both]
        sizes = [said.counted(counter).median_bytes for said in both]
        middle = sum(math.log(room / size) for room, size in zip(rooms, sizes, strict=True)) / 2
        yield Miss(run, kind, figure, counter, middle)


@dataclass(frozen=True, slots=True)
class _Spread:
    shift: float
    spread: float
    groups: int = 0  # networks of a source
    networks: int = 0
    sources: int = 0
    runs: int = 0


_ByGroup = Mapping[tuple[str, str], Sequence[float]]


def fit(found: Iterable[Miss]) -> RecordedCalibration:
    """Wide cells first, because narrow ones are drawn to them."""
    gathered: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    wider: dict[str, str | None] = {}
    for miss in found:
        cells = list(miss.kind.cells(miss.figure))
        wider |= dict(zip(cells, [*cells[1:], None], strict=True))
        for cell in cells:
            gathered[cell][miss.group].append(miss.log_ratio)
    spreads: dict[str, _Spread] = {}
    for cell in sorted(gathered, key=lambda name: name.count("/")):
        above = wider[cell]
        wide = _Spread(0.0, _FIRST_SPREADS[cell]) if above is None else spreads[above]
        spreads[cell] = _spread(gathered[cell], wide, _FURTHEST[cell.split("/")[1]])
    between = {cell: _between_sources(gathered[cell], cell) for cell in {_widest(cell) for cell in gathered}}
    return RecordedCalibration({
        cell: _by_rank(gathered[cell]) if spread.networks >= MIN_SCORES else _by_student(spread, between[_widest(cell)])
        for cell, spread in spreads.items()
    })  # fmt: skip


def _widest(cell: str) -> str:
    return "/".join(cell.split("/")[:2])


def _spread(by_group: _ByGroup, above: _Spread, furthest: float) -> _Spread:
    count = len(by_group)
    middles = np.array([float(np.median(ratios)) for ratios in by_group.values()])
    shift = (float(middles.clip(-furthest, furthest).sum()) + _SHIFT_WEIGHT * above.shift) / (count + _SHIFT_WEIGHT)
    squares = sum(min(furthest**2, float(np.mean((np.array(ratios) - shift) ** 2))) for ratios in by_group.values())
    spread = math.sqrt((squares + _SPREAD_WEIGHT * above.spread**2) / (count + _SPREAD_WEIGHT))
    networks, sources = ({group[at] for group in by_group} for at in (1, 0))
    return _Spread(shift, spread, count, len(networks), len(sources), sum(map(len, by_group.values())))


def _between_sources(by_group: _ByGroup, widest: str) -> float:
    """What sources differ by beyond what their networks explain, by the method of moments for random effects."""
    expected, furthest = _SOURCE_SPREADS[widest], _FURTHEST[widest.split("/")[1]]
    middles: dict[str, list[float]] = defaultdict(list)
    for (source, _), ratios in by_group.items():
        middles[source].append(float(np.clip(np.median(ratios), -furthest, furthest)))
    means = np.array([np.mean(of_source) for of_source in middles.values()])
    counts = np.array([len(of_source) for of_source in middles.values()])
    freedom = int((counts - 1).sum())
    inside = sum(float(np.var(of_source)) * len(of_source) for of_source in middles.values())
    networks = (inside / freedom if freedom else expected**2) / counts  # what they add to each mean
    weights = 1.0 / (expected**2 + networks)
    apart = (means - np.average(means, weights=weights)) ** 2
    unbiased = len(means) / max(1, len(means) - 1)
    squares = float(np.maximum(apart * unbiased - networks, 0.0).sum()) / unbiased
    return math.sqrt((_SOURCE_FREEDOM * expected**2 + squares) / (_SOURCE_FREEDOM + len(means) - 1))


def _by_student(spread: _Spread, between_sources: float) -> Learned:
    """The more sources a cell has, the more of what they differ by is in its spread."""
    sources = between_sources / math.sqrt(spread.sources)
    freedom = spread.groups + _LENT
    wide = math.hypot(spread.spread, sources) * math.sqrt(1.0 + 1.0 / freedom)
    quantile = stats.t(freedom).ppf
    margins = {risk: float(wide * quantile(1.0 - risk)) for risk in RISKS}
    return Learned(spread.shift, Factors(spread.runs, margins), spread.networks)


def _by_rank(by_group: _ByGroup) -> Learned:
    """For many networks: the quantile that one more exceeds with the stated risk."""
    middles = [float(np.median(ratios)) for ratios in by_group.values()]
    shift = float(np.median(middles))
    margins = {risk: conformal_quantile(middles, risk) - shift for risk in RISKS}
    return Learned(shift, Factors(sum(map(len, by_group.values())), margins), len(by_group))


def _entry(cell: Learned) -> dict[str, Any]:
    return {
        "shift": round(cell.shift, 4),
        "networks": cell.networks,
        "runs": cell.factors.scores,
        "margins": {f"{risk:g}": round(margin, 4) for risk, margin in cell.factors.by_risk.items()},
    }
