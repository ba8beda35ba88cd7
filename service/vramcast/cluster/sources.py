"""Which telemetry there is, by the settings."""

from __future__ import annotations

from vramcast.cluster.dcgm import DcgmTelemetry
from vramcast.cluster.prometheus import PrometheusApi, PrometheusTelemetry, SeriesNames
from vramcast.cluster.telemetry import HttpReader, Telemetry
from vramcast.outcomes.readings import Interpreter
from vramcast.settings import Settings


def choose_telemetry(settings: Settings) -> Telemetry | None:
    """None: nobody watches the GPUs, and promises alone decide."""
    memory, utilization = settings.telemetry_memory_metric, settings.telemetry_utilization_metric
    # GPU_UTIL counts in percent, the profiling metrics (..._ACTIVE) in shares.
    interpreter = Interpreter(settings.label_names, settings.telemetry_memory_unit, percent="_UTIL" in utilization)
    if settings.prometheus_url is not None:
        http = HttpReader(
            settings.telemetry_timeout_seconds, settings.prometheus_ca_file, settings.prometheus_token_file
        )
        api = PrometheusApi(http, settings.prometheus_url)
        metrics = SeriesNames(memory, utilization, settings.prometheus_selector)
        return PrometheusTelemetry(api, metrics, interpreter, settings.telemetry_interval_seconds)
    if settings.dcgm_urls is not None:
        http = HttpReader(settings.telemetry_timeout_seconds)
        return DcgmTelemetry(http, settings.dcgm_urls.split(","), memory, utilization, interpreter)
    return None
