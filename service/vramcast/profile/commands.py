"""Runs `vramcast profile`: traces a network or records a loop, forecasts it, and prints the pod's annotations."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from torch import nn

from vramcast.errors import InvalidInput
from vramcast.forecast.description import encode_profile, parse_profile
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.recorded import task_tape
from vramcast.forecast.recording import ENDLESS, Recording
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report
from vramcast.forecast.report_tables import new_console
from vramcast.forecast.sizes import Variable
from vramcast.forecast.storage import encode
from vramcast.forecast.summary import Summary, summarize
from vramcast.hardware.products import base_product
from vramcast.profile.arguments import ProfileArguments
from vramcast.profile.inputs import Inputs
from vramcast.profile.loading import load_callable, load_function, network_of
from vramcast.profile.measuring import measure, need_gpu
from vramcast.profile.printing import as_json, print_profiled
from vramcast.profile.profiled import Profiled, ProfiledLoop
from vramcast.profile.profiling import Untraceable, family, profile_network
from vramcast.profile.recording.errors import NeedsOneGpu, Unrecordable
from vramcast.profile.recording.loop import Loop, looks_like_loop, loop_of, made_without_gpu
from vramcast.profile.recording.network import NetworkSteps, recording_info, settings_of, solve_network
from vramcast.profile.recording.own_loop import (
    ARGUMENTS,
    LoopFunction,
    loop_function,
    loop_info,
    record_own_loop,
)
from vramcast.profile.step_plot import need_matplotlib, plot_step
from vramcast.profile.tracing import leaves
from vramcast.task.task import Task, describe, parse_task
from vramcast.task.vocabulary import MAX_PROFILE_LENGTH, PREFIX

# Stands for a profile until there is one.
_UNKNOWN = "unknown"
_SHAPE = re.compile(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){0,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Job:
    """What the command was asked for, read once."""

    arguments: ProfileArguments
    inputs: Inputs
    settings: Mapping[str, str]
    run: Task  # the settings; its profile is not known yet

    def profiled_as(self, profile: str) -> tuple[dict[str, str], Task]:
        """The pod's annotations, and the task that they describe."""
        if len(profile) > MAX_PROFILE_LENGTH:
            raise InvalidInput(
                f"the profile of {self.arguments.target} has {len(profile):,} characters and an annotation at most "
                f"{MAX_PROFILE_LENGTH:,}: use the summary, or fewer micro-batches or iterations in a step"
            )
        return _prefixed({"profile": profile, **self.settings}), replace(self.run, profile=profile)

    def report(self, forecaster: Forecaster, task: Task) -> list[ProductReport]:
        products = (base_product(self.arguments.gpu),) if self.arguments.gpu else COMMON_PRODUCTS
        return report(forecaster, task, products)


def run_profile(arguments: ProfileArguments, output: str, forecaster: Forecaster) -> None:
    if output not in ("table", "json"):
        raise InvalidInput(f"--output {output!r}: expected table or json")
    done = profile_target(arguments, forecaster)
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(as_json(done)), indent=1).decode() + "\n")
        return
    print_profiled(new_console(), arguments.target, done)


def profile_target(arguments: ProfileArguments, forecaster: Forecaster) -> Profiled:
    if arguments.measure is not None:
        need_gpu()
    if arguments.plot is not None:
        need_matplotlib()
    settings = arguments.settings or {}
    job = _Job(arguments, parse_inputs(arguments), settings, _task(_prefixed({"profile": _UNKNOWN, **settings})))
    make = load_function(arguments.target, arguments.args)
    function = loop_function(arguments.target, make, _given(job))
    made, why_not = _made(function)
    if looks_like_loop(made):
        return _profile_loop(function, loop_of(made), job, forecaster)
    # A network is built without the loop's arguments.
    build = _Builder(make, None if function.usual else made, why_not)
    try:
        return _profile_network(build, job, forecaster)
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput(why_not or f"{arguments.target} failed with {type(error).__name__}: {error}") from error


def _given(job: _Job) -> dict[Variable, int | None]:
    """The values that the command's options name."""
    shapes = job.inputs.shapes
    return {
        Variable.BATCH: job.run.batch_size if "batch-size" in job.settings else None,
        Variable.LENGTH: job.run.sequence_length or job.inputs.sequence_length,
        Variable.SIDE: shapes[0][-1] if shapes else job.run.input_size[-1] if job.run.input_size else None,
        Variable.RANK: job.run.lora_rank,
    }


def _made(function: LoopFunction) -> tuple[Any, str]:
    """What the function makes, or nothing and why: a network may still be built on the CPU."""
    try:
        return made_without_gpu(function.at({})), ""
    except NeedsOneGpu:
        raise  # to call it again could end this process
    except Unrecordable as error:
        return None, str(error)


class _Builder:
    """Builds the network; the one that was made first is used first."""

    def __init__(self, make: Callable[[], Any], made: Any, why_no_loop: str) -> None:
        self._make, self._made, self._why_no_loop = make, made, why_no_loop

    def __call__(self) -> nn.Module:
        made, self._made = self._made, None
        if made is None:
            made = self._make()
        if self._why_no_loop and looks_like_loop(made):
            raise InvalidInput(self._why_no_loop)  # on the CPU it makes a loop
        return network_of(made)  # type: ignore[no-any-return]


