"""Runs `vramcast profile`: traces the network, forecasts it, and prints the pod's annotations."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from vramcast.errors import InvalidInput
from vramcast.forecast.description import encode_profile, parse_profile
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.recorded import task_tape
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report, report_json
from vramcast.forecast.report_tables import new_console, parts_table, products_table
from vramcast.forecast.storage import encode
from vramcast.forecast.summary import Summary, summarize
from vramcast.hardware.products import base_product
from vramcast.profile.arguments import ProfileArguments
from vramcast.profile.inputs import Inputs
from vramcast.profile.loading import load_builder, load_callable
from vramcast.profile.measuring import measure, need_gpu
from vramcast.profile.profiling import Build, Traced, Untraceable, family, profile_network
from vramcast.profile.recording.errors import Unrecordable
from vramcast.profile.recording.network import record_network, recording_info, settings_of
from vramcast.profile.step_plot import need_matplotlib, plot_step
from vramcast.profile.tracing import leaves
from vramcast.task.quantity import MIB
from vramcast.task.task import Task, describe, parse_task
from vramcast.task.vocabulary import PREFIX

# Stands for a profile while only the settings of the run are of interest.
_UNKNOWN = "unknown"
_SHAPE = re.compile(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){0,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Profiled:
    traced: Traced | None
    summary: Summary
    annotations: dict[str, str]
    summary_annotations: dict[str, str]
    reports: list[ProductReport]
    why_no_trace: str = ""
    why_no_recording: str = ""


def run_profile(arguments: ProfileArguments, output: str, forecaster: Forecaster) -> None:
    if output not in ("table", "json"):
        raise InvalidInput(f"--output {output!r}: expected table or json")
    done = profile_target(arguments, forecaster)
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(as_json(done)), indent=1).decode() + "\n")
        return
    _print(new_console(), arguments.target, done)


def profile_target(arguments: ProfileArguments, forecaster: Forecaster) -> Profiled:
    if arguments.measure is not None:
        need_gpu()
    if arguments.plot is not None:
        need_matplotlib()
    inputs = parse_inputs(arguments)
    build = load_builder(arguments.target, arguments.args)
    try:
        traced = profile_network(build, inputs, arguments.target)
    except Untraceable as error:
        return _untraced(error, arguments)
    recorded, why_not = _recorded(build, inputs, arguments)
    done = replace(_profiled(traced, recorded, arguments, forecaster), why_no_recording=why_not)
    task = _task(done.annotations)
    if arguments.plot is not None:
        _plot(recorded, task, arguments)
    if arguments.measure is not None:
        measure(build, inputs, task, traced.profile, arguments.measure)
    return done


def _recorded(build: Build, inputs: Inputs, arguments: ProfileArguments) -> tuple[str, str]:
    """A recording as text, or nothing and why. Training in fp32 is forecast better from the layers: that was learned
    from measured runs, and a recording has no correction yet."""
    task = _task(_prefixed({"profile": _UNKNOWN, **(arguments.settings or {})}))
    if arguments.plot is None and not unfamiliar_settings(task):
        return "", ""
    try:
        with torch.device("meta"):
            info = recording_info(task, inputs, build())
        return encode(record_network(build, inputs, settings_of(task), info)), ""
    except Unrecordable as error:
        return "", str(error)


def _plot(recorded: str, task: Task, arguments: ProfileArguments) -> None:
    if not recorded or arguments.plot is None:
        raise InvalidInput(f"--plot {arguments.plot}: there is no recording of {arguments.target} to draw")
    profiled = replace(task, profile=recorded)
    plot_step(task_tape(recorded, profiled), f"{arguments.target}, {describe(profiled)}", arguments.plot)


def _task(annotations: Mapping[str, str]) -> Task:
    task = parse_task(annotations)
    assert task is not None  # noqa: S101 - there are annotations
    return task


def _profiled(traced: Traced, recorded: str, arguments: ProfileArguments, forecaster: Forecaster) -> Profiled:
    settings = arguments.settings or {}
    # A recording that was only made for a picture is not what the pod should carry.
    familiar = not unfamiliar_settings(_task(_prefixed({"profile": _UNKNOWN, **settings})))
    profile = encode_profile(traced.profile) if familiar or not recorded else recorded
    annotations = _prefixed({"profile": profile, **settings})
    summary = summarize(parse_profile(traced.profile))
    products = (base_product(arguments.gpu),) if arguments.gpu else COMMON_PRODUCTS
    totals = summary_annotations(summary) | _prefixed({"batch-size": "1", **settings})
    return Profiled(traced, summary, annotations, totals, report(forecaster, _task(annotations), products))


def _untraced(error: Untraceable, arguments: ProfileArguments) -> Profiled:
    """Without a forward pass the activations are unknown, and the user has to add them."""
    model: nn.Module = error.model
    parameters = sum(weight.numel() for weight in model.parameters())
    summary = Summary(family(model), parameters, sum(1 for _ in leaves(model)), 0)
    annotations = summary_annotations(summary) | _prefixed({"batch-size": "1", **(arguments.settings or {})})
    return Profiled(None, summary, annotations, annotations, [], str(error))


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


def as_json(done: Profiled) -> dict[str, Any]:
    return {
        "traced_on": done.traced.on if done.traced else None,
        "why_no_trace": done.why_no_trace or None,
        "why_no_recording": done.why_no_recording or None,
        "summary": done.summary,
        "parts": {name: value for name, value, _ in _parts(done)},
        "annotations": done.annotations,
        "summary_annotations": done.summary_annotations,
        "forecasts": [report_json(given) for given in done.reports],
    }


def _parts(done: Profiled) -> list[tuple[str, int, str]]:
    """(name, number, number as displayed)."""
    rows = [("parameters", done.summary.parameters, f"{done.summary.parameters:,}")]
    rows.append(("layers", done.summary.layers, f"{done.summary.layers:,}"))
    if done.traced is None:
        return rows
    profile = done.traced.profile
    sizes = {
        "saved_bytes_per_sample": profile["saved_bytes_per_sample"],
        "of_that_fused_attention": profile.get("fused_attention_bytes_per_sample", 0),
        "largest_saved_bytes_per_sample": profile["largest_saved_bytes_per_sample"],
        "saved_independent_of_batch": done.traced.static_bytes,
    }
    rows.append(("trained_parameters", done.traced.trained_parameters, f"{done.traced.trained_parameters:,}"))
    rows.append(("buffers", profile["buffers"], f"{profile['buffers']:,}"))
    rows += [(name, size, f"{size / MIB:,.2f} MiB") for name, size in sizes.items() if size]
    rows.append(("activations", done.summary.activations, f"{done.summary.activations:,} elements per sample"))
    return rows


def _print(console: Console, target: str, done: Profiled) -> None:
    console.print(f"[bold]{target}[/bold]  {done.summary.architecture}", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, _, shown in _parts(done):
        table.add_row(name.replace("_", " "), shown)
    console.print(table, highlight=False)
    if done.traced is None:
        console.print(f"\nThe network cannot be traced here: {done.why_no_trace}", highlight=False)
        console.print(
            f"These annotations are a summary. Add {PREFIX}activations (live elements per sample at the peak), or "
            f"{PREFIX}gpu-memory if you have measured it:",
            highlight=False,
        )
    else:
        if done.traced.on == "cpu":
            console.print("traced on the CPU with random weights: the pass depends on values", highlight=False)
        if done.why_no_recording:
            console.print(
                f"No step could be recorded, so the layers are used: {done.why_no_recording}", highlight=False
            )
        console.print(products_table(done.reports))
        console.print(parts_table(done.reports))
        for assumption in done.reports[0].forecast.assumptions:
            console.print(f"  [dim]assumed:[/dim] {assumption}", highlight=False)
        console.print("\nThe pod's annotations, with the profile:")
    _print_annotations(done.annotations)
    if done.traced is not None:
        console.print("\nor with the summary, which is shorter and has a wider bound:")
        _print_annotations(done.summary_annotations)


def _print_annotations(annotations: Mapping[str, str]) -> None:
    """Meant to be copied: no colours, no line breaks."""
    for name, value in annotations.items():
        sys.stdout.write(f'{name}: "{value}"\n')
