"""The agent's metrics. Every scrape looks at the GPUs, at most once a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from vramcast.agent.cgroups import read_owner
from vramcast.agent.division import Shares, tell_apart
from vramcast.agent.gpus import REMEDIES, Blind, GpuLook
from vramcast.agent.nvml import NvmlUnavailable
from vramcast.outcomes import agent_series as names

_FRESH_SECONDS = 1.0
_DEVICE = [names.NODE, names.GPU, names.UUID]

log = structlog.get_logger("vramcast.agent")


class Gpus(Protocol):
    def gpus(self) -> Sequence[GpuLook]:
        """Raises NvmlUnavailable."""
        ...


class Looks(Collector):
    """One look at the GPUs for every scrape. `proc` is the host's /proc."""

    def __init__(self, nvml: Gpus, node: str, proc: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._nvml = nvml
        self._node = node
        self.proc = proc
        self.clock = clock
        self._lock = threading.Lock()
        self._looked_at: float | None = None
        self._found: list[tuple[GpuLook, Shares]] = []
        self._blind: dict[int, Blind | None] = {}
        self._failures = 0
        self.healthy = True

    def describe(self) -> list[Metric]:
        """Registering must not look at the GPUs."""
        return []

    def collect(self) -> Iterator[Metric]:
        found = self.look()
        memory = GaugeMetricFamily(
            names.MEMORY,
            "GPU memory in use (in MiB), by pod, and of the whole GPU where pod_uid is empty",
            labels=[*_DEVICE, names.POD, names.TOLD_APART],
        )
        utilization = GaugeMetricFamily(
            names.UTILIZATION,
            "GPU utilization (in %), by pod, and of the whole GPU where pod_uid is empty",
            labels=[*_DEVICE, names.POD, names.TOLD_APART],
        )
        blind = GaugeMetricFamily(
            "vramcast_agent_blind",
            "1 if the processes on the GPU cannot be told apart, by cause",
            labels=[*_DEVICE, "why"],
        )
        for gpu, shares in found:
            device = [self._node, str(gpu.index), gpu.uuid]
            told = names.NO if shares.blind else names.YES
            memory.add_metric([*device, "", told], gpu.used_mib)
            for uid, mib in shares.memory_mib.items():
                memory.add_metric([*device, uid, told], mib)
            if gpu.utilization_percent is not None:
                utilization.add_metric([*device, "", told], gpu.utilization_percent)
            for uid, percent in (shares.busy_percent or {}).items():
                utilization.add_metric([*device, uid, told], min(percent, 100.0))
            for why in Blind:
                blind.add_metric([*device, why], float(shares.blind is why))
        yield from (memory, utilization, blind)
        yield CounterMetricFamily("vramcast_agent_failures", "Looks that NVML did not answer", value=self._failures)

    def look(self) -> list[tuple[GpuLook, Shares]]:
        """Nothing if NVML does not answer; `healthy` says so."""
        with self._lock:
            if self._looked_at is None or self.clock() - self._looked_at >= _FRESH_SECONDS:
                self._found = self._look()
                self._looked_at = self.clock()
            return self._found

    def _look(self) -> list[tuple[GpuLook, Shares]]:
        try:
            gpus = self._nvml.gpus()
        except NvmlUnavailable as error:
            self._failures += 1
            if self.healthy:
                log.error("the GPUs cannot be read", error=str(error))
            self.healthy = False
            return []
        self.healthy = True
        found = [(gpu, tell_apart(gpu, partial(read_owner, self.proc))) for gpu in gpus]
        for gpu, shares in found:
            self._note(gpu, shares.blind)
        return found

    def _note(self, gpu: GpuLook, why: Blind | None) -> None:
        before, self._blind[gpu.index] = self._blind.get(gpu.index), why
        if why is before:
            return
        if why is None:
            log.info("processes can be told apart", gpu=gpu.index)
        else:
            log.warning("processes cannot be told apart", gpu=gpu.index, why=why, remedy=REMEDIES[why])
