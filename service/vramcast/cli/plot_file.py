"""The plot of a sweep as a file: PNG, SVG or PDF by its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vramcast.cli.sweep import SweepReport
from vramcast.errors import InvalidInput

_FORMATS = (".png", ".svg", ".pdf")


def draw_sweeps(named: Sequence[tuple[str, SweepReport]], path: Path) -> None:
    """One panel for each task. Raises InvalidInput where there is no matplotlib, or no place for the file."""
    if path.suffix.lower() not in _FORMATS:
        raise InvalidInput(f"--plot {path}: expected a name that ends in {', '.join(_FORMATS)}")
    try:
        import matplotlib as mpl  # noqa: PLC0415  # an extra

        mpl.use("Agg")
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        raise InvalidInput(
            f"--plot {path}: needs matplotlib: pip install matplotlib (the extra vramcast[train] brings it too); "
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
        told = "none fits" if largest is None else f"{largest:,}"
        axes.annotate(f"{products}: {told}", (values[0], usable), va="bottom", fontsize=8, color="tab:green")
        if largest is not None and values[0] <= largest <= values[-1]:
            axes.plot(largest, usable, "o", color="tab:green", markersize=4)
    axes.set(title=name, xlabel=report.sweep.key, ylabel=f"GiB on {report.product}", ylim=(0, top))
    axes.legend(loc="lower right")
