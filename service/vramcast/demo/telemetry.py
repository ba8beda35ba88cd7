"""Made-up telemetry for the demo: what each pod uses breathes around its forecast.

It shows what dcgm-exporter would: pods that share by annotation are not named, because the kubelet gave them no device.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator

from vramcast.cluster.static import StaticCluster
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.names import NodeName
from vramcast.outcomes.readings import Device, Frame, Reading
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB

_RAMP_SECONDS = 3.0
_BREATH_SECONDS = 11.0
_CONTEXT_MIB = 450.0


class DemoTelemetry:
    """Implements `Telemetry`. A pod in `too_large` uses all that it was promised, and would use more."""

    def __init__(self, cluster: StaticCluster) -> None:
        self._cluster = cluster
        self.too_large: set[str] = set()

    def poll(self, since: float, now: float) -> Frame:  # noqa: ARG002 - only the present is made up
        running: dict[NodeName, list[PodRecord]] = {}
        for pod in self._cluster.records():
            if pod.node is not None and not pod.finished and pod.ask is not None:
                running.setdefault(pod.node, []).append(pod)
        memory, busy = [], []
        for node in self._cluster.nodes:
            for device, key, mib in self._on_node(node, running.get(node, []), now):
                memory.append(Reading(node, device, key, now, mib))
                # So little that pods pack as the script says, at whatever moment they are seen.
                busy.append(Reading(node, device, "", now, 0.15 + 0.1 * _wave(f"{node} {device}", now, 7.0)))
        # As dcgm-exporter is installed: the counters of multiprocessors have to be switched on.
        return Frame(memory, {UtilizationCounter.GPU_UTIL: busy})

    def history(self, since: float, now: float) -> Frame:  # noqa: ARG002
        return Frame()

    def _on_node(self, node: NodeName, pods: list[PodRecord], now: float) -> Iterator[tuple[Device, str, float]]:
        if not self._cluster.nodes[node].sharing:
            yield from self._on_devices(pods, now)
            return
        gpus = self._cluster.nodes[node].pools[0].count
        unmanaged = self._cluster.unmanaged_mib.get(node, ())
        for index in range(gpus):
            here = [pod for pod in pods if pod.assignment and index in pod.assignment.gpu_indices]
            outside = unmanaged[index] if index < len(unmanaged) else 0
            yield Device(index), "", outside + sum(self._used_mib(pod, now) for pod in here)

    def _on_devices(self, pods: list[PodRecord], now: float) -> Iterator[tuple[Device, str, float]]:
        """Each pod gets the next devices; which ones the kubelet would pick does not matter."""
        first = 0
        for pod in pods:
            for index in range(first, first + (pod.ask.count if pod.ask else 1)):
                yield Device(index), pod.key, self._used_mib(pod, now)
            first += pod.ask.count if pod.ask else 1

    def _used_mib(self, pod: PodRecord, now: float) -> float:
        run = pod.run
        peak = float(_promised_mib(pod)) if pod.key in self.too_large else peak_mib(pod)
        age = now - run.started_at if run is not None and run.started_at is not None else 60.0
        grown = min(1.0, max(0.0, age) / _RAMP_SECONDS)
        return max(_CONTEXT_MIB, peak * grown * (0.95 + 0.05 * _wave(pod.key, now, _BREATH_SECONDS)))


def peak_mib(pod: PodRecord) -> float:
    """Of a run that does not fail, with its context."""
    run, promised = pod.run, _promised_mib(pod)
    if run is not None and run.median_mib is not None and run.median_mib < promised:
        peak = run.median_mib * (0.9 + 0.14 * _share(pod.key))
    else:
        # People round their own numbers up.
        peak = promised * (0.55 + 0.4 * _share(pod.key))
    return max(_CONTEXT_MIB, peak)


def exit_report(pod: PodRecord) -> str:
    """As `vramcast.report` writes it: torch's counters, which lack the context."""
    reserved = round((peak_mib(pod) - _CONTEXT_MIB) * MIB)
    indices = pod.assignment.gpu_indices if pod.assignment else ()
    gpus = {f"GPU-{index}": {"allocated": reserved, "reserved": reserved} for index in indices or (0,)}
    process = {"ended": "exited", "gpus": gpus, "versions": {"torch": "2.9.0"}}
    return json.dumps({"vramcast": 1, "processes": {"pid 1": process}}, separators=(",", ":"))


def _promised_mib(pod: PodRecord) -> int:
    return pod.assignment.reserved_mib if pod.assignment else 6000


def _share(text: str) -> float:
    """0 to 1, always the same for a text."""
    return (zlib.crc32(text.encode()) % 1000) / 1000


def _wave(text: str, now: float, seconds: float) -> float:
    return math.sin(2 * math.pi * (now / seconds + _share(text)))
