"""A forecast for people: tables of the products and of the parts, for every command that prints one."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.forecast.report import ProductReport
from vramcast.task.quantity import GIB

# In a pipe nobody says how wide a line may be.
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
    """Of one product: most parts are the same on all."""
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
