"""`vramcast forecast`: forecasts the pods in a file on each GPU, before anything is scheduled."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console
from rich.text import Text

from vramcast.cli.manifests import FoundTemplate, notes, read_manifest, undescribed
from vramcast.cli.sweep import draw_sweeps, print_sweep
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report, report_json
from vramcast.forecast.report_tables import new_console, parts_table, products_table, step_text
from vramcast.forecast.sweep import SweepRange
from vramcast.forecast.sweep_report import sweep_json, sweep_task
from vramcast.hardware.products import base_product
from vramcast.names import Product
from vramcast.task.task import Task, describe

OUTPUTS = ("table", "json", "yaml")

# The described pod templates of the files, and their tasks.
Tasks = list[tuple[FoundTemplate, Task]]


def run_forecast(
    paths: Sequence[Path],
    gpus: Sequence[str],
    output: str,
    forecaster: Forecaster,
    sweep: SweepRange | None = None,
    plot: Path | None = None,
) -> None:
    """Raises InvalidInput with every mistake in every file."""
    if output not in OUTPUTS:
        raise InvalidInput(f"--output {output!r}: expected {', '.join(OUTPUTS)}")
    if plot is not None and sweep is None:
        raise InvalidInput("--plot needs a sweep to plot, such as --sweep batch-size=8..256")
    products = tuple(base_product(gpu) for gpu in gpus) or COMMON_PRODUCTS
    tasks = _read_tasks(paths)
    if sweep is None:
        _report(tasks, forecaster, products, output)
    else:
        _sweep(tasks, forecaster, products, output, sweep, plot)


def _read_tasks(paths: Sequence[Path]) -> Tasks:
    """Raises InvalidInput with every mistake."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    tasks, mistakes, warnings = [], [], []
    for path in paths:
        manifest = read_manifest(path)
        in_file = manifest.mistakes()
        described = [(found, found.record.task) for found in manifest.found if found.record and found.record.task]
        if not described and not in_file:
            in_file = [f"{path}: {manifest.found[0].template.label}: {undescribed(path)}"]
        mistakes += in_file
        tasks += described
        others = [found for found in manifest.found if not found.described]
        warnings += [f"{path}: {found.template.label}: {note}" for found in others for note in notes(found)]
    if mistakes:
        raise InvalidInput("\n".join(mistakes))
    for warning in warnings:
        console.print(Text.assemble(("note: ", "yellow"), warning))
    return tasks


def _report(tasks: Tasks, forecaster: Forecaster, products: Sequence[Product], output: str) -> None:
    reports = []
    for found, task in tasks:
        with _naming(found):
            reports.append((found, task, report(forecaster, task, products)))
    if output == "table":
        console = new_console()
        for found, task, products_report in reports:
            _print(console, found, task, products_report)
        return
    _write([{**_identity(f, t), "forecasts": [report_json(product) for product in r]} for f, t, r in reports], output)


def _sweep(
    tasks: Tasks,
    forecaster: Forecaster,
    products: Sequence[Product],
    output: str,
    sweep: SweepRange,
    plot: Path | None,
) -> None:
    reports = []
    for found, task in tasks:
        with _naming(found):
            reports.append((found, task, sweep_task(forecaster, task, products, sweep)))
    if output == "table":
        console = new_console()
        for found, task, swept in reports:
            console.print(_heading(found, task), soft_wrap=True)
            print_sweep(console, swept)
    else:
        _write([{**_identity(found, task), **sweep_json(swept)} for found, task, swept in reports], output)
    if plot is not None:
        draw_sweeps([(f"{found.template.label}: {describe(task)}", swept) for found, task, swept in reports], plot)


@contextmanager
def _naming(found: FoundTemplate) -> Iterator[None]:
    """Adds the template's name to the error."""
    try:
        yield
    except InvalidTask as error:
        raise InvalidInput(f"{found.template.label}: {error}") from None


def _heading(found: FoundTemplate, task: Task) -> str:
    return f"[bold]{found.template.label}[/bold]  {describe(task)}"


def _print(console: Console, found: FoundTemplate, task: Task, reports: list[ProductReport]) -> None:
    first = reports[0].forecast
    console.print(f"{_heading(found, task)}  [dim]({first.source}, {first.model_version})[/dim]", soft_wrap=True)
    console.print(products_table(reports))
    console.print(parts_table(reports))
    if text := step_text(reports):
        console.print(f"  {text}", soft_wrap=True, highlight=False)
    for assumption in first.assumptions:
        console.print(f"  [dim]assumed:[/dim] {assumption}")
    console.print()


def _identity(found: FoundTemplate, task: Task) -> dict[str, Any]:
    template = found.template
    return {
        "pod": f"{template.namespace}/{template.name}",
        "kind": template.kind,
        "role": template.role,
        "level": task.level,
    }


def _write(content: list[dict[str, Any]], output: str) -> None:
    plain = msgspec.to_builtins(content, str_keys=True)
    if output == "yaml":
        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
