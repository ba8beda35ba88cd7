"""One artifact's step times against measured ones, by benchmark file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vramcast.errors import ArtifactUnusable
from vramcast.forecast.onnx_session import open_session
from vramcast.forecast.speed_artifact import load_speed_artifact
from vramcast.forecast.speed_features import describe_speed
from vramcast.forecast.step_time import StepTime, interpret
from vramcast.hardware.peaks import PEAKS
from vramcast.train.progress import Progress
from vramcast.train.speed_measures import measures
from vramcast.train.speed_runs import SpeedRun, has_speed_runs, read_speed_runs


def evaluate_speed(data: Path, artifact: Path, progress: Progress) -> dict[str, Any]:
    """`slices` (`speed/<file>`) and `speed_left_out`, by reason. Both are empty without benchmark files."""
    if not has_speed_runs(data):
        return {"slices": [], "speed_left_out": {}}
    found = read_speed_runs(data, families=False)
    try:
        loaded = load_speed_artifact(artifact)
    except ArtifactUnusable as error:
        return {"slices": [], "speed_left_out": {str(error): len(found.runs)}}
    session = open_session(loaded.model)
    judged: dict[str, list[tuple[SpeedRun, StepTime]]] = {}
    for run in progress.over(found.runs, "step times"):
        described = describe_speed(run.network, run.task, PEAKS[run.product], channels_last=run.channels_last)
        if described is None:
            found.left_out["no shapes"] += 1
            continue
        judged.setdefault(run.file, []).append((run, interpret(loaded, session, described, run.task)))
    return {
        "slices": [_slice(file, rows) for file, rows in sorted(judged.items())],
        "speed_left_out": dict(found.left_out),
    }


def _slice(file: str, rows: list[tuple[SpeedRun, StepTime]]) -> dict[str, Any]:
    seconds = np.array([run.seconds for run, _ in rows])
    samples = np.array([float(run.task.batch_size) for run, _ in rows])
    low, predicted, high = np.array([(step.low_seconds, step.seconds, step.high_seconds) for _, step in rows]).T
    figures = measures(seconds, predicted, samples)
    inside = float(np.mean((low <= seconds) & (seconds <= high)))
    return {
        "slice": f"speed/{file}",
        "rows": len(rows),
        **{f"step_{name}": value for name, value in figures.items() if name != "rows"},
        "step_range_coverage": inside,
    }
