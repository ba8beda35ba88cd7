"""A sweep on several products: the curve on one of them, and the largest value that fits each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.forecast.sweep import Largest, SweepRange, curve, find_largest
from vramcast.hardware.short_names import short_name
from vramcast.names import Product
from vramcast.task.quantity import GIB
from vramcast.task.task import Task

# The curve shows this product if it can: no other has as many measurements behind its forecasts.
_DRAWN = Product("NVIDIA-A100-SXM4-40GB")
_ABOUT_THE_SAME = 1.02

# (value, GiB)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class SweepReport:
    """`points` are for one product, because the others' curves differ little; `largest` has every product."""

    sweep: SweepRange
    product: Product
    points: list[Forecast]
    largest: list[Largest]

    @property
    def risk(self) -> float:
        return self.points[0].risk

    def medians(self) -> list[Point]:
        pairs = zip(self.sweep.values, self.points, strict=True)
        return [(value, forecast.median_bytes / GIB) for value, forecast in pairs]

    def bounds(self) -> list[Point]:
        pairs = zip(self.sweep.values, self.points, strict=True)
        return [(value, forecast.bound_bytes / GIB) for value, forecast in pairs]

    def levels(self) -> Iterator[tuple[float, str, int | None]]:
        """(usable GiB, short names, largest value) of products with about the same memory; the lowest value counts."""
        left = sorted(self.largest, key=lambda one: one.usable_mib)
        while left:
            same = [one for one in left if one.usable_mib <= left[0].usable_mib * _ABOUT_THE_SAME]
            least = min(one.value or 0 for one in same)
            yield same[0].usable_mib / 1024, ", ".join(short_name(one.product) for one in same), least or None
            left = left[len(same) :]


def sweep_task(
    forecaster: Forecaster, task: Task, products: Sequence[Product], sweep: SweepRange, search: bool = True
) -> SweepReport:
    """Raises InvalidTask if the description does not tell how memory depends on the key.

    `search`: look for the largest value on each product. That takes dozens of forecasts per product.
    """
    drawn = _DRAWN if _DRAWN in products else products[0]
    points = curve(forecaster, task, drawn, sweep)
    largest = [find_largest(forecaster, task, product, sweep) for product in products] if search else []
    return SweepReport(sweep, drawn, points, [one for one in largest if one is not None])


def sweep_json(report: SweepReport) -> dict[str, Any]:
    return {
        "sweep": report.sweep.key,
        "risk": report.risk,
        "product": report.product,
        "points": [
            {"value": value, "median_bytes": forecast.median_bytes, "bound_bytes": forecast.bound_bytes}
            for value, forecast in zip(report.sweep.values, report.points, strict=True)
        ],
        "largest": [
            {
                "product": one.product,
                "usable_mib": one.usable_mib,
                "value": one.value,
                "median_bytes": one.forecast.median_bytes if one.forecast else None,
                "bound_bytes": one.forecast.bound_bytes if one.forecast else None,
                "next_bound_bytes": one.next_forecast.bound_bytes if one.next_forecast else None,
            }
            for one in report.largest
        ],
        "assumptions": report.points[-1].assumptions,
    }
