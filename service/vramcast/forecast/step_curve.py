"""Memory over the steps of a recording, small enough to draw."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vramcast.forecast.named import NoSteps, steps_of
from vramcast.forecast.peak_parts import ROLE_NAMES
from vramcast.forecast.peaks import AllocatorSettings, memory_curve
from vramcast.forecast.recorded import task_tape
from vramcast.forecast.tape import Moment, Role
from vramcast.task.task import Task
from vramcast.task.vocabulary import Allocator

_MOST_POINTS = 400
_PHASES = {Moment.STEP: "step", Moment.FORWARD: "forward", Moment.BACKWARD: "backward", Moment.UPDATE: "update"}


@dataclass(frozen=True, slots=True)
class PhaseStart:
    phase: str
    event: int


@dataclass(frozen=True, slots=True)
class StepCurve:
    """`events`: where each point is. Of the events between two points the fullest is shown, so no peak is lost."""

    events: tuple[int, ...]
    reserved_bytes: tuple[int, ...]
    by_role_bytes: dict[str, tuple[int, ...]]
    phases: tuple[PhaseStart, ...]
    total_events: int


def step_curve(task: Task) -> StepCurve | None:
    """None: the task is not described by a recording. Raises InvalidTask."""
    steps = steps_of(task)
    if isinstance(steps, NoSteps):
        return None
    tape = task_tape(steps.key, steps.task)
    expandable = task.allocator is Allocator.EXPANDABLE_SEGMENTS
    curve = memory_curve(tape, AllocatorSettings(expandable_segments=expandable))
    total = len(curve.active_bytes)
    edges = np.unique(np.linspace(0, total, min(total, _MOST_POINTS) + 1).astype(np.int64))
    shown = [int(low + curve.active_bytes[low:high].argmax()) for low, high in pairwise(edges)]
    roles = [role for role in Role if curve.by_role_bytes[:, role].any()]
    return StepCurve(
        events=tuple(shown),
        reserved_bytes=tuple(map(int, curve.reserved_bytes[shown])),
        by_role_bytes={ROLE_NAMES[role]: tuple(map(int, curve.by_role_bytes[shown, role])) for role in roles},
        phases=tuple(PhaseStart(_PHASES[mark.moment], mark.event) for mark in tape.marks if mark.moment in _PHASES),
        total_events=total,
    )
