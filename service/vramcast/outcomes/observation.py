"""What a telemetry poll means: unmanaged memory on every node, and the memory that each pod used.

It works on copies and keeps only what was on each GPU before vramcast's pods came, so it can run on a worker.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby

from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization, UtilizationCounter
from vramcast.names import NodeName, PodUid
from vramcast.outcomes.attribution import Division, divide
from vramcast.outcomes.outcome import Truth
from vramcast.outcomes.readings import Device, Fault, Frame, PodValues, Reading
from vramcast.outcomes.tenancy import Tenancy, Tenant
from vramcast.placement.gpus import NodeGpus

# Used memory may include the driver's reserve, which the usable size does not.
_SLACK_MIB = 2048
# Two exporters of one node are scraped at times of their own, seldom less often than this.
_NEAR_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """One pod at one moment. `used_mib` None: it could not be told apart from its neighbours."""

    uid: PodUid
    at: float
    used_mib: int | None
    utilization: Utilization = UNKNOWN_UTILIZATION
    truth: Truth = Truth.ALONE


@dataclass(slots=True)
class Findings:
    """`unmanaged_mib`: by node, from its newest sample, with the time of that sample.

    `second_opinions`: by exporters that do not count, because the node's agent knows better.
    """

    unmanaged_mib: dict[NodeName, tuple[float, tuple[int, ...]]] = field(default_factory=dict)
    sightings: list[Sighting] = field(default_factory=list)  # in the order of time
    second_opinions: list[Sighting] = field(default_factory=list)
    faults: Counter[Fault] = field(default_factory=Counter)
    newest_at: float | None = None
    scraped_at: dict[UtilizationCounter, float] = field(default_factory=dict)  # the newest sample of each


class Observer:
    """For one thread at a time. `_before`: what was on each GPU while none of vramcast's pods was.

    `agent_seconds`: for how long a node's agent is believed to be there after a sample of its own. Until then other
    exporters' samples of that node, which may not know whose memory it is, do not count.
    """

    def __init__(self, pod_values: PodValues = PodValues.AUTO, agent_seconds: float = 120.0) -> None:
        self._pod_values = pod_values
        self._agent_seconds = agent_seconds
        self._agent_at: dict[NodeName, float] = {}
        self._before: dict[NodeName, dict[Device, int]] = {}

    def study(
        self,
        frame: Frame,
        nodes: Mapping[NodeName, NodeGpus],
        tenants: Mapping[NodeName, Sequence[Tenant]],
        tenancy: Tenancy,
    ) -> Findings:
        findings = Findings(faults=Counter(frame.faults), newest_at=frame.newest_at)
        busy = _Utilizations(frame)
        findings.scraped_at = {c: max(r.at for r in found) for c, found in frame.utilization.items() if found}
        agents = self._agent_moments(frame.memory)
        for (node, at), readings in _moments(frame.memory):
            gpus = nodes.get(node)
            if gpus is None:
                findings.faults[Fault.UNKNOWN_NODE] += len(readings)
                continue
            usable = [reading for reading in readings if self._believe(gpus, reading, findings.faults)]
            there = list(tenancy.there(tenants.get(node, ()), at))
            before = self._before.setdefault(node, {})
            outdone = self._outdone(usable, agents.get(node, ()), at)
            if outdone:
                second = divide(gpus, outdone, there, at, before, self._pod_values)
                findings.second_opinions += _sightings(second, node, at, busy)
            if outdone and len(outdone) == len(usable):
                continue
            division = divide(gpus, usable, there, at, before, self._pod_values)
            _remember(before, division)
            if usable:
                findings.unmanaged_mib[node] = (at, division.unmanaged_mib)
            findings.sightings += _sightings(division, node, at, busy)
        for gone in self._before.keys() - nodes.keys():
            del self._before[gone]
            self._agent_at.pop(gone, None)
        return findings

    def _agent_moments(self, memory: Sequence[Reading]) -> dict[NodeName, list[float]]:
        """When each node's agent told processes apart: the last time in an earlier poll, and each time in this one."""
        seen: dict[NodeName, set[float]] = {node: {at} for node, at in self._agent_at.items()}
        for reading in memory:
            if reading.told_apart:
                seen.setdefault(reading.node, set()).add(reading.at)
        self._agent_at = {node: max(times) for node, times in seen.items()}
        return {node: sorted(times) for node, times in seen.items()}

    def _outdone(self, readings: Sequence[Reading], agent_times: Sequence[float], at: float) -> Sequence[Reading]:
        """Readings that do not count, because the node's agent knows better."""
        if self._knows_better(agent_times, at):
            return readings
        told_apart = {reading.device for reading in readings if reading.told_apart}
        return [reading for reading in readings if reading.device in told_apart and not reading.told_apart]

    def _knows_better(self, agent_times: Sequence[float], at: float) -> bool:
        """Did the node's agent say something close to that time, but not at that time?"""
        place = bisect_left(agent_times, at)
        near = agent_times[max(0, place - 1) : place + 1]
        return at not in near and any(abs(at - time) <= self._agent_seconds for time in near)

    def _believe(self, node: NodeGpus, reading: Reading, faults: Counter[Fault]) -> bool:
        """A value above the GPU's size has another unit, or is another GPU's."""
        size_mib = _size_mib(node, reading.device)
        if size_mib is None:
            faults[Fault.NO_GPU] += 1
            return False
        if reading.value > size_mib + _SLACK_MIB:
            faults[Fault.UNIT] += 1
            return False
        return True


