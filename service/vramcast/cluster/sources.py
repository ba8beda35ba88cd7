"""The telemetry source that the settings choose."""

from __future__ import annotations

from vramcast.cluster.exporters import ExporterTelemetry
from vramcast.cluster.prometheus import PrometheusApi, PrometheusTelemetry, SeriesNames
from vramcast.cluster.telemetry import HttpReader, Telemetry
from vramcast.hardware.vendors import VENDORS
from vramcast.outcomes.readings import Interpreter
from vramcast.settings import Settings


def choose_telemetry(settings: Settings) -> Telemetry | None:
    """None: no telemetry, so promises alone decide."""
    memory, utilization = settings.telemetry_memory_metric, settings.telemetry_utilization_metric
    percent = any(vendor.exporter.percent_mark in utilization for vendor in VENDORS)
    interpreter = Interpreter(settings.label_names, settings.telemetry_memory_unit, percent)
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
