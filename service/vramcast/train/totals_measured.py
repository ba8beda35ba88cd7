"""Measured runs in settings that layers do not tell, forecast by models that never saw their architecture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vramcast.errors import InvalidTask
from vramcast.forecast.description import Description
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import PhysicsForecaster, described_network, forecast_summary
from vramcast.forecast.learned_totals import forecast_learned
from vramcast.forecast.lengths import at_longest
from vramcast.forecast.recorded_bounds import RecordedCalibration
from vramcast.forecast.summary import summarized
from vramcast.forecast.totals_model import TotalsModel
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Length, Level
from vramcast.train.progress import Progress
from vramcast.train.runs.judging import DEFAULT_RISK, JudgedRun, figures, judge_runs
from vramcast.train.runs.reader import MeasuredRun, read_runs


class ByTotals(PhysicsForecaster):
    """The rules, and what was learned; `model` None: the rules alone."""

    def __init__(self, model: TotalsModel | None, calibration: RecordedCalibration) -> None:
        super().__init__(DEFAULT_RISK)
        self._model, self._calibration = model, calibration

    def forecast_network(self, network: Description | None, task: Task, product: Product, risk: float) -> Forecast:
        model = self._model
        found = forecast_learned(model, network, task, product, risk, self._calibration) if model is not None else None
        return found or forecast_summary(task if network is None else summarized(task, network), product, risk)


def measured_accuracy(
    data_dir: Path, model_without: Callable[[str], TotalsModel], calibration: RecordedCalibration, progress: Progress
) -> list[dict[str, Any]]:
    """`model_without`: one that has not seen this network's architecture."""
    by_model: dict[int, list[MeasuredRun]] = defaultdict(list)
    models: dict[int, TotalsModel] = {}
    for run in told_by_summary(read_runs(data_dir).runs):
        model = model_without(run.network)
        models[id(model)] = model
        by_model[id(model)].append(run)
    judged: dict[str, list[JudgedRun]] = {"learned": [], "rules": []}
    for key in progress.over(list(by_model), "measured runs by summary"):
        for name, found in (("learned", models[key]), ("rules", None)):
            said = judge_runs(by_model[key], ByTotals(found, calibration), Progress(quiet=True))
            judged[name] += said.judged
    return [{"by": name, **figures(part, rows)} for name, each in judged.items() for part, rows in _slices(each)]


def told_by_summary(runs: Sequence[MeasuredRun]) -> Iterator[MeasuredRun]:
    """As a pod with a network that is in no catalog would tell them."""
    for run in runs:
        task = at_longest(run.task)
        if not unfamiliar_settings(task):
            continue
        try:
            network = described_network(task).network
        except InvalidTask:
            continue
        length = Length.LONGEST if run.task.length is not Length.FIXED else Length.FIXED
        known = replace(task, level=Level.SUMMARY, model=None, length=length)
        yield replace(run, task=known if network is None else summarized(known, network))


def _slices(judged: Sequence[JudgedRun]) -> Iterator[tuple[str, list[JudgedRun]]]:
    by_slice: dict[str, list[JudgedRun]] = defaultdict(list)
    for each in judged:
        sharding = "sharded" if each.run.task.zero_stage else "single"
        for name in ("all", each.run.source, f"{each.run.source}/{each.run.method}/{sharding}"):
            by_slice[name].append(each)
    yield from sorted(by_slice.items())
