"""`vramcast train` from scratch: every part of an artifact, one after the other, and one manifest that names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vramcast.train.artifact_parts import name_parts
from vramcast.train.fitting import Schedule
from vramcast.train.network import Shape
from vramcast.train.pipeline import train
from vramcast.train.progress import Progress
from vramcast.train.speed import train_speed
from vramcast.train.speed_network import SpeedSchedule
from vramcast.train.speed_runs import has_speed_runs, modules_of_timm
from vramcast.train.totals import fit_totals
from vramcast.train.totals_blend import Schedules


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The defaults are those of what ships."""

    seeds: int = 2
    shape: Shape = field(default_factory=Shape)
    schedule: Schedule = field(default_factory=Schedule)
    totals: Schedules = field(default_factory=Schedules)
    simulated: Sequence[str] | None = None  # models; None: every recorded one
    speed: SpeedSchedule = field(default_factory=SpeedSchedule)


@dataclass(frozen=True, slots=True)
class TrainedParts:
    """The manifest of each part. `speed` is None without benchmarks to learn from."""

    memory: dict[str, Any]
    totals: dict[str, Any]
    speed: dict[str, Any] | None


def train_everything(
    data: Path, out: Path, progress: Progress, plan: TrainingPlan, networks_of: Path | None = None
) -> TrainedParts:  # fmt: skip
    """Continues where it was interrupted: what a stage made is kept in `out/work`."""
    timed = has_speed_runs(data)
    if timed:
        modules_of_timm()  # raises now what step times would only raise after an hour
    seeds = range(1, plan.seeds + 1)
    memory = train(data, out, seeds, progress, plan.shape, plan.schedule, networks_of)
    with progress.stage("totals"):
        totals = fit_totals(data, out, progress, plan.totals, plan.simulated)
    speed = None
    if timed:
        with progress.stage("time per step"):
            speed = train_speed(data, out, progress, plan.speed)
    else:
        progress.say(f"{data} has no speed/*.csv: times per step are not trained")
    name_parts(out)
    return TrainedParts(memory, totals, speed)
