"""Forecast reports as terminal tables. Apart from the reports, because the API serves those without rich."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from vramcast.forecast.report import ProductReport
from vramcast.hardware.utilization import FORECAST_COUNTERS
from vramcast.task.quantity import GIB

# A pipe has no width of its own.
_PIPE_WIDTH = 112


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
    timed = any(line.step.seconds is not None for line in given)
    if timed:
        table.add_column("step", justify="right")
    for line in given:
        holds = {True: "[green]yes[/green]", False: "[red]no[/red]", None: "?"}[line.holds_it]
        usable = "?" if line.usable_mib is None else f"{line.usable_mib / 1024:.1f}"
        bounds = (_gib(size) for size in line.bounds_bytes.values())
        step = [_seconds(line.step.seconds)] if timed else []
        table.add_row(line.forecast.product, usable, _gib(line.forecast.median_bytes), *bounds, holds, *step)
    return table


def step_text(given: Sequence[ProductReport]) -> str:
    """One line about the first product's step: its arithmetic, its time, and what makes that doubtful or is missing."""
    step = given[0].step
    flops = f"{step.flops / 1e12:.3g} TFLOP" if step.flops is not None else ""
    if step.seconds is None or step.low_seconds is None or step.high_seconds is None:
        return f"a step: {flops}, time unknown: {step.missing}" if flops else ""
    span = f"{_seconds(step.low_seconds)} to {_seconds(step.high_seconds)}"
    rate = f"{step.samples_per_second:.3g} samples/s"
    doubts = f"; {'; '.join(step.notes)}" if step.notes else ""
    return f"a step on {given[0].forecast.product}: {flops}, {_seconds(step.seconds)} ({span}), {rate}{doubts}"


def utilization_text(given: Sequence[ProductReport]) -> str:
    """One line about the first product, where anything is known."""
    forecast = given[0].forecast
    known = ((counter, forecast.utilization.of(counter)) for counter in FORECAST_COUNTERS)
    shares = [f"{counter} {share:.0%}" for counter, share in known if share is not None]
    return f"utilization of a {forecast.product} of its own: {', '.join(shares)}" if shares else ""


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    return f"{1e3 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


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
