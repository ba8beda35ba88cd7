"""`vramcast forecast`: forecasts tasks on each GPU, before anything is scheduled."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from vramcast.cli.described import DescribedTask, naming, note
from vramcast.cli.sweep import draw_sweeps, print_sweep
from vramcast.errors import InvalidInput
from vramcast.forecast.forecast import Forecaster
from vramcast.forecast.report import COMMON_PRODUCTS, ProductReport, report, report_json
from vramcast.forecast.report_tables import new_console, parts_table, products_table, step_text, utilization_text
from vramcast.forecast.sweep import SweepRange
from vramcast.forecast.sweep_report import sweep_json, sweep_task
from vramcast.hardware.short_names import find_product
from vramcast.names import Product
from vramcast.task.task import describe

OUTPUTS = ("table", "json", "yaml")
_LENGTH = "sequence-length"


def run_forecast(
    tasks: Sequence[DescribedTask],
    gpus: Sequence[str],
    output: str,
    forecaster: Forecaster,
    sweep: SweepRange | None = None,
    plot: Path | None = None,
) -> None:
    """Raises InvalidInput."""
    check_output(output)
    if plot is not None and sweep is None:
        raise InvalidInput("--plot needs a sweep to plot, such as --sweep batch-size=8..256")
    products = tuple(map(find_product, gpus)) or COMMON_PRODUCTS
    if sweep is None:
        _report(tasks, forecaster, products, output)
    else:
        _sweep(tasks, forecaster, products, output, sweep, plot)


def check_output(output: str) -> None:
    if output not in OUTPUTS:
        raise InvalidInput(f"--output {output!r}: expected {', '.join(OUTPUTS)}")


def _report(tasks: Sequence[DescribedTask], forecaster: Forecaster, products: Sequence[Product], output: str) -> None:
    reports = []
    for described in tasks:
        with naming(described):
            reports.append((described, report(forecaster, described.task, products)))
        _note_length(described, reports[-1][1])
    if output == "table":
        console = new_console()
        for described, products_report in reports:
            _print(console, described, products_report)
        return
    content = [
        {
            **described.identity,
            "forecasts": [report_json(product) for product in r],
            "annotations": described.annotations,
        }
        for described, r in reports
    ]
    write(content, output)


def _note_length(described: DescribedTask, reports: Sequence[ProductReport]) -> None:
    """Memory grows with the length, so a forecast of a length that nobody chose is of little use."""
    assumed = [text for text in reports[0].forecast.assumptions if text.startswith(f"{_LENGTH} ")]
    if described.by_flags and assumed:
        note(f"assumed {assumed[0]}: give the tokens of your samples with --{_LENGTH}")


def _sweep(
    tasks: Sequence[DescribedTask],
    forecaster: Forecaster,
    products: Sequence[Product],
    output: str,
    sweep: SweepRange,
    plot: Path | None,
) -> None:
    reports = []
    for described in tasks:
        with naming(described):
            reports.append((described, sweep_task(forecaster, described.task, products, sweep)))
    if output == "table":
        console = new_console()
        for described, swept in reports:
            console.print(heading(described), soft_wrap=True)
            print_sweep(console, swept)
            print_annotations(described.annotations)
    else:
        content = [{**each.identity, **sweep_json(swept), "annotations": each.annotations} for each, swept in reports]
        write(content, output)
    if plot is not None:
        draw_sweeps([(f"{each.label}: {describe(each.task)}", swept) for each, swept in reports], plot)


def heading(described: DescribedTask) -> str:
    label, told = described.label, describe(described.task)
    return (
        f"[bold]{label}[/bold]{told.removeprefix(label)}" if told.startswith(label) else f"[bold]{label}[/bold]  {told}"
    )


def _print(console: Console, described: DescribedTask, reports: list[ProductReport]) -> None:
    first = reports[0].forecast
    console.print(f"{heading(described)}  [dim]({first.source}, {first.model_version})[/dim]", soft_wrap=True)
    console.print(products_table(reports))
    console.print(parts_table(reports))
    for text in filter(None, (step_text(reports), utilization_text(reports))):
        console.print(f"  {text}", soft_wrap=True, highlight=False)
    for assumption in first.assumptions:
        console.print(f"  [dim]assumed:[/dim] {assumption}")
    if not any(each.holds_it for each in reports):
        console.print(
            "  [dim]none of these holds it:[/dim] `vramcast advise` with the same arguments says what would help"
        )
    print_annotations(described.annotations)


def print_annotations(annotations: Mapping[str, str], indent: str = "") -> None:
    """Meant to be pasted: no colours, no line breaks, and in quotes, because an annotation is a string."""
    sys.stdout.write(f"\n{indent}annotations:\n")
    for name, value in annotations.items():
        sys.stdout.write(f'{indent}  {name}: "{value}"\n')
    sys.stdout.write("\n")


def write(content: list[dict[str, Any]], output: str) -> None:
    plain = msgspec.to_builtins(content, str_keys=True)
    if output == "yaml":
        import yaml  # noqa: PLC0415 - only this needs it

        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n")
