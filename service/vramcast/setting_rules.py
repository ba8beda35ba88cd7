"""What settings must not contradict in each other.

Not a validator of the model, because pydantic runs those only if every single setting is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.hardware.utilization import UtilizationCounter
from vramcast.hardware.vendors import VENDORS

COUNTER_SETTINGS: Final = {
    UtilizationCounter.GPU_UTIL: "telemetry_utilization_metric",
    UtilizationCounter.SM_ACTIVE: "telemetry_sm_active_metric",
    UtilizationCounter.SM_OCCUPANCY: "telemetry_sm_occupancy_metric",
    UtilizationCounter.MEMORY_UTIL: "telemetry_memory_util_metric",
}


def contradictions(values: Mapping[str, Any]) -> list[str]:
    """`values`: as given, whether they are valid or not."""
    return [*_tls(values), *_webhook(values), *_telemetry(values), *_counters(values)]


def _tls(values: Mapping[str, Any]) -> list[str]:
    cert, key, client_ca = (values.get(f"tls_{name}_file") for name in ("cert", "key", "client_ca"))
    if (cert is None) != (key is None):
        return ["tls_cert_file and tls_key_file go together: set both or neither"]
    if client_ca is not None and cert is None:
        return ["tls_client_ca_file needs tls_cert_file and tls_key_file"]
    return []


def _webhook(values: Mapping[str, Any]) -> list[str]:
    given = [values.get(f"webhook_{name}") is not None for name in ("port", "cert_file", "key_file")]
    if any(given) and not all(given):
        return ["webhook_port, webhook_cert_file and webhook_key_file go together: set all or none"]
    return []


def _telemetry(values: Mapping[str, Any]) -> list[str]:
    if values.get("prometheus_url") and values.get("exporter_urls"):
        return ["prometheus_url and exporter_urls are two sources of the same samples: set only one"]
    return []


def _counters(values: Mapping[str, Any]) -> list[str]:
    known = {metric: counter for vendor in VENDORS for counter, metric in vendor.exporter.counters.items()}
    mistakes = []
    for counter, setting in COUNTER_SETTINGS.items():
        meant = known.get(str(values.get(setting)), counter)
        if meant is not counter:
            told = f"{setting}: {values[setting]} is {meant}, and would be read as {counter}"
            mistakes.append(f"{told}: set {COUNTER_SETTINGS[meant]} instead")
    return mistakes