# ---------------------------------------------------------------------- a loop


def _profile_loop(function: LoopFunction, loop: Loop, job: _Job, forecaster: Forecaster) -> Profiled:
    if job.arguments.measure is not None:
        raise InvalidInput("--measure runs a network, not a loop: run the loop on a GPU and set gpu-memory instead")
    info, summary, trained = loop_info(function, loop), _totals(loop.model), _trained(loop.model)
    del loop
    recorded = record_own_loop(function, info)
    annotations, task = job.profiled_as(encode(recorded.recording))
    described = ProfiledLoop(
        optimizer=info["optimizer"],
        trained_parameters=trained,
        usual={ARGUMENTS[variable]: value for variable, value in function.usual.items()},
        fixed={ARGUMENTS[variable]: why for variable, why in recorded.why_fixed.items()},
        answers=_answers(recorded.recording),
    )
    done = Profiled(summary, annotations, {}, job.report(forecaster, task), loop=described)
    _plot(task, job.arguments, job.arguments.target)
    return done


def _answers(recording: Recording) -> str:
    limits = {variable: recording.limits(variable) for variable in recording.variables}
    told = [
        f"any {ARGUMENTS[variable]}" if variable in ENDLESS else f"{ARGUMENTS[variable]} {low} to {high}"
        for variable, (low, high) in limits.items()
    ]
    return ", ".join(told) or "this loop as it is"


# ---------------------------------------------------------------------- a network


def _profile_network(build: Callable[[], nn.Module], job: _Job, forecaster: Forecaster) -> Profiled:
    arguments = job.arguments
    try:
        traced = profile_network(build, job.inputs, arguments.target)
    except Untraceable as error:
        return _untraced(error, job)
    # Training in fp32 is forecast better from the layers: that was learned from measured runs, and a recording has no
    # correction yet.
    unfamiliar = bool(unfamiliar_settings(job.run))
    recorded, why_not = _recorded(build, job) if unfamiliar or arguments.plot is not None else ("", "")
    # A recording that was only made for a picture is not what the pod should carry.
    profile = recorded if recorded and unfamiliar else encode_profile(traced.profile)
    annotations, task = job.profiled_as(profile)
    if arguments.plot is not None:
        if not recorded:
            raise InvalidInput(f"--plot {arguments.plot}: there is no recording of {arguments.target}: {why_not}")
        _plot(replace(task, profile=recorded), arguments, f"{arguments.target}, {describe(task)}")
    summary = summarize(parse_profile(traced.profile))
    totals = summary_annotations(summary) | _prefixed({"batch-size": "1", **job.settings})
    done = Profiled(summary, annotations, totals, job.report(forecaster, task), traced, why_no_recording=why_not)
    if arguments.measure is not None:
        measure(build, job.inputs, task, traced.profile, arguments.measure)
    return done


def _recorded(build: Callable[[], nn.Module], job: _Job) -> tuple[str, str]:
    """A recording as text, or nothing and why."""
    try:
        settings = settings_of(job.run)
        steps = NetworkSteps(build, job.inputs, settings)
        info = recording_info(job.run, job.inputs, steps.example)
        return encode(solve_network(steps.tape, job.inputs, settings, info)), ""
    except InvalidInput as error:  # Unrecordable, or more than a profile may hold
        return "", str(error)


def _plot(task: Task, arguments: ProfileArguments, title: str) -> None:
    if arguments.plot is not None:
        plot_step(task_tape(task.profile or "", task), title, arguments.plot)


def _task(annotations: Mapping[str, str]) -> Task:
    task = parse_task(annotations)
    assert task is not None  # noqa: S101 - there are annotations
    return task


def _untraced(error: Untraceable, job: _Job) -> Profiled:
    """Without a forward pass the activations are unknown, and the user has to add them."""
    summary = _totals(error.model)
    annotations = summary_annotations(summary) | _prefixed({"batch-size": "1", **job.settings})
    return Profiled(summary, annotations, annotations, [], why_no_trace=str(error))


def _totals(model: nn.Module) -> Summary:
    """Without activations."""
    parameters = sum(weight.numel() for weight in model.parameters())
    return Summary(family(model), parameters, sum(1 for _ in leaves(model)), 0)


def _trained(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def summary_annotations(summary: Summary) -> dict[str, str]:
    known = {
        "architecture": summary.architecture,
        "parameters": str(summary.parameters),
        "layers": str(summary.layers),
        "activations": str(summary.activations) if summary.activations else "",
    }
    return _prefixed({name: value for name, value in known.items() if value})


def _prefixed(values: Mapping[str, str]) -> dict[str, str]:
    return {PREFIX + name: value for name, value in values.items()}


def parse_inputs(arguments: ProfileArguments) -> Inputs:
    make = load_callable(arguments.inputs) if arguments.inputs else None
    return Inputs(tuple(parse_shape(text) for text in arguments.shapes), arguments.sequence_length, make)


def parse_shape(text: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text.strip().lower()):
        raise InvalidInput(f"--input {text!r}: expected the shape of one sample without the batch, such as 3x224x224")
    return tuple(int(size) for size in text.strip().lower().split("x"))
