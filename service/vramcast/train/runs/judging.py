"""Published runs against the forecasts that a pod with their annotations would get, by slice and counter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vramcast.errors import InvalidTask
from vramcast.forecast.counters import Counter, CounterForecast
from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.forecast.report import usable_mib
from vramcast.names import Product
from vramcast.task.quantity import GIB, MIB
from vramcast.task.task import Task
from vramcast.train.progress import Progress
from vramcast.train.runs.reader import MeasuredRun, RunEnding, Runs, read_runs

RISKS = (0.1, 0.05, 0.01)
DEFAULT_RISK = 0.05  # every forecast here says its own
_PERCENTILES = (80, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """A run with its forecast at each risk. An interval also has those of the batch that did not fit."""

    run: MeasuredRun
    forecasts: dict[float, Forecast]
    failing: dict[float, Forecast]

    def counted(self, counter: Counter, risk: float) -> CounterForecast:
        return self.forecasts[risk].counted(counter)


@dataclass(frozen=True, slots=True)
class JudgedRuns:
    judged: list[JudgedRun]
    refused: list[tuple[MeasuredRun, str]]  # the catalog knows the network, but not at this size


def judge_runs(runs: Sequence[MeasuredRun], forecaster: Forecaster, progress: Progress) -> JudgedRuns:
    judged, refused = [], []
    for run in progress.over(runs, "published runs"):
        try:
            failing = (
                _forecasts(replace(run.task, batch_size=run.fail_batch), run, forecaster) if run.fail_batch else {}
            )
            judged.append(JudgedRun(run, _forecasts(run.task, run, forecaster), failing))
        except InvalidTask as error:
            refused.append((run, error.errors[0].field))
    return JudgedRuns(judged, refused)


def _forecasts(task: Task, run: MeasuredRun, forecaster: Forecaster) -> dict[float, Forecast]:
    return {risk: forecaster.forecast(replace(task, max_oom_risk=risk), run.product) for risk in RISKS}


def evaluate_runs(data: Path, forecaster: Forecaster, progress: Progress) -> dict[str, Any]:
    """Slices of all published runs, and what was left out and why."""
    found = read_runs(data)
    judged = judge_runs(found.runs, forecaster, progress)
    return {"slices": slices(judged.judged), "left_out": left_out(found, judged)}


def left_out(found: Runs, judged: JudgedRuns) -> dict[str, dict[str, int]]:
    """By file and reason, the number of rows."""
    counted: dict[str, dict[str, int]] = {}
    for (source, reason), rows in found.left_out.most_common():
        counted.setdefault(source, {})[reason] = rows
    for run, field in judged.refused:
        reasons, reason = counted.setdefault(run.source, {}), f"not forecast: {field}"
        reasons[reason] = reasons.get(reason, 0) + run.repeats
    return counted


def slices(judged: Sequence[JudgedRun]) -> list[dict[str, Any]]:
    """One per file, then finer ones: by method, number of GPUs, fixed or varying length, and what answered."""
    found = []
    for source in sorted({each.run.source for each in judged}):
        of_source = [each for each in judged if each.run.source == source]
        found.append(figures(f"runs/{source}", of_source))
        for name, key in _FINER.items():
            values = sorted({key(each) for each in of_source})
            if len(values) > 1:
                found += [
                    figures(f"runs/{source}/{name}={value}", [each for each in of_source if key(each) == value])
                    for value in values
                ]
    return found


_FINER = {
    "method": lambda each: each.run.method,
    "gpus": lambda each: f"{each.run.gpus:03d}".lstrip("0"),
    "length": lambda each: "varying" if each.run.varies else "fixed",
    "source": lambda each: str(each.forecasts[RISKS[0]].source),
    "product": lambda each: str(each.run.product),
}


def figures(name: str, judged: Sequence[JudgedRun]) -> dict[str, Any]:
    measured = [each for each in judged if each.run.ending is RunEnding.MEASURED]
    result: dict[str, Any] = {"slice": name, "rows": len(measured), "networks": len({e.run.network for e in judged})}
    by_counter: dict[Counter, list[JudgedRun]] = {}
    for each in measured:
        by_counter.setdefault(each.run.primary, []).append(each)
    if by_counter:
        main = max(by_counter, key=lambda counter: len(by_counter[counter]))
        result |= {"counter": main, **_errors([(each, main) for each in by_counter[main]])}
        read = {counter: [(each, counter) for each in measured if counter in each.run.gib] for counter in Counter}
        result["counters"] = {counter: _errors(rows) for counter, rows in read.items() if rows}
    return result | _censored(judged)


def held_figures(judged: Sequence[JudgedRun]) -> dict[str, Any]:
    """Over sources that read different counters of what a run holds of its GPU: the device's, else torch's reserved."""
    return _errors([
        (each, counter)
        for each in judged
        if each.run.ending is RunEnding.MEASURED and (counter := _held(each.run)) is not None
    ])  # fmt: skip


def _held(run: MeasuredRun) -> Counter | None:
    return next((counter for counter in (Counter.DEVICE, Counter.RESERVED) if counter in run.gib), None)


def _errors(judged: Sequence[tuple[JudgedRun, Counter]]) -> dict[str, Any]:
    """Empty without runs."""
    if not judged:
        return {}
    measured = np.array([each.run.gib[counter] * GIB for each, counter in judged])
    medians = np.array([_capped(each, each.counted(counter, DEFAULT_RISK).median_bytes) for each, counter in judged])
    error = np.abs(medians - measured) / measured
    bounds = {
        risk: np.array([each.counted(counter, risk).bound_bytes for each, counter in judged]) for risk in RISKS
    }  # fmt: skip
    return {
        "rows": len(judged),
        "median_error": float(np.median(error)),
        "mean_error": float(error.mean()),
        **{f"p{p}_error": float(np.percentile(error, p)) for p in _PERCENTILES},
        "under_share": float((medians < measured).mean()),
        "coverage": {f"{risk:g}": float((bound >= measured).mean()) for risk, bound in bounds.items()},
        "over_reservation": {f"{risk:g}": float(np.median(bound / measured - 1)) for risk, bound in bounds.items()},
    }


def _capped(each: JudgedRun, median_bytes: int) -> int:
    """A run that finished fitted its GPU."""
    room = _room_bytes(each.run.product)
    return median_bytes if room is None else min(median_bytes, room)


def _room_bytes(product: Product) -> int | None:
    usable = usable_mib(product)
    return None if usable is None else usable * MIB


def _censored(judged: Iterable[JudgedRun]) -> dict[str, Any]:
    """Runs without a figure: whether the bound would have kept off what died, and let in what fitted."""
    groups = {ending: [each for each in judged if each.run.ending is ending] for ending in RunEnding}
    result: dict[str, Any] = {}
    if died := groups[RunEnding.OUT_OF_MEMORY]:
        result |= {"oom_rows": len(died), "oom_foreseen": _share(died, fits=False)}
    if fitted := groups[RunEnding.FITTED]:
        result |= {"fitted_rows": len(fitted), "fitted_allowed": _share(fitted, fits=True)}
    if ladder := groups[RunEnding.INTERVAL]:
        result |= {"interval_rows": len(ladder), **_ladder(ladder)}
    return result


def _share(judged: Sequence[JudgedRun], *, fits: bool) -> dict[str, float]:
    return {
        f"{risk:g}": float(np.mean([_fits(each.forecasts[risk], each.run.product) is fits for each in judged]))
        for risk in RISKS
    }


def _fits(forecast: Forecast, product: Product) -> bool:
    room = _room_bytes(product)
    return room is None or forecast.bound_bytes <= room


def _ladder(judged: Sequence[JudgedRun]) -> dict[str, Any]:
    """The median inside its interval, and at each risk what the bound allows of the batches that ran and that died."""
    far = [_distance(each) for each in judged]
    return {
        "interval_inside": float(np.mean([distance == 0 for distance in far])),
        "interval_distance": float(np.mean(np.abs(far))),
        "interval_batch_allowed": {
            f"{risk:g}": float(np.mean([_allowed(each, risk) for each in judged])) for risk in RISKS
        },
        "interval_oom_foreseen": {
            f"{risk:g}": float(np.mean([not _fits(each.failing[risk], each.run.product) for each in judged]))
            for risk in RISKS
        },
    }


def _distance(each: JudgedRun) -> float:
    """In logarithms, how far the GPU's memory lies outside of what the two batches are said to take."""
    room = _room_bytes(each.run.product) or 1
    fits, fails = each.forecasts[DEFAULT_RISK].median_bytes, each.failing[DEFAULT_RISK].median_bytes
    return math.log(fits / room) if fits > room else math.log(fails / room) if fails < room else 0.0


def _allowed(each: JudgedRun, risk: float) -> float:
    """The largest batch that the bound allows over the largest that ran, if needs grow in proportion; at most 1."""
    room = _room_bytes(each.run.product) or 1
    forecast = each.forecasts[risk]
    fixed = forecast.context_bytes
    return min(1.0, max(0.0, (room - fixed) / max(1, forecast.bound_bytes - fixed)))
