"""Metrics of the TLS certificate that is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class CertificateView:
    """`expires_at`: seconds since the epoch; None without TLS."""

    expires_at: float | None = None
    reloads: Mapping[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0})


class CertificateCollector(Collector):
    def __init__(self, view: Callable[[], CertificateView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        # Without TLS there is no sample: 0 would look like a certificate that has expired.
        yield GaugeMetricFamily(
            "vramcast_tls_certificate_expiry_timestamp_seconds",
            "When the certificate that is served expires, in seconds since the epoch",
            value=view.expires_at,
        )
        reloads = CounterMetricFamily(
            "vramcast_tls_reloads", "Attempts to load TLS files that had changed", labels=["result"]
        )
        for result, count in view.reloads.items():
            reloads.add_metric([result], count)
        yield reloads
