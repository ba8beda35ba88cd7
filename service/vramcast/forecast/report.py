"""A forecast report per product: the parts, the bound at several risks, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.forecast.step_time import UNTIMED, StepTime, builtin_step_timer
from vramcast.hardware.products import memory_mib, reserve_mib
from vramcast.names import Product
from vramcast.task.quantity import ceil_mib
from vramcast.task.task import Task

RISKS = (0.1, 0.05, 0.01)
# The most common products, by memory.
COMMON_PRODUCTS = tuple(
    Product(name)
    for name in (
        "Tesla-T4", "NVIDIA-L4", "NVIDIA-A10", "Tesla-V100-SXM2-32GB", "NVIDIA-A100-SXM4-40GB", "NVIDIA-L40S",
        "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-H200",
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ProductReport:
    """`holds_it` is None if the product's memory is unknown."""

    forecast: Forecast
    bounds_bytes: dict[float, int]
    usable_mib: int | None
    holds_it: bool | None
    step: StepTime = UNTIMED


def report(forecaster: Forecaster, task: Task, products: Iterable[Product]) -> list[ProductReport]:
    """Raises InvalidTask if the description does not allow a forecast."""
    return [_report_one(forecaster, task, product) for product in products]


def _report_one(forecaster: Forecaster, task: Task, product: Product) -> ProductReport:
    forecast = forecaster.forecast(task, product)
    bounds = {
        risk: forecaster.forecast(replace(task, max_oom_risk=risk), product).bound_bytes
        for risk in sorted({*RISKS, forecast.risk}, reverse=True)
    }
    usable = usable_mib(product)
    holds_it = None if usable is None else ceil_mib(forecast.bound_bytes) <= usable
    return ProductReport(forecast, bounds, usable, holds_it, builtin_step_timer().forecast(task, product))


def usable_mib(product: Product) -> int | None:
    """The memory without the driver's reserve; None for an unknown product."""
    memory = memory_mib(product)
    return None if memory is None else memory - reserve_mib(product)


def report_json(given: ProductReport) -> dict[str, Any]:
    """The format of the API and of `--output json`."""
    forecast = given.forecast
    return {
        "product": forecast.product,
        "median_bytes": forecast.median_bytes,
        "bound_bytes": forecast.bound_bytes,
        "need_mib": forecast.need_mib,
        "risk": forecast.risk,
        "bounds_bytes": {f"{risk:g}": size for risk, size in given.bounds_bytes.items()},
        "source": forecast.source,
        "model_version": forecast.model_version,
        "usable_mib": given.usable_mib,
        "holds_it": given.holds_it,
        "parts": forecast.parts,
        "assumptions": forecast.assumptions,
        "utilization": forecast.utilization,
        "step": given.step,
    }
