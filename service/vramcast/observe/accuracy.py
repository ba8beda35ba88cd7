"""How right the forecasts were, and how well that is known, as Prometheus sees it.

The numbers live in the core, because a restart must find them again; here they only get their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.outcomes.accuracy import Accuracy, Group, GroupAccuracy, Tally
from vramcast.outcomes.readings import Fault
from vramcast.outcomes.runs import Unmeasured
from vramcast.task.run_status import Ending

_GROUP = ("family", "level", "product")


@dataclass(frozen=True, slots=True)
class TelemetryView:
    """What is known of telemetry at the moment of a scrape. `age_seconds` None: nothing has come yet."""

    configured: bool
    age_seconds: float | None
    polls: Mapping[str, int]
    faults: Mapping[Fault, int]
    running: int = 0
    ended: int = 0


class AccuracyCollector(Collector):
    """`counting`: whether this replica is the one that counts; of two, the other shows no outcomes at all."""

    def __init__(
        self, accuracy: Accuracy, telemetry: Callable[[], TelemetryView], counting: Callable[[], bool]
    ) -> None:
        self._accuracy = accuracy
        self._telemetry = telemetry
        self._counting = counting

    def collect(self) -> Iterator[Metric]:
        groups = sorted(self._accuracy.groups.items()) if self._counting() else []
        yield from _outcomes(groups)
        yield from _lately(groups)
        yield from _histograms(groups)
        unmeasured = CounterMetricFamily(
            "vramcast_unmeasured_runs", "Runs that ended and are no outcome, by why", labels=["why"]
        )
        for why in Unmeasured:
            unmeasured.add_metric([why], self._accuracy.unmeasured[why] if self._counting() else 0)
        yield unmeasured
        yield from _telemetry(self._telemetry())


def _outcomes(groups: Iterable[tuple[Group, GroupAccuracy]]) -> Iterator[Metric]:
    ends = CounterMetricFamily("vramcast_outcomes", "Measured runs that ended, by how", labels=[*_GROUP, "ending"])
    kept = CounterMetricFamily("vramcast_promises_kept", "Measured runs that stayed in their promise", labels=_GROUP)
    ooms = CounterMetricFamily("vramcast_ooms", "Runs whose GPU's memory did not suffice", labels=_GROUP)
    for group, accuracy in groups:
        labels = [group.family, group.level, group.product]
        for ending in Ending:
            ends.add_metric([*labels, ending], accuracy.endings[ending])
        kept.add_metric(labels, accuracy.kept)
        ooms.add_metric(labels, accuracy.endings[Ending.OOM])
    yield from (ends, kept, ooms)


def _lately(groups: Iterable[tuple[Group, GroupAccuracy]]) -> Iterator[Metric]:
    bias = GaugeMetricFamily(
        "vramcast_forecast_bias_ratio",
        "Observed peak over median forecast, geometric mean of the last 200 outcomes: 1 is right, 1.2 a fifth too low",
        labels=_GROUP,
    )
    coverage = GaugeMetricFamily("vramcast_coverage_ratio", "Promises kept, of the last 200 outcomes", labels=_GROUP)
    promised = GaugeMetricFamily(
        "vramcast_coverage_promised_ratio",
        "1 - risk, mean of the same outcomes: what it should be",
        labels=_GROUP,
    )
    lately = GaugeMetricFamily(
        "vramcast_coverage_outcomes", "Outcomes that the coverage rests on: 200 at most", labels=_GROUP
    )
    for group, accuracy in groups:
        labels = [group.family, group.level, group.product]
        was, should_be = accuracy.coverage
        bias.add_metric(labels, accuracy.bias)
        coverage.add_metric(labels, was)
        promised.add_metric(labels, should_be)
        lately.add_metric(labels, len(accuracy.lately))
    yield from (bias, coverage, promised, lately)


def _histograms(groups: Iterable[tuple[Group, GroupAccuracy]]) -> Iterator[Metric]:
    error = HistogramMetricFamily(
        "vramcast_forecast_error_ratio",
        "Observed peak over median forecast, without OOMs",
        labels=_GROUP,
    )
    reserved = HistogramMetricFamily(
        "vramcast_over_reservation_ratio", "Promise over observed peak, without OOMs", labels=_GROUP
    )
    utilization = HistogramMetricFamily(
        "vramcast_utilization_error_ratio", "GPU utilization, forecast less observed mean", labels=_GROUP
    )
    for group, accuracy in groups:
        labels = [group.family, group.level, group.product]
        _add(error, labels, accuracy.error)
        _add(reserved, labels, accuracy.reservation)
        _add(utilization, labels, accuracy.utilization)
    yield from (error, reserved, utilization)


def _add(family: HistogramMetricFamily, labels: list[str], tally: Tally) -> None:
    family.add_metric(labels, list(tally.cumulative()), tally.total)


def _telemetry(view: TelemetryView) -> Iterator[Metric]:
    age = GaugeMetricFamily("vramcast_telemetry_age_seconds", "Since the newest sample of any GPU; none: no telemetry")
    if view.configured:
        # Nothing yet is as old as it gets: an alert on the age must see it.
        age.add_metric([], float("inf") if view.age_seconds is None else view.age_seconds)
    yield age
    polls = CounterMetricFamily("vramcast_telemetry_polls", "Looks at telemetry, by result", labels=["result"])
    for result, count in view.polls.items():
        polls.add_metric([result], count)
    yield polls
    faults = CounterMetricFamily(
        "vramcast_telemetry_faults", "Samples that were passed over, or doubtful, by why", labels=["fault"]
    )
    for fault in Fault:
        faults.add_metric([fault], view.faults.get(fault, 0))
    yield faults
    runs = GaugeMetricFamily(
        "vramcast_runs", "Forecast pods that run, or ended and are not counted yet", labels=["phase"]
    )
    runs.add_metric(["running"], view.running)
    runs.add_metric(["ended"], view.ended)
    yield runs
