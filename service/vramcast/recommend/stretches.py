"""GPU series of one window, as one stretch per pod.

Series come with one sample per step: the peak of that step. Exporters differ and so do the clusters that scrape them:

    honorLabels is off      the pod is in `exported_pod`, and `pod` is the exporter's own
    a GPU without a pod     has no pod label, or the exporter's own pod
    time-slicing            every pod shows the memory of the whole GPU, or only one pod shows
    a finished pod          may be named until it is deleted
    a name used twice       one series for two pods, told apart by the time of their creation
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from vramcast.hardware.products import base_product
from vramcast.outcomes.readings import Fault, LabelNames, Series, first_label, value_fault
from vramcast.recommend.window import PodFacts, Stretch

NAMES: Final = LabelNames()
UUID: Final = ("UUID", "gpu_uuid")
MODEL: Final = ("modelName", "card_series", "card_model")
PROFILE: Final = ("GPU_I_PROFILE",)
# What the queries keep; everything else that an exporter adds would only multiply series.
KEPT: Final = (
    *NAMES.node, *NAMES.pod, *NAMES.namespace, *NAMES.gpu, *NAMES.mig, *UUID, *MODEL, *PROFILE, "job",
)  # fmt: skip
_MAX_MIB: Final = 1 << 20
# Where Prometheus does not keep `up`, its name gives an exporter away.
_EXPORTER: Final = re.compile(r"(dcgm|metrics|gpu)-exporter")

PodName = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class GpuPlace:
    """A GPU, or a MIG slice of one."""

    node: str
    device: str
    product: str
    profile: str


@dataclass(slots=True)
class Usage:
    """The peaks of every step, by GPU and pod. Of several series of one pod on one GPU, the largest value counts."""

    peaks: dict[tuple[GpuPlace, PodName], dict[float, float]] = field(default_factory=dict)
    gpus: set[tuple[str, str]] = field(default_factory=set)  # (node, device), with and without pods
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def pods(self) -> set[PodName]:
        return {pod for _, pod in self.peaks}

    @property
    def nameless(self) -> int:
        return len(self.gpus - {(place.node, place.device) for place, _ in self.peaks})


def read_usage(series: Iterable[Series], exporters: set[PodName]) -> Usage:
    """`exporters`: pods that are scraped, and so name a series without using its GPU."""
    usage = Usage()
    for one in series:
        place, pod = place_of(one.labels), pod_of(one.labels, exporters)
        if place is None:
            usage.faults[Fault.NO_GPU] += 1
            continue
        usage.gpus.add((place.node, place.device))
        if pod is None:
            continue
        peaks = usage.peaks.setdefault((place, pod), {})
        for at, value in one.samples:
            fault = value_fault(value, _MAX_MIB)
            if fault is not None:
                usage.faults[fault] += 1
            else:
                peaks[at] = max(value, peaks.get(at, 0.0))
    return usage


def place_of(labels: Mapping[str, str]) -> GpuPlace | None:
    device = first_label(labels, UUID) or first_label(labels, NAMES.gpu)
    if not device:
        return None
    slice_id = first_label(labels, NAMES.mig)
    product = base_product(first_label(labels, MODEL).strip().replace(" ", "-"))
    device = f"{device}/{slice_id}" if slice_id else device
    return GpuPlace(first_label(labels, NAMES.node), device, product, first_label(labels, PROFILE))


def pod_of(labels: Mapping[str, str], exporters: set[PodName]) -> PodName | None:
    namespace, name = first_label(labels, NAMES.namespace), first_label(labels, NAMES.pod)
    if not name or (namespace, name) in exporters or _EXPORTER.search(name):
        return None
    return namespace, name


def stretches(usage: Usage, facts: Sequence[PodFacts], step_seconds: float) -> list[Stretch]:
    """A sample at `at` is the peak of the step that ends there."""
    by_name: dict[PodName, list[PodFacts]] = {}
    for known in sorted(facts, key=lambda known: known.created_at):
        by_name.setdefault((known.namespace, known.pod), []).append(known)
    crowded = _crowded(usage)
    found: dict[tuple[PodName, str, GpuPlace], Stretch] = {}
    for (place, pod), peaks in usage.peaks.items():
        namesakes = by_name.get(pod, [])
        for at, mib in sorted(peaks.items()):
            alive = _alive(namesakes, at)
            if alive is not None and alive.completed_at and alive.completed_at <= at - step_seconds:
                continue  # the kubelet still names a pod that has finished
            uid = alive.uid if alive is not None else ""
            one = found.get((pod, uid, place))
            if one is None:
                one = found[pod, uid, place] = Stretch(
                    *pod, uid, place.node, place.product, place.profile, at - step_seconds, at
                )
            one.last_at = at
            one.steps += 1
            one.shared_steps += (place, at) in crowded
            one.peaks_mib[place.device] = max(round(mib), one.peaks_mib.get(place.device, 0))
    return _joined(found.values())


def _alive(namesakes: Sequence[PodFacts], at: float) -> PodFacts | None:
    """The newest pod of that name at that time. Clocks differ, so the first one also has what came before it."""
    if not namesakes:
        return None
    created = [known.created_at for known in namesakes]
    return namesakes[max(bisect_right(created, at) - 1, 0)]


def _crowded(usage: Usage) -> set[tuple[GpuPlace, float]]:
    """Steps in which several pods used one GPU. One that begins in the step in which another ends follows it."""
    by_place: dict[GpuPlace, list[Mapping[float, float]]] = {}
    for (place, _), peaks in usage.peaks.items():
        if peaks:
            by_place.setdefault(place, []).append(peaks)
    crowded: set[tuple[GpuPlace, float]] = set()
    for place, pods in by_place.items():
        if len(pods) < 2:
            continue
        count = Counter(at for peaks in pods for at in peaks)
        ends = {at for peaks in pods for at in (min(peaks), max(peaks))}
        crowded |= {(place, at) for at, number in count.items() if number > 1 and (at not in ends or number > 2)}
    return crowded


def _joined(found: Iterable[Stretch]) -> list[Stretch]:
    """One stretch per pod and product, over all its GPUs."""
    whole: dict[tuple[str, str, str, str, str], Stretch] = {}
    for one in found:
        key = (one.namespace, one.pod, one.uid, one.product, one.profile)
        known = whole.setdefault(key, one)
        if known is one:
            continue
        known.first_at, known.last_at = min(known.first_at, one.first_at), max(known.last_at, one.last_at)
        known.peaks_mib |= one.peaks_mib
        known.steps += one.steps
        known.shared_steps += one.shared_steps
    return list(whole.values())


def add_busy(found: Sequence[Stretch], sums: Iterable[Series], counts: Iterable[Series], unit: float,
             exporters: set[PodName]) -> None:  # fmt: skip
    """How busy the GPUs of each pod were: sums and numbers of samples, `unit` of which are the whole time."""
    total, weight = _by_pod(sums, exporters), _by_pod(counts, exporters)
    newest = {(one.namespace, one.pod): one for one in sorted(found, key=lambda one: one.last_at)}
    for pod, stretch in newest.items():
        stretch.busy_sum, stretch.busy_weight = total.get(pod, 0.0) / unit, weight.get(pod, 0.0)


def _by_pod(series: Iterable[Series], exporters: set[PodName]) -> dict[PodName, float]:
    found: dict[PodName, float] = {}
    for one in series:
        pod = pod_of(one.labels, exporters)
        if pod is not None and one.samples and value_fault(one.samples[-1][1], math.inf) is None:
            found[pod] = found.get(pod, 0.0) + one.samples[-1][1]
    return found
