"""`vramcast forecast --sweep`: plots memory over batch size, and finds the largest batch that each GPU holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramcast.cli.terminal_plot import TerminalPlot
from vramcast.errors import InvalidInput
from vramcast.forecast.sweep import Largest
from vramcast.forecast.sweep_report import SweepReport
from vramcast.hardware.short_names import short_name
from vramcast.task.quantity import GIB

_WIDEST, _PLOT_ROWS = 84, 18
_MOST_ROWS = 16
_MOST_TICKS = 10
_FILE_FORMATS = (".png", ".svg", ".pdf")


def print_sweep(console: Console, report: SweepReport) -> None:
    for line in _plot(report, console.width):
        console.print(line, no_wrap=True, overflow="crop")
    console.print(_legend(report))
    console.print(_largest_table(report))
    if len(report.points) <= _MOST_ROWS:
        console.print(_points_table(report))
    for assumption in report.points[-1].assumptions:
        console.print(f"  [dim]assumed:[/dim] {assumption}")
    console.print()


def _plot(report: SweepReport, console_width: int) -> list[Text]:
    levels = list(report.levels())
    top = max(y for _, y in report.bounds()) * 1.08
    # Also show the smallest GPU that holds the whole sweep, unless it is far above.
    above = [usable for usable, _, _ in levels if top < usable <= 1.5 * top]
    top = max([top, *(usable * 1.03 for usable in above[:1])])
    shown = [level for level in levels if level[0] <= top]
    names = max((len(name) for _, name, _ in shown), default=0)
    width = max(30, min(_WIDEST, console_width - names - 9))
    # The x-axis starts at 0, so that half the batch size is half way.
    plot = TerminalPlot(width, _PLOT_ROWS, (0, report.sweep.values[-1]), (0, top))
    plot.band(report.medians(), report.bounds(), "blue")
    plot.line(report.medians(), "cyan")
    plot.line(report.bounds(), "bold yellow")
    for usable, name, _ in shown:
        plot.level(usable, name, "green")
    for usable, _, largest in shown:
        if largest is not None and report.sweep.values[0] <= largest <= report.sweep.values[-1]:
            plot.mark(largest, usable, f" {largest} ", "bold green")
    return plot.render(_ticks(report.sweep.values), "GiB")


def _ticks(values: Sequence[int]) -> Sequence[int]:
    """At most ten values, evenly spaced, including the last."""
    step = -(-len(values) // _MOST_TICKS)
    return values[(len(values) - 1) % step :: step]


def _legend(report: SweepReport) -> Text:
    return Text.assemble(
        "  ", ("━", "bold yellow"), f" needed at risk {report.risk:g}   ", ("━", "cyan"), " median   ",
        ("╌", "green"), " GPU's memory   ", (f"x: {report.sweep.key}, on {short_name(report.product)}", "dim"),
    )  # fmt: skip


def _largest_table(report: SweepReport) -> Table:
    key = report.sweep.key
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("GPU", no_wrap=True)
    table.add_column("usable GiB", justify="right")
    table.add_column(f"largest\n{key}", justify="right", style="bold", min_width=len(key))
    table.add_column("in eights", justify="right")
    table.add_column("median", justify="right")
    table.add_column(f"risk {report.risk:g}", justify="right")
    table.add_column("next needs", justify="right", style="dim")
    for one in report.largest:
        table.add_row(one.product, f"{one.usable_mib / 1024:.1f}", *_largest_cells(one))
    return table


def _largest_cells(one: Largest) -> tuple[str, ...]:
    more = f"{one.next_forecast.bound_bytes / GIB:.2f}" if one.next_forecast else "-"
    if one.value is None or one.forecast is None:
        return "[red]none[/red]", "-", "-", "-", f"{more} (at 1)"
    eights = str(one.value // 8 * 8) if one.value >= 8 else "-"
    sizes = (f"{size / GIB:.2f}" for size in (one.forecast.median_bytes, one.forecast.bound_bytes))
    return f"[green]{one.value:,}[/green]", eights, *sizes, more


def _points_table(report: SweepReport) -> Table:
    title = f"on {report.product}"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    table.add_column(report.sweep.key, justify="right")
    table.add_column("median GiB", justify="right")
    table.add_column(f"risk {report.risk:g}", justify="right")
    for value, forecast in zip(report.sweep.values, report.points, strict=True):
        table.add_row(str(value), f"{forecast.median_bytes / GIB:.2f}", f"{forecast.bound_bytes / GIB:.2f}")
    return table


def draw_sweeps(named: Sequence[tuple[str, SweepReport]], path: Path) -> None:
    """Plots one panel per task. Raises InvalidInput if matplotlib is missing or the file cannot be written."""
    if path.suffix.lower() not in _FILE_FORMATS:
        raise InvalidInput(f"--plot {path}: expected a file name that ends in {', '.join(_FILE_FORMATS)}")
    try:
        import matplotlib as mpl  # noqa: PLC0415  # an extra

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        raise InvalidInput(
            f"--plot {path}: needs matplotlib: pip install matplotlib (the extra vramcast[train] includes it); "
            "without --plot the sweep is drawn in the terminal"
        ) from None
    figure, panels = plt.subplots(len(named), 1, figsize=(9, 5 * len(named)), squeeze=False)
    for axes, (name, report) in zip(panels[:, 0], named, strict=True):
        _draw(axes, name, report)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise InvalidInput(f"--plot {path}: {error}") from None
    finally:
        plt.close(figure)


def _draw(axes: Any, name: str, report: SweepReport) -> None:
    values = report.sweep.values
    medians, bounds = ([y for _, y in points] for points in (report.medians(), report.bounds()))
    top = max(bounds) * 1.1
    axes.fill_between(values, medians, bounds, color="tab:orange", alpha=0.2)
    axes.plot(values, bounds, color="tab:orange", label=f"needed at risk {report.risk:g}")
    axes.plot(values, medians, color="tab:blue", label="median")
    for usable, products, largest in report.levels():
        if usable > top:
            continue
        axes.axhline(usable, color="tab:green", linewidth=0.8, linestyle="--")
        label = "none fits" if largest is None else f"{largest:,}"
        axes.annotate(f"{products}: {label}", (values[0], usable), va="bottom", fontsize=8, color="tab:green")
        if largest is not None and values[0] <= largest <= values[-1]:
            axes.plot(largest, usable, "o", color="tab:green", markersize=4)
    axes.set(title=name, xlabel=report.sweep.key, ylabel=f"GiB on {report.product}", ylim=(0, top))
    axes.legend(loc="lower right")
