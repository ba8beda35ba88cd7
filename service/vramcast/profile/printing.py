"""What `vramcast profile` prints: tables, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from vramcast.forecast.report import report_json
from vramcast.forecast.report_tables import parts_table, products_table
from vramcast.profile.profiled import Profiled, ProfiledLoop
from vramcast.task.quantity import MIB
from vramcast.task.vocabulary import PREFIX


def as_json(done: Profiled) -> dict[str, Any]:
    return {
        "traced_on": done.traced.on if done.traced else None,
        "why_no_trace": done.why_no_trace or None,
        "why_no_recording": done.why_no_recording or None,
        "loop": done.loop,
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
    if done.loop is not None:
        trained = done.loop.trained_parameters
        return [*rows, ("trained_parameters", trained, f"{trained:,}")]
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


def print_profiled(console: Console, target: str, done: Profiled) -> None:
    console.print(f"[bold]{target}[/bold]  {done.summary.architecture}", highlight=False)
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, _, shown in _parts(done):
        table.add_row(name.replace("_", " "), shown)
    console.print(table, highlight=False)
    if done.loop is not None:
        _print_loop(console, done.loop)
    if not done.reports:
        console.print(f"\nThe network cannot be traced here: {done.why_no_trace}", highlight=False)
        console.print(
            f"These annotations are a summary. Add {PREFIX}activations (live elements per sample at the peak), or "
            f"{PREFIX}gpu-memory if you have measured it:",
            highlight=False,
        )
    else:
        _print_forecasts(console, done)
        console.print("\nThe pod's annotations, with the profile:")
    _print_annotations(done.annotations)
    if done.traced is not None:
        console.print("\nor with the summary, which is shorter and has a wider bound:")
        _print_annotations(done.summary_annotations)


def _print_loop(console: Console, loop: ProfiledLoop) -> None:
    console.print(f"optimizer {loop.optimizer}, recorded with the step", highlight=False)
    console.print(f"answers {loop.answers}", highlight=False)
    for argument, why in loop.fixed.items():
        console.print(f"{argument} stays at {loop.usual[argument]}: {why}", highlight=False)


def _print_forecasts(console: Console, done: Profiled) -> None:
    if done.traced is not None and done.traced.on == "cpu":
        console.print("traced on the CPU with random weights: the pass depends on values", highlight=False)
    if done.why_no_recording:
        console.print(f"No step could be recorded, so the layers are used: {done.why_no_recording}", highlight=False)
    console.print(products_table(done.reports))
    console.print(parts_table(done.reports))
    for assumption in done.reports[0].forecast.assumptions:
        console.print(f"  [dim]assumed:[/dim] {assumption}", highlight=False)


def _print_annotations(annotations: Mapping[str, str]) -> None:
    """Meant to be copied: no colours, no line breaks."""
    for name, value in annotations.items():
        sys.stdout.write(f'{name}: "{value}"\n')
