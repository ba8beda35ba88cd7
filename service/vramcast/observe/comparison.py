"""The active model beside the candidate in its shadow, as Prometheus sees it."""

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
            "1 for how the candidate stands beside the active model",
            labels=["standing"],
        )
        for known in Standing:
            standing.add_metric([known], float(known is view.standing))
        yield standing
        loads = CounterMetricFamily("vramcast_candidate_loads", "Candidates by whether they loaded", labels=["result"])
        for result, count in view.loads.items():
            loads.add_metric([result], count)
        yield loads
        yield CounterMetricFamily("vramcast_promotions", "Candidates that took over", value=view.promotions)
        yield from _figures(view.figures)


_COMPARED: Mapping[str, tuple[str, Callable[[Figures], float]]] = {
    "outcomes": ("Outcomes that both models forecast, 200 at most", lambda f: f.outcomes),
    "loss_ratio": ("Pinball loss of the bound in logarithms, mean of the same outcomes", lambda f: f.loss),
    "coverage_ratio": ("Promises that would have been kept, of the same outcomes", lambda f: f.coverage),
    "promised_ratio": ("1 - risk, mean of the same outcomes", lambda f: f.promised),
    "error_ratio": ("Error of the median forecast, median of the same outcomes", lambda f: f.error_ratio),
    "over_reservation_ratio": (
        "Promise over observed peak, median of the same outcomes",
        lambda f: f.over_reservation_ratio,
    ),
}


def _figures(figures: Mapping[str, Figures]) -> Iterator[Metric]:
    for name, (text, value) in _COMPARED.items():
        gauge = GaugeMetricFamily(f"vramcast_comparison_{name}", text, labels=["role"])
        for role, of in figures.items():
            gauge.add_metric([role], value(of))
        yield gauge
