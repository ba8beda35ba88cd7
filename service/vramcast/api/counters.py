"""Which counters of utilization are compared with their forecasts, and why one is not."""

from __future__ import annotations

from typing import Any

from vramcast.hardware.utilization import FORECAST_COUNTERS, UtilizationCounter
from vramcast.service import Service
from vramcast.setting_rules import COUNTER_SETTINGS


def show_counters(service: Service) -> list[dict[str, Any]]:
    metrics = service.settings.utilization_metrics
    return [
        {
            "counter": counter.value,
            "metric": metrics[counter],
            "scraped": service.tracker.is_scraped(counter),
            "missing": _missing(service, counter, metrics[counter]),
        }
        for counter in FORECAST_COUNTERS
    ]


def _missing(service: Service, counter: UtilizationCounter, metric: str) -> str:
    """Empty if it is compared."""
    if service.tracker.is_scraped(counter):
        return ""
    if not service.tracker.telemetry.configured:
        return "not compared: there is no telemetry"
    if not metric:
        return f"not compared: setting {COUNTER_SETTINGS[counter]} is empty"
    return f"not compared: telemetry shows no {metric}"
