"""Metrics of the TLS certificates that are served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class CertificateView:
    """`expires_at`: seconds since the epoch; None without TLS."""

    expires_at: float | None = None
    reloads: Mapping[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0})


class CertificateCollector(Collector):
    """`views`: one per port with TLS."""

    def __init__(self, views: Sequence[Callable[[], CertificateView]]) -> None:
        self._views = views

    def collect(self) -> Iterator[Metric]:
        views = [CertificateView(), *(view() for view in self._views)]
        # Without TLS there is no sample: 0 would look like a certificate that has expired.
        yield GaugeMetricFamily(
            "vramcast_tls_certificate_expiry_timestamp_seconds",
            "When the first of the certificates that are served expires, in seconds since the epoch",
            value=min((view.expires_at for view in views if view.expires_at is not None), default=None),
        )
        reloads = CounterMetricFamily(
            "vramcast_tls_reloads", "Attempts to load TLS files that had changed", labels=["result"]
        )
        for result in CertificateView().reloads:
            reloads.add_metric([result], sum(view.reloads[result] for view in views))
        yield reloads