class _Busy:
    """One counter by GPU, and by pod where the agent knows it."""

    def __init__(self, readings: Sequence[Reading]) -> None:
        self._of_gpu = {(r.node, r.device, r.at): r.value for r in readings if not (r.told_apart and r.pod)}
        self._of_pod = {(r.node, r.device, r.at, r.pod): r.value for r in readings if r.told_apart and r.pod}

    def of_pod(self, node: NodeName, device: Device, at: float, uid: PodUid) -> float | None:
        return self._of_pod.get((node, device, at, uid))

    def of_gpu(self, node: NodeName, device: Device, at: float) -> float | None:
        """At that time, or, where another exporter tells the memory, at the nearest time that is near enough."""
        exact = self._of_gpu.get((node, device, at))
        if exact is not None:
            return exact
        times = self._times.get((node, device), [])
        place = bisect_left(times, at)
        near = min(times[max(0, place - 1) : place + 1], key=lambda time: abs(time - at), default=None)
        return self._of_gpu[node, device, near] if near is not None and abs(near - at) <= _NEAR_SECONDS else None

    @cached_property
    def _times(self) -> dict[tuple[NodeName, Device], list[float]]:
        times: dict[tuple[NodeName, Device], list[float]] = {}
        for node, device, at in sorted(self._of_gpu):
            times.setdefault((node, device), []).append(at)
        return times


class _Utilizations:
    """Every counter that the frame has."""

    def __init__(self, frame: Frame) -> None:
        self._busy = {counter: _Busy(readings) for counter, readings in frame.utilization.items() if readings}

    def of(self, node: NodeName, device: Device, at: float, uid: PodUid, *, shared: bool) -> Utilization:
        """`shared`: the GPU's own values are of several pods together, so they tell nothing about one."""
        shares: dict[str, float | None] = {}
        for counter, busy in self._busy.items():
            own = busy.of_pod(node, device, at, uid)
            shares[counter.value] = busy.of_gpu(node, device, at) if own is None and not shared else own
        return Utilization(**shares) if shares else UNKNOWN_UTILIZATION


def _moments(readings: Sequence[Reading]) -> Iterator[tuple[tuple[NodeName, float], list[Reading]]]:
    """All values of one scrape have the same timestamp."""
    ordered = sorted(readings, key=lambda reading: (reading.at, reading.node))
    for (at, node), group in groupby(ordered, key=lambda reading: (reading.at, reading.node)):
        yield (node, at), list(group)


def _size_mib(node: NodeGpus, device: Device) -> int | None:
    if node.sharing:
        sizes = node.pools[0].memory_mib if node.pools else ()
        return sizes[device.index] if device.index < len(sizes) else None
    return max((size for pool in node.pools for size in pool.memory_mib), default=None)


def _remember(before: dict[Device, int], division: Division) -> None:
    for device, total_mib in division.total_mib.items():
        known = before.get(device, 0)
        before[device] = total_mib if device in division.vacant else min(known, total_mib)


def _sightings(division: Division, node: NodeName, at: float, busy: _Utilizations) -> Iterator[Sighting]:
    for uid, mib in division.observed_mib.items():
        if uid not in division.unclear:
            device = division.devices[uid]
            utilization = busy.of(node, device, at, uid, shared=device in division.shared)
            yield Sighting(uid, at, mib, utilization, division.truths[uid])
    for uid in division.unclear:
        yield Sighting(uid, at, None)
