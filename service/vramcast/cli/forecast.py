"""`vramcast forecast`: what the pods of a file need and why, before anything is scheduled."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console
from rich.text import Text

from vramcast.cli.manifests import FoundTemplate, notes, read_manifest, undescribed
from vramcast.cli.sweep import SweepReport, print_sweep, sweep_json, sweep_task
from vramcast.errors import InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report, report_json
from vramcast.forecast.report_tables import new_console, parts_table, products_table
from vramcast.forecast.sweep import SweepRange
from vramcast.names import Product
from vramcast.task.task import Task, describe

OUTPUTS = ("table", "json", "yaml")


def run_forecast(
    paths: Sequence[Path],
    gpus: Sequence[str],
    output: str,
    forecaster: Forecaster,
    sweep: SweepRange | None = None,
    plot: Path | None = None,
) -> None:
    """Raises InvalidInput with every mistake of every file."""
    if output not in OUTPUTS:
        raise InvalidInput(f"--output {output!r}: expected {', '.join(OUTPUTS)}")
    if plot is not None and sweep is None:
        raise InvalidInput("--plot: nothing to draw without --sweep, such as --sweep batch-size=8..256")
    products = tuple(Product(gpu) for gpu in gpus) or COMMON_PRODUCTS
    tasks = _read_tasks(paths)
    console = new_console()
    if sweep is None:
        reports = [(found, task, _told(found, forecaster, task, products)) for found, task in tasks]
        if output == "table":
            for found, task, given in reports:
                _print(console, found, task, given)
        else:
            _write([_json(found, task, given) for found, task, given in reports], output)
        return
    swept = [(found, task, _swept(found, forecaster, task, products, sweep)) for found, task in tasks]
    if output == "table":
        for found, task, one in swept:
            console.print(_heading(found, task), soft_wrap=True)
            print_sweep(console, one)
    else:
        _write([{**_who(found, task), **sweep_json(one)} for found, task, one in swept], output)
    if plot is not None:
        from vramcast.cli.plot_file import draw_sweeps  # noqa: PLC0415  # matplotlib is an extra

        draw_sweeps([(f"{found.template.label}: {describe(task)}", one) for found, task, one in swept], plot)


def _read_tasks(paths: Sequence[Path]) -> list[tuple[FoundTemplate, Task]]:
    """Every described template of the files. Raises InvalidInput with all that is wrong."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    tasks, wrong, noted = [], [], []
    for path in paths:
        manifest = read_manifest(path)
        mistakes = manifest.mistakes()
        told = [(found, found.record.task) for found in manifest.found if found.record and found.record.task]
        if not told and not mistakes:
            mistakes = [f"{path}: {manifest.found[0].template.label}: {undescribed(path)}"]
        wrong += mistakes
        tasks += told
        silent = [found for found in manifest.found if not found.described]
        noted += [f"{path}: {found.template.label}: {note}" for found in silent for note in notes(found)]
    if wrong:
        raise InvalidInput("\n".join(wrong))
    for note in noted:
        console.print(Text.assemble(("note: ", "yellow"), note))
    return tasks


def _told(found: FoundTemplate, forecaster: Forecaster, task: Task, products: Sequence[Product]) -> list[ProductReport]:
    try:
        return report(forecaster, task, products)
    except InvalidTask as error:
        raise InvalidInput(f"{found.template.label}: {error}") from None


def _swept(
    found: FoundTemplate, forecaster: Forecaster, task: Task, products: Sequence[Product], sweep: SweepRange
) -> SweepReport:
    try:
        return sweep_task(forecaster, task, products, sweep)
    except InvalidTask as error:
        raise InvalidInput(f"{found.template.label}: {error}") from None


def _heading(found: FoundTemplate, task: Task) -> str:
    return f"[bold]{found.template.label}[/bold]  {describe(task)}"


def _print(console: Console, found: FoundTemplate, task: Task, given: list[ProductReport]) -> None:
    first = given[0].forecast
    console.print(f"{_heading(found, task)}  [dim]({first.source}, {first.model_version})[/dim]", soft_wrap=True)
    console.print(products_table(given))
    console.print(parts_table(given))
    for assumption in first.assumptions:
        console.print(f"  [dim]assumed:[/dim] {assumption}")
    console.print()


def _who(found: FoundTemplate, task: Task) -> dict[str, Any]:
    template = found.template
    return {
        "pod": f"{template.namespace}/{template.name}",
        "kind": template.kind,
        "role": template.role,
        "level": task.level,
    }


def _json(found: FoundTemplate, task: Task, given: list[ProductReport]) -> dict[str, Any]:
    return {**_who(found, task), "forecasts": [report_json(one) for one in given]}


def _write(content: list[dict[str, Any]], output: str) -> None:
    plain = msgspec.to_builtins(content, str_keys=True)
    if output == "yaml":
        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
