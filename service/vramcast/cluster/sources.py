"""The telemetry source that the settings choose."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.cluster.exporters import ExporterTelemetry
from vramcast.cluster.prometheus import PrometheusApi, PrometheusTelemetry, SeriesNames
from vramcast.cluster.telemetry import HttpReader, Telemetry
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.hardware.vendors import VENDORS
from vramcast.outcomes.readings import Interpreter
from vramcast.settings import Settings


def choose_telemetry(settings: Settings) -> Telemetry | None:
    """None: no telemetry, so promises alone decide."""
    memory, utilization = settings.telemetry_memory_metric, settings.utilization_metrics
    interpreter = Interpreter(settings.label_names, settings.telemetry_memory_unit, _in_percent(utilization))
    if settings.prometheus_url is not None:
        http = HttpReader(
            settings.telemetry_timeout_seconds, settings.prometheus_ca_file, settings.prometheus_token_file
        )
        api = PrometheusApi(http, settings.prometheus_url)
        metrics = SeriesNames(memory, utilization, settings.prometheus_selector)
        return PrometheusTelemetry(api, metrics, interpreter, settings.telemetry_interval_seconds)
    if settings.exporter_urls is not None:
        http = HttpReader(settings.telemetry_timeout_seconds)
        return ExporterTelemetry(http, settings.exporter_urls.split(","), memory, utilization, interpreter)
    return None


def _in_percent(metrics: Mapping[UtilizationCounter, str]) -> frozenset[UtilizationCounter]:
    marks = [vendor.exporter.percent_mark for vendor in VENDORS]
    return frozenset(counter for counter, name in metrics.items() if any(mark in name for mark in marks))
