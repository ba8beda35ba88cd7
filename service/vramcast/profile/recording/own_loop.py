"""A user's own loop, recorded at a few points of what its function takes, or at one if it takes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn

from vramcast.errors import InvalidInput
from vramcast.forecast.recorded_task import ANNOTATIONS
from vramcast.forecast.recording import Piece, Recording, Span
from vramcast.forecast.sizes import Point, Variable
from vramcast.forecast.storage import MOST_EVENTS
from vramcast.profile.recording.errors import NeedsValues, TooManyEvents, Unrecordable
from vramcast.profile.recording.loop import Loop, record_loop
from vramcast.profile.recording.network import beyond, different_points, length_span, network_info, side_span
from vramcast.profile.recording.optimizers import optimizer_name
from vramcast.profile.solving import solve
from vramcast.task.vocabulary import Kind

# Arguments of the user's function that a recording can vary.
ARGUMENTS = {
    Variable.BATCH: "batch_size", Variable.LENGTH: "sequence_length", Variable.SIDE: "image_size",
    Variable.RANK: "lora_rank",
}  # fmt: skip
_OPTIONS = {
    Variable.BATCH: "--batch-size 8", Variable.LENGTH: "--sequence-length 1024", Variable.SIDE: "--input 3x224x224",
    Variable.RANK: "--set lora-rank=16",
}  # fmt: skip
# What is given up first where steps differ from point to point.
_LEAST_NEEDED = (Variable.SIDE, Variable.LENGTH, Variable.RANK, Variable.BATCH)


@dataclass(frozen=True, slots=True)
class LoopFunction:
    """The user's function, and the values of the arguments that can vary, as the user's job has them."""

    name: str
    make: Callable[..., Any]
    usual: Mapping[Variable, int]

    def at(self, point: Point) -> Callable[[], Any]:
        values = {**self.usual, **point}
        return partial(self.make, **{ARGUMENTS[variable]: value for variable, value in values.items()})


@dataclass(frozen=True, slots=True)
class RecordedLoop:
    recording: Recording
    why_fixed: Mapping[Variable, str]  # arguments that could not be varied


def loop_function(name: str, make: Callable[..., Any], given: Mapping[Variable, int | None]) -> LoopFunction:
    """`given` are the values of the command's options; an argument's default counts where there is none.

    Raises InvalidInput for an argument without a value.
    """
    usual: dict[Variable, int] = {}
    parameters = _parameters(make)
    for variable, argument in ARGUMENTS.items():
        if argument not in parameters:
            continue
        default = parameters[argument].default
        value = given.get(variable)
        if value is None and isinstance(default, int):
            value = default
        if value is not None:
            usual[variable] = value
        elif default is inspect.Parameter.empty:
            raise InvalidInput(
                f"{name} takes {argument}: say what the job uses with {_OPTIONS[variable]}, or give it a default"
            )
    return LoopFunction(name, make, usual)


def _parameters(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        found = inspect.signature(make).parameters
    except (TypeError, ValueError):  # a callable of an extension
        return {}
    return {name: one for name, one in found.items() if one.kind is not inspect.Parameter.POSITIONAL_ONLY}


def record_own_loop(function: LoopFunction, info: Mapping[str, str]) -> RecordedLoop:
    """Raises Unrecordable. An argument whose values change the steps themselves is recorded at one value."""
    varied = {variable: span for variable, value in function.usual.items() if (span := _span(variable, value))}
    why_fixed: dict[Variable, str] = {}
    while True:
        try:
            recording = _recorded(function, varied, info)
        except (NeedsValues, TooManyEvents):
            raise
        except Unrecordable as error:
            if not varied:
                raise
            why = f"the loop fails at another value ({error})"
        else:
            why = _why_not(recording, function.usual)
            if not varied or not why:
                return RecordedLoop(recording, why_fixed)
        dropped = next(variable for variable in _LEAST_NEEDED if variable in varied)
        why_fixed[dropped] = why
        del varied[dropped]


def _span(variable: Variable, value: int) -> Span | None:
    if variable is Variable.LENGTH:
        return length_span(value)
    if variable is Variable.SIDE:
        return side_span(value)
    return Span(1, max(1, value))


def _recorded(function: LoopFunction, varied: Mapping[Variable, Span], info: Mapping[str, str]) -> Recording:
    tapes = [(point, record_loop(function.at(point))) for point in different_points(varied)]
    return solve(tapes, beyond(varied), info)


def _why_not(recording: Recording, usual: Point) -> str:
    """Polynomials must answer the user's own values, which are hardly ever among the recorded points."""
    if sum(len(piece.template.events) for piece in recording.pieces) > MOST_EVENTS:
        return f"recorded at several values, the steps make and free tensors more than {MOST_EVENTS:,} times"
    asked = {variable: usual[variable] for variable in recording.variables}
    nearest = min(recording.pieces, key=lambda piece: (piece.distance(asked), not _is_solved(piece)))
    return "" if _is_solved(nearest) else "the steps differ from value to value, so no polynomial tells their sizes"


def _is_solved(piece: Piece) -> bool:
    """A piece of one point has sizes instead of polynomials."""
    return all(span.low < span.high for span in piece.spans.values())


def loop_info(function: LoopFunction, loop: Loop) -> dict[str, str]:
    """What the forecast reads, named like the annotations."""
    info = {
        "loop": function.name,
        "task": str(Kind.TRAINING),
        "optimizer": optimizer_name(loop.optimizer),
        **network_info(loop.model),
    }
    info |= {ANNOTATIONS[variable]: str(value) for variable, value in function.usual.items()}
    if any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in loop.model.modules()):
        info["norms"] = "true"
    return info
