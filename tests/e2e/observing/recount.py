"""Recomputes the accuracy metrics from the API server's pods and Prometheus' raw samples.

This check is independent: it imports nothing from vramcast. For each finished pod it reads the promise from the
annotations and the peak from the samples taken during the run, and then counts as docs/accuracy.md describes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import fmean
from typing import Any

from tests.controlplane import quantity
from tests.e2e.observing.world import FB_USED, World, written

Json = dict[str, Any]
MIB = 1 << 20
# By counter: its annotation, DCGM's metric, and what that metric shows of a GPU in full use.
COUNTERS = {
    "gpu_util": ("forecast-utilization", "DCGM_FI_DEV_GPU_UTIL", 100),
    "sm_active": ("forecast-sm-active", "DCGM_FI_PROF_SM_ACTIVE", 1),
    "sm_occupancy": ("forecast-sm-occupancy", "DCGM_FI_PROF_SM_OCCUPANCY", 1),
}
# A pod that uses less has not begun.
LEAST_MIB = 64
Group = tuple[str, str, str]  # family, level, product
Samples = Mapping[str, Sequence[tuple[float, float]]]  # by pod


@dataclass(frozen=True, slots=True)
class Recounted:
    """One finished run."""

    group: Group
    ending: str
    median_bytes: int
    promised_bytes: int
    peak_bytes: int
    utilization: Mapping[str, float]  # forecast minus observed, by counter
    shared: bool  # not alone on its GPU all the time

    @property
    def kept(self) -> bool:
        return self.ending != "oom" and self.peak_bytes <= self.promised_bytes

    @property
    def error(self) -> float:
        return self.peak_bytes / self.median_bytes

    @property
    def over_reservation(self) -> float:
        return self.promised_bytes / self.peak_bytes


def recount(world: World) -> list[Recounted]:
    products = {
        node["metadata"]["name"]: node["metadata"]["labels"]["nvidia.com/gpu.product"] for node in world.api.nodes()
    }
    series = {metric: _named(world, metric) for metric in (FB_USED, *(metric for _, metric, _ in COUNTERS.values()))}
    memory = _by_pod(series[FB_USED])
    alone = _alone(series[FB_USED])
    busy = {counter: _by_pod(series[metric], alone) for counter, (_, metric, _) in COUNTERS.items()}
    shared = _sharing(series[FB_USED], alone)
    return [_recount_one(pod, products[pod["spec"]["nodeName"]], memory, busy, shared) for pod in world.over]


# (pod, (node, GPU), samples)
Named = tuple[str, tuple[str, str], Sequence[tuple[float, float]]]
Place = tuple[tuple[str, str], float]


def _named(world: World, metric: str) -> list[Named]:
    return [
        (labels[world.pod_label], (labels["Hostname"], labels["gpu"]), samples)
        for labels, samples in world.prometheus.samples(f'{metric}{{{world.pod_label}!=""}}')
    ]


def _alone(memory: Iterable[Named]) -> set[Place]:
    """The GPUs and times at which one pod used memory."""
    users = Counter((gpu, at) for _, gpu, samples in memory for at, mib in samples if mib >= LEAST_MIB)
    return {place for place, count in users.items() if count == 1}


def _sharing(memory: Iterable[Named], alone: set[Place]) -> set[str]:
    """The pods that were not alone on their GPU all the time."""
    return {pod for pod, gpu, samples in memory for at, mib in samples if mib >= LEAST_MIB and (gpu, at) not in alone}


def _by_pod(series: Iterable[Named], places: set[Place] | None = None) -> Samples:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for pod, gpu, samples in series:
        found[pod] += [(at, value) for at, value in samples if places is None or (gpu, at) in places]
    return found


def _recount_one(pod: Json, product: str, memory: Samples, busy: Mapping[str, Samples], shared: set[str]) -> Recounted:
    annotations, status, name = written(pod), pod["status"], pod["metadata"]["name"]
    ended = status["containerStatuses"][0]["state"]["terminated"]
    begin, end = _epoch(status["startTime"]), _epoch(ended["finishedAt"])
    peak = max(value for at, value in memory[name] if begin <= at <= end)
    oom = "CUDA out of memory" in ended.get("message", "")
    given = "gpu-memory" in annotations
    promised = quantity(annotations["reserved-memory"])
    utilization = {}
    for counter, (annotation, _, whole) in COUNTERS.items():
        seen = [value / whole for at, value in busy[counter][name] if begin <= at <= end]
        if seen and annotation in annotations:
            utilization[counter] = float(annotations[annotation]) - fmean(seen)
    return Recounted(
        group=(annotations.get("architecture", "unknown"), "given" if given else "summary", product),
        ending="oom" if oom else status["phase"].lower(),
        median_bytes=quantity(annotations["forecast-memory"]),
        promised_bytes=promised,
        # A run that ended in OOM needed more than it had, whatever the samples show.
        peak_bytes=max(promised, round(peak) * MIB) if oom else round(peak) * MIB,
        utilization=utilization,
        shared=name in shared,
    )


def _epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


# --- the comparison


def check_metrics(world: World, runs: Sequence[Recounted]) -> None:
    """Compare every accuracy metric that Prometheus scraped with the recount. Raises AssertionError."""
    groups = {run.group for run in runs}
    scraped = Scraped(world)
    assert scraped.groups("vramcast_promises_kept_total") == groups
    for group in groups:
        of_group = [run for run in runs if run.group == group]
        without_oom = [run for run in of_group if run.ending != "oom"]
        assert scraped.endings(group) == Counter(run.ending for run in of_group)
        assert scraped.value("vramcast_promises_kept_total", group) == sum(run.kept for run in of_group)
        assert scraped.value("vramcast_ooms_total", group) == len(of_group) - len(without_oom)
        _check_histogram(scraped, "vramcast_forecast_error_ratio", group, [run.error for run in without_oom])
        _check_histogram(
            scraped, "vramcast_over_reservation_ratio", group, [run.over_reservation for run in without_oom]
        )
        for counter in COUNTERS:
            compared = [run for run in of_group if counter in run.utilization]
            errors = [run.utilization[counter] for run in compared if not run.shared]
            _check_utilization(scraped, group, counter, errors, len(compared) - len(errors))
        assert scraped.value("vramcast_coverage_outcomes", group) == len(of_group)
        _check_close(scraped.value("vramcast_coverage_ratio", group), fmean(run.kept for run in of_group), 1e-9)
        bias = math.exp(fmean(math.log(run.error) for run in of_group))
        _check_close(scraped.value("vramcast_forecast_bias_ratio", group), bias, 1e-4)


def _check_histogram(scraped: Scraped, name: str, group: Group, values: Sequence[float]) -> None:
    assert scraped.value(f"{name}_count", group) == len(values)
    _check_close(scraped.value(f"{name}_sum", group), sum(values), 1e-6 * max(1.0, sum(values)))
    buckets = scraped.buckets(name, group)
    assert buckets == {le: sum(value <= float(le) for value in values) for le in buckets}


def _check_utilization(
    scraped: Scraped, group: Group, counter: str, values: Sequence[float], at_times_alone: int
) -> None:
    """A histogram with negative buckets has neither sum nor count in this format.

    Of a run that was alone for a part of its time, a poll may have seen that part or missed it.
    """
    buckets = scraped.buckets("vramcast_utilization_error_ratio", group, counter)
    if not buckets:
        assert not values
        return
    for le, count in buckets.items():
        least, most = (sum(value <= float(le) + rounding for value in values) for rounding in (-1e-6, 1e-6))
        most += at_times_alone
        assert least <= count <= most, f"{counter}: {count} up to {le}, recounted {least} to {most}"


def _check_close(scraped: float, recounted: float, tolerance: float) -> None:
    assert abs(scraped - recounted) <= tolerance, f"scraped {scraped}, recounted {recounted}"


class Scraped:
    """The metrics that Prometheus scraped last."""

    def __init__(self, world: World) -> None:
        self._prometheus = world.prometheus

    def groups(self, name: str) -> set[Group]:
        return {_group(labels) for labels, _ in self._prometheus.query(name)}

    def endings(self, group: Group) -> Counter[str]:
        found = self._of("vramcast_outcomes_total", group)
        return Counter({labels["ending"]: int(value) for labels, value in found if value})

    def value(self, name: str, group: Group) -> float:
        found = [value for _, value in self._of(name, group)]
        assert len(found) == 1, f"{name} of {group}: {found}"
        return found[0]

    def buckets(self, name: str, group: Group, counter: str | None = None) -> dict[str, float]:
        found = self._of(f"{name}_bucket", group)
        return {labels["le"]: value for labels, value in found if labels.get("counter") == counter}

    def _of(self, name: str, group: Group) -> Iterable[tuple[dict[str, str], float]]:
        return [(labels, value) for labels, value in self._prometheus.query(name) if _group(labels) == group]


def _group(labels: Mapping[str, str]) -> Group:
    return labels["family"], labels["level"], labels["product"]
