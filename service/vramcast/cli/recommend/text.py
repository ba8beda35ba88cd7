"""The report as a table in the terminal, as Markdown and as CSV."""

from __future__ import annotations

import csv
import io

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramcast.cli.recommend.rows import COLUMNS, NUMBERS, as_data, moment, row, summary, totals
from vramcast.recommend.advice import RecommendedAction
from vramcast.recommend.report import Report

TOTALS = ("plan", "GPUs at the busiest moment", "freed", "GPU-hours", "freed")
METHOD = (
    "The same pods, played again in the order in which they came: each on the fullest GPU of its product with room for "
    "its memory and its work, and never moved. GPUs that pods share already, and MIG slices, are left out."
)
MOST_ROWS = 40
_STYLES = {
    RecommendedAction.SHARE: "green",
    RecommendedAction.SLICE: "green",
    RecommendedAction.FEWER: "yellow",
    RecommendedAction.UNCLEAR: "dim",
}


def print_table(report: Report, console: Console) -> None:
    console.print(summary(report), soft_wrap=True, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        flexible = column in ("workload", "do")
        justify = "right" if column in NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=not flexible, overflow="fold")  # type: ignore[arg-type]
    for one in report.recommendations[:MOST_ROWS]:
        *cells, action = row(one)
        table.add_row(*(Text(cell) for cell in cells), Text(action, style=_STYLES.get(one.verdict, "")))
    console.print(table)
    left = len(report.recommendations) - MOST_ROWS
    if left > 0:
        console.print(f"and {left} workloads with less to spare; -o csv, markdown or html has all\n", highlight=False)
    plans = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(TOTALS):
        plans.add_column(column, justify="right" if number else "left")
    for line in totals(report):
        plans.add_row(*line)
    console.print(plans)
    console.print(f"Busiest as it was: {moment(report.as_it_was.busiest_at)}. {METHOD}", style="dim", highlight=False)
    for note in all_notes(report):
        console.print(Text.assemble(("note: ", "yellow"), note), soft_wrap=True)


def all_notes(report: Report) -> list[str]:
    """Those of workloads with the number of workloads that have them."""
    found: dict[str, list[str]] = {}
    for one in report.recommendations:
        for note in one.notes:
            found.setdefault(note, []).append(one.workload.label)
    lines = [
        f"{labels[0]}{f' and {len(labels) - 1} more' if len(labels) > 1 else ''}: {note}"
        for note, labels in found.items()
    ]
    return [*report.notes, *lines]


def to_markdown(report: Report) -> str:
    lines = [summary(report), ""]
    lines += _markdown_table(COLUMNS, [row(one) for one in report.recommendations], NUMBERS)
    lines += ["", *_markdown_table(TOTALS, totals(report), frozenset(TOTALS[1:])), "", METHOD]
    lines += ["", *(f"- {note}" for note in all_notes(report))]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_table(
    columns: tuple[str, ...], rows: list[tuple[str, ...]] | list[tuple[str, str, str, str, str]], right: frozenset[str]
) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = "|" + "|".join("---:" if column in right else "---" for column in columns) + "|"
    return [line(columns), rule, *(line(cells) for cells in rows)]


def to_csv(report: Report) -> str:
    """One line per workload, with every field of the JSON."""
    workloads = as_data(report)["workloads"]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(workloads[0]), lineterminator="\n")
    writer.writeheader()
    for one in workloads:
        writer.writerow({name: _cell(value) for name, value in one.items()})
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return " ".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, list):
        return "; ".join(str(part) for part in value)
    return "" if value is None else value
