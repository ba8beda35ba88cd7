"""What `vramcast profile` does once its arguments are read: trace, forecast, and print what a pod can carry."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from torch import nn

from vramcast.errors import InvalidInput
from vramcast.forecast.description import encode_profile, parse_profile
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report, report_json
from vramcast.forecast.report_tables import new_console, parts_table, products_table
from vramcast.forecast.summary import Summary, summarize
from vramcast.names import Product
from vramcast.profile.arguments import Asked
from vramcast.profile.inputs import Inputs
from vramcast.profile.loading import load_builder, load_callable
from vramcast.profile.measuring import measure, need_gpu
from vramcast.profile.profiling import Traced, Untraceable, family, profile_network
from vramcast.profile.tracing import leaves
from vramcast.task.quantity import MIB
from vramcast.task.task import parse_task
from vramcast.task.vocabulary import PREFIX

_SHAPE = re.compile(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){0,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Profiled:
    """All that is shown."""

    traced: Traced | None
    summary: Summary
    annotations: dict[str, str]
    summary_annotations: dict[str, str]
    reports: list[ProductReport]
    why_no_trace: str = ""


def run_profile(asked: Asked, output: str, forecaster: Forecaster) -> None:
    if output not in ("table", "json"):
        raise InvalidInput(f"--output {output!r}: expected table or json")
    done = profile_target(asked, forecaster)
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(as_json(done)), indent=1).decode() + "\n")
        return
    _print(new_console(), asked.target, done)


def profile_target(asked: Asked, forecaster: Forecaster) -> Profiled:
    if asked.measure is not None:
        need_gpu()
    inputs = parse_inputs(asked)
    build = load_builder(asked.target, asked.args)
    try:
        traced = profile_network(build, inputs, asked.target)
    except Untraceable as error:
        return _untraced(error, asked)
    done = _profiled(traced, asked, forecaster)
    if asked.measure is not None:
        task = parse_task(done.annotations)
        assert task is not None  # noqa: S101 - there are annotations
        measure(build, inputs, task, traced.profile, asked.measure)
    return done


def _profiled(traced: Traced, asked: Asked, forecaster: Forecaster) -> Profiled:
    annotations = _prefixed({"profile": encode_profile(traced.profile), **(asked.settings or {})})
    summary = summarize(parse_profile(traced.profile))
    task = parse_task(annotations)
    assert task is not None  # noqa: S101 - there are annotations
    products = (Product(asked.gpu),) if asked.gpu else COMMON_PRODUCTS
    totals = summary_annotations(summary) | _prefixed({"batch-size": "1", **(asked.settings or {})})
    return Profiled(traced, summary, annotations, totals, report(forecaster, task, products))


def _untraced(error: Untraceable, asked: Asked) -> Profiled:
    """Without a pass the activations are not known: the user has to say them, and is told so."""
    model: nn.Module = error.model
    parameters = sum(weight.numel() for weight in model.parameters())
    summary = Summary(family(model), parameters, sum(1 for _ in leaves(model)), 0)
    annotations = summary_annotations(summary) | _prefixed({"batch-size": "1", **(asked.settings or {})})
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


def parse_inputs(asked: Asked) -> Inputs:
    make = load_callable(asked.inputs) if asked.inputs else None
    return Inputs(tuple(parse_shape(text) for text in asked.shapes), asked.sequence_length, make)


def parse_shape(text: str) -> tuple[int, ...]:
    if not _SHAPE.fullmatch(text.strip().lower()):
        raise InvalidInput(f"--input {text!r}: expected the size of one sample such as 3x224x224, without the batch")
    return tuple(int(size) for size in text.strip().lower().split("x"))


def as_json(done: Profiled) -> dict[str, Any]:
    return {
        "traced_on": done.traced.on if done.traced else None,
        "why_no_trace": done.why_no_trace or None,
        "summary": done.summary,
        "parts": {name: value for name, value, _ in _parts(done)},
        "annotations": done.annotations,
        "summary_annotations": done.summary_annotations,
        "forecasts": [report_json(given) for given in done.reports],
    }


def _parts(done: Profiled) -> list[tuple[str, int, str]]:
    """(name, number, as it is shown)."""
    rows = [("parameters", done.summary.parameters, f"{done.summary.parameters:,}")]
    rows.append(("layers", done.summary.layers, f"{done.summary.layers:,}"))
    if done.traced is None:
        return rows
    profile = done.traced.profile
    sizes = {
        "saved_bytes_per_sample": profile["saved_bytes_per_sample"],
        "of_that_fused_attention": profile.get("fused_attention_bytes_per_sample", 0),
        "largest_saved_bytes_per_sample": profile["largest_saved_bytes_per_sample"],
        "saved_whatever_the_batch": done.traced.static_bytes,
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
        console.print(f"\nIt cannot be traced here: {done.why_no_trace}", highlight=False)
        console.print(
            f"This is the summary level. Add {PREFIX}activations (elements that a sample keeps alive at the peak), or "
            f"{PREFIX}gpu-memory if you have measured it:",
            highlight=False,
        )
    else:
        if done.traced.on == "cpu":
            console.print("traced on the CPU with random weights: the pass looks at values", highlight=False)
        console.print(products_table(done.reports))
        console.print(parts_table(done.reports))
        for assumption in done.reports[0].forecast.assumptions:
            console.print(f"  [dim]assumed:[/dim] {assumption}", highlight=False)
        console.print("\nAnnotations of the pod, with the profile:")
    _print_annotations(done.annotations)
    if done.traced is not None:
        console.print("\nor, shorter and with a wider bound, with the summary:")
        _print_annotations(done.summary_annotations)


def _print_annotations(annotations: Mapping[str, str]) -> None:
    """To be copied: no colour, no line that is broken for the terminal's width."""
    for name, value in annotations.items():
        sys.stdout.write(f'{name}: "{value}"\n')
