"""The accuracy of recorded forecasts on networks, and on sources, that their calibration has not seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.recorded_bounds import RecordedCalibration
from vramcast.task.vocabulary import Quantization
from vramcast.train.progress import Progress
from vramcast.train.runs.judging import DEFAULT_RISK, JudgedRun, figures, held_figures, judge_runs
from vramcast.train.runs.reader import MeasuredRun

Groups = Callable[[MeasuredRun], bool]


class _Calibrated(PhysicsForecaster):
    def __init__(self, calibration: RecordedCalibration) -> None:
        super().__init__(DEFAULT_RISK)
        self._calibration = calibration

    @property
    def recorded_calibration(self) -> RecordedCalibration:
        return self._calibration


def accuracy(
    runs: Sequence[MeasuredRun], split: str, group: Callable[[MeasuredRun], str],
    fit_others: Callable[[Groups], RecordedCalibration], progress: Progress,
) -> list[dict[str, Any]]:  # fmt: skip
    """Each network, or source, judged by cells that were fitted on the others."""
    by_group: dict[str, list[MeasuredRun]] = defaultdict(list)
    for run in runs:
        by_group[group(run)].append(run)
    judged: list[JudgedRun] = []
    for name in progress.over(sorted(by_group), f"each {split} left out"):
        others = fit_others(lambda run, name=name: group(run) == name)  # type: ignore[misc]  # bound now, as a default
        judged += judge_runs(by_group[name], _Calibrated(others), Progress(quiet=True)).judged
    by_slice: dict[str, list[JudgedRun]] = defaultdict(list)
    pooled: dict[str, list[JudgedRun]] = defaultdict(list)
    for each in judged:
        for name in (_slice(each.run), each.run.source, "all"):
            by_slice[name].append(each)
        for name in _pools(each.run):
            pooled[name].append(each)
    return [
        *({"unseen": split, **figures(name, rows)} for name, rows in sorted(by_slice.items())),
        *({"unseen": split, "slice": name, "held": held} for name, rows in sorted(pooled.items())
          if (held := held_figures(rows))),
    ]  # fmt: skip


def _slice(run: MeasuredRun) -> str:
    sharding = "sharded" if run.task.zero_stage else "single"
    return "/".join((run.source, run.method, sharding, "varying" if run.varies else "fixed"))


def _pools(run: MeasuredRun) -> Iterator[str]:
    """What runs have in common, whatever their source, method or counter; and coarse parts of each source."""
    if run.task.sequence_length is None:
        yield f"networks that read images, {run.method}"
        return
    lengths = "samples of varying length" if run.varies else "samples of one length"
    yield lengths
    if not run.task.zero_stage:
        yield f"{lengths}, {run.source} on one GPU"
    if run.task.zero_stage or run.task.quantization is not Quantization.NONE:
        yield f"{lengths}, {run.source} quantized or sharded"
