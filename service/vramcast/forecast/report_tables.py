"""Forecast reports as terminal tables. Apart from the reports, because the API serves those without rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.forecast.report import ProductReport
from vramcast.task.quantity import GIB

# A pipe has no width of its own.
_PIPE_WIDTH = 100


def new_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def products_table(given: Sequence[ProductReport]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU")
    table.add_column("usable GiB", justify="right")
    table.add_column("median", justify="right")
    for risk in given[0].bounds_bytes:
        table.add_column(f"risk {risk:g}", justify="right")
    table.add_column(f"holds it at {given[0].forecast.risk:g}")
    for line in given:
        holds = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "?"}[line.holds_it]
        usable = "?" if line.usable_mib is None else f"{line.usable_mib / 1024:.1f}"
        bounds = (_gib(size) for size in line.bounds_bytes.values())
        table.add_row(line.forecast.product, usable, _gib(line.forecast.median_bytes), *bounds, holds)
    return table


def parts_table(given: Sequence[ProductReport]) -> Table:
    """For the first product only: most parts are the same on all products."""
    forecast = given[0].forecast
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"on {forecast.product}", title_justify="left")
    table.add_column("part")
    table.add_column("GiB", justify="right")
    table.add_column("because")
    for part in forecast.parts:
        table.add_row(part.name, _gib(part.size_bytes), part.because)
    return table


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"
