"""Metrics of the candidate on trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.outcomes.comparison import Figures, Standing


@dataclass(frozen=True, slots=True)
class CandidateView:
    """At the moment of a scrape. `figures`: by role, empty without a candidate."""

    standing: Standing = Standing.NONE
    loads: Mapping[str, int] = field(default_factory=lambda: {"ok": 0, "failed": 0})
    promotions: int = 0
    figures: Mapping[str, Figures] = field(default_factory=dict)


class CandidateCollector(Collector):
    def __init__(self, view: Callable[[], CandidateView]) -> None:
        self._view = view

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        standing = GaugeMetricFamily(
            "vramcast_candidate_standing",
            "1 for the candidate's standing against the active model",
            labels=["standing"],
        )
        for known in Standing:
            standing.add_metric([known], float(known is view.standing))
        yield standing
        loads = CounterMetricFamily(
            "vramcast_candidate_loads", "Attempts to load a candidate, by result", labels=["result"]
        )
        for result, count in view.loads.items():
            loads.add_metric([result], count)
        yield loads
        yield CounterMetricFamily(
            "vramcast_promotions", "Candidates that became the active model", value=view.promotions
        )
        yield from _figures(view.figures)


_COMPARED: Mapping[str, tuple[str, Callable[[Figures], float]]] = {
    "outcomes": ("Outcomes that both models forecast, at most 200", lambda f: f.outcomes),
    "loss_ratio": ("Pinball loss of the log bound, mean over the same outcomes: this decides", lambda f: f.loss),
    "coverage_ratio": (
        "Share of promises that the model would have kept, over the same outcomes",
        lambda f: f.coverage,
    ),
    "promised_ratio": (
        "Share of promises that it should keep: mean of 1 - risk over the same outcomes",
        lambda f: f.promised,
    ),
    "error_ratio": ("Median error of the median forecast, over the same outcomes", lambda f: f.error_ratio),
    "over_reservation_ratio": (
        "Median of promise over observed peak, over the same outcomes",
        lambda f: f.over_reservation_ratio,
    ),
}


def _figures(figures: Mapping[str, Figures]) -> Iterator[Metric]:
    for name, (text, value) in _COMPARED.items():
        gauge = GaugeMetricFamily(f"vramcast_comparison_{name}", text, labels=["role"])
        for role, of in figures.items():
            gauge.add_metric([role], value(of))
        yield gauge
