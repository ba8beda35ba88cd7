"""Metrics of accuracy and telemetry. The numbers live in outcomes/, because they survive a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from vramcast.hardware.utilization import FORECAST_COUNTERS
from vramcast.outcomes.accuracy import Accuracy, Group, GroupAccuracy, Tally
from vramcast.outcomes.readings import Fault
from vramcast.outcomes.run_tracker import RunTracker
from vramcast.outcomes.runs import Unmeasured
from vramcast.task.run_status import Ending

_GROUP = ("family", "level", "product", "truth")


class AccuracyCollector(Collector):
    """`counting`: does this replica count outcomes? A standby shows none."""

    def __init__(self, tracker: RunTracker, counting: Callable[[], bool]) -> None:
        self._tracker = tracker
        self._accuracy = tracker.accuracy
        self._counting = counting

    def collect(self) -> Iterator[Metric]:
        groups = sorted(self._accuracy.groups.items()) if self._counting() else []
        yield from _outcomes(groups)
        yield from _lately(groups)
        yield from _histograms(groups)
        unmeasured = CounterMetricFamily(
            "vramcast_unmeasured_runs", "Ended runs that could not be measured, by cause", labels=["why"]
        )
        for why in Unmeasured:
            unmeasured.add_metric([why], self._accuracy.unmeasured[why] if self._counting() else 0)
        yield unmeasured
        yield _agreement(self._accuracy)
        yield from _telemetry(self._tracker)
        yield _scraped(self._tracker)


def _outcomes(groups: Iterable[tuple[Group, GroupAccuracy]]) -> Iterator[Metric]:
    ends = CounterMetricFamily("vramcast_outcomes", "Measured runs, by how they ended", labels=[*_GROUP, "ending"])
    kept = CounterMetricFamily(
        "vramcast_promises_kept", "Measured runs that stayed within their promise", labels=_GROUP
    )
    ooms = CounterMetricFamily("vramcast_ooms", "Runs that ran out of GPU memory", labels=_GROUP)
    for group, accuracy in groups:
        labels = [group.family, group.level, group.product, group.truth]
        for ending in Ending:
            ends.add_metric([*labels, ending], accuracy.endings[ending])
        kept.add_metric(labels, accuracy.kept)
        ooms.add_metric(labels, accuracy.endings[Ending.OOM])
    yield from (ends, kept, ooms)


def _lately(groups: Iterable[tuple[Group, GroupAccuracy]]) -> Iterator[Metric]:
    bias = GaugeMetricFamily(
        "vramcast_forecast_bias_ratio",
        "Observed peak over median forecast, geometric mean of the last 200 outcomes: 1 is exact, 1.2 is 20 % too low",
        labels=_GROUP,
    )
    coverage = GaugeMetricFamily(
        "vramcast_coverage_ratio", "Share of promises kept, over the last 200 outcomes", labels=_GROUP
    )
    promised = GaugeMetricFamily(
        "vramcast_coverage_promised_ratio",
        "Share of promises that should be kept: mean of 1 - risk over the same outcomes",
        labels=_GROUP,
    )
    lately = GaugeMetricFamily("vramcast_coverage_outcomes", "Outcomes behind the coverage, at most 200", labels=_GROUP)
    for group, accuracy in groups:
        labels = [group.family, group.level, group.product, group.truth]
        was, should_be = accuracy.coverage
        bias.add_metric(labels, accuracy.bias)
        coverage.add_metric(labels, was)
        promised.add_metric(labels, should_be)
        lately.add_metric(labels, len(accuracy.lately))
    yield from (bias, coverage, promised, lately)


def _histograms(groups: Iterable[tuple[Group, GroupAccuracy]]) -> Iterator[Metric]:
    error = HistogramMetricFamily(
        "vramcast_forecast_error_ratio",
        "Observed peak over median forecast, OOMs excluded",
        labels=_GROUP,
    )
    reserved = HistogramMetricFamily(
        "vramcast_over_reservation_ratio", "Promise over observed peak, OOMs excluded", labels=_GROUP
    )
    utilization = HistogramMetricFamily(
        "vramcast_utilization_error_ratio",
        "Utilization: forecast minus observed mean of the same counter, where it is scraped",
        labels=[*_GROUP, "counter"],
    )
    steps = HistogramMetricFamily(
        "vramcast_step_time_error_ratio",
        "Time per step by exit report over its forecast, where both are known",
        labels=_GROUP,
    )
    for group, accuracy in groups:
        labels = [group.family, group.level, group.product, group.truth]
        _add(error, labels, accuracy.error)
        _add(reserved, labels, accuracy.reservation)
        for counter, tally in accuracy.utilization.items():
            _add(utilization, [*labels, counter], tally)
        _add(steps, labels, accuracy.step)
    yield from (error, reserved, utilization, steps)


def _agreement(accuracy: Accuracy) -> Metric:
    agreement = HistogramMetricFamily(
        "vramcast_truth_agreement_ratio",
        "The same run's peak by two sources, the more trusted over the other, since the start",
        labels=["truth", "other_truth"],
    )
    for (trusted, other), tally in sorted(accuracy.agreement.items()):
        _add(agreement, [trusted, other], tally)
    return agreement


def _add(family: HistogramMetricFamily, labels: list[str], tally: Tally) -> None:
    family.add_metric(labels, list(tally.cumulative()), tally.total)


def _scraped(tracker: RunTracker) -> Metric:
    scraped = GaugeMetricFamily(
        "vramcast_utilization_scraped",
        "1: telemetry shows this counter of utilization; 0: it does not, so its forecast is compared with nothing",
        labels=["counter"],
    )
    for counter in FORECAST_COUNTERS:
        scraped.add_metric([counter], float(tracker.is_scraped(counter)))
    return scraped


def _telemetry(tracker: RunTracker) -> Iterator[Metric]:
    age = GaugeMetricFamily(
        "vramcast_telemetry_age_seconds", "Age of the newest sample of any GPU; absent without telemetry"
    )
    telemetry, age_seconds = tracker.telemetry, tracker.telemetry_age_seconds
    if telemetry.configured:
        # No sample yet counts as infinitely old, so that an alert on the age fires.
        age.add_metric([], float("inf") if age_seconds is None else age_seconds)
    yield age
    polls = CounterMetricFamily("vramcast_telemetry_polls", "Telemetry polls, by result", labels=["result"])
    for result, count in telemetry.polls.items():
        polls.add_metric([result], count)
    yield polls
    faults = CounterMetricFamily(
        "vramcast_telemetry_faults", "Samples that were ignored or doubtful, by cause", labels=["fault"]
    )
    for fault in Fault:
        faults.add_metric([fault], telemetry.faults.get(fault, 0))
    yield faults
    runs = GaugeMetricFamily(
        "vramcast_runs", "Forecast pods that are running, or have ended and are not counted yet", labels=["phase"]
    )
    runs.add_metric(["running"], len(tracker.runs))
    runs.add_metric(["ended"], len(tracker.ended))
    yield runs
