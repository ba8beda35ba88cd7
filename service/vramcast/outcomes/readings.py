"""Telemetry series as readings of GPUs, and why some series cannot be used.

Exporters use different labels, and Prometheus renames some on the way (`pod` becomes `exported_pod` without
honorLabels), so names are data. Series that cannot be trusted are skipped and counted by reason. That is safe:
telemetry only ever takes room away, so without it the promises stand as they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vramcast.hardware.utilization import UtilizationCounter
from vramcast.hardware.vendors import VENDORS
from vramcast.names import NodeName
from vramcast.outcomes import agent_series
from vramcast.task.quantity import MIB

# 1 TiB on one GPU: no product is near it, so more is another unit.
_MAX_MIB = 1 << 20
# Clocks in one cluster differ by less. A sample from further ahead would be attributed to the wrong pods.
_MOST_AHEAD_SECONDS = 60.0


class Fault(StrEnum):
    """Why a sample was skipped; a metric label, so the set is closed."""

    NOT_A_NUMBER = "not_a_number"
    NEGATIVE = "negative"
    UNIT = "unit"  # more than any GPU has, or than this one has
    NO_NODE = "no_node"
    UNKNOWN_NODE = "unknown_node"
    NO_GPU = "no_gpu"
    DUPLICATE = "duplicate"  # the larger one counts
    STALE = "stale"  # too old to show the present
    AHEAD = "ahead"  # from a clock that is ahead of the local one
    REPORT = "report"  # an exit report of more memory than the GPU has


class Unit(StrEnum):
    MIB = "MiB"
    BYTES = "bytes"


class PodValues(StrEnum):
    """What a series with a pod's name shows: that pod's own memory, or the whole GPU's, repeated for every pod."""

    AUTO = "auto"
    POD = "pod"
    GPU = "gpu"


@dataclass(frozen=True, slots=True)
class LabelNames:
    """The first label that is there counts."""

    node: tuple[str, ...] = (*(v.exporter.node for v in VENDORS), "node", "exported_node", "kubernetes_node")
    pod: tuple[str, ...] = ("exported_pod", "pod")
    namespace: tuple[str, ...] = ("exported_namespace", "namespace")
    gpu: tuple[str, ...] = tuple(v.exporter.gpu for v in VENDORS)
    # A MIG device of that GPU.
    mig: tuple[str, ...] = tuple(v.exporter.slice for v in VENDORS if v.exporter.slice)


@dataclass(frozen=True, slots=True)
class Series:
    """One series and its samples: (seconds since the epoch, value)."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, order=True)
class Device:
    """A GPU of a node by its index, or a MIG device of it."""

    index: int
    mig: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of one GPU. `value`: MiB, or a share of the time.

    `pod`: namespace/name, or empty; by the agent, the pod's UID. `told_apart`: the agent knows every process there.
    """

    node: NodeName
    device: Device
    pod: str
    at: float
    value: float
    told_apart: bool = False


@dataclass(slots=True)
class Frame:
    """Everything that one poll found, sorted by time, and how many samples could not be used."""

    memory: list[Reading] = field(default_factory=list)
    utilization: dict[UtilizationCounter, list[Reading]] = field(default_factory=dict)
    faults: Counter[Fault] = field(default_factory=Counter)

    @property
    def newest_at(self) -> float | None:
        return self.memory[-1].at if self.memory else None


# The agent names a pod by its UID, so there is no namespace.
_AGENT_NAMES = LabelNames(
    node=(agent_series.NODE,), pod=(agent_series.POD,), namespace=(), gpu=(agent_series.GPU,), mig=()
)


@dataclass(frozen=True, slots=True)
class Interpreter:
    """`percent`: counters whose metrics count in percent, not as a share."""

    names: LabelNames = field(default_factory=LabelNames)
    unit: Unit = Unit.MIB
    percent: frozenset[UtilizationCounter] = frozenset({UtilizationCounter.GPU_UTIL, UtilizationCounter.MEMORY_UTIL})

    def read(
        self,
        memory: Iterable[Series],
        utilization: Mapping[UtilizationCounter, Iterable[Series]],
        now: float,
        agent_memory: Iterable[Series] = (),
        agent_utilization: Iterable[Series] = (),
    ) -> Frame:
        """Never raises."""
        frame = Frame()
        divisor = MIB if self.unit is Unit.BYTES else 1
        frame.memory = self._readings(memory, divisor, _MAX_MIB, now, frame.faults)
        for counter, series in utilization.items():
            whole = 100 if counter in self.percent else 1
            frame.utilization[counter] = self._readings(series, whole, 1.0, now, frame.faults)
        agent = Interpreter(_AGENT_NAMES)
        frame.memory += agent._readings(agent_memory, 1, _MAX_MIB, now, frame.faults)
        by_agent = agent._readings(agent_utilization, 100, 1.0, now, frame.faults)
        frame.utilization.setdefault(UtilizationCounter.GPU_UTIL, []).extend(by_agent)
        frame.memory.sort(key=lambda reading: reading.at)
        return frame

    def _readings(
        self, series: Iterable[Series], divisor: int, most: float, now: float, faults: Counter[Fault]
    ) -> list[Reading]:
        best: dict[tuple[NodeName, Device, str, float, bool], float] = {}
        for one in series:
            told_apart = one.labels.get(agent_series.TOLD_APART) == agent_series.YES
            place = self._place(one.labels)
            if isinstance(place, Fault):
                faults[place] += 1
                continue
            for at, raw in one.samples:
                value = raw / divisor
                fault = _fault(at, value, most, now)
                if fault is not None:
                    faults[fault] += 1
                    continue
                key = (*place, at, told_apart)
                if key in best:
                    faults[Fault.DUPLICATE] += 1
                best[key] = max(value, best.get(key, value))
        return [
            Reading(node, device, pod, at, value, told_apart)
            for (node, device, pod, at, told_apart), value in best.items()
        ]

    def _place(self, labels: Mapping[str, str]) -> tuple[NodeName, Device, str] | Fault:
        node = first_label(labels, self.names.node)
        if not node:
            return Fault.NO_NODE
        index = first_label(labels, self.names.gpu)
        if not (index.isascii() and index.isdecimal() and len(index) < 4):
            return Fault.NO_GPU
        pod = first_label(labels, self.names.pod)
        if pod and self.names.namespace:
            pod = f"{first_label(labels, self.names.namespace)}/{pod}"
        return NodeName(node), Device(int(index), first_label(labels, self.names.mig)), pod


def _fault(at: float, value: float, most: float, now: float) -> Fault | None:
    if not math.isfinite(at):
        return Fault.NOT_A_NUMBER
    return value_fault(value, most) or (Fault.AHEAD if at > now + _MOST_AHEAD_SECONDS else None)


def value_fault(value: float, most: float) -> Fault | None:
    if not math.isfinite(value):
        return Fault.NOT_A_NUMBER
    if value < 0:
        return Fault.NEGATIVE
    return Fault.UNIT if value > most else None


def first_label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The value of the first of these labels that is there and not empty."""
    return next((labels[name] for name in names if labels.get(name)), "")
