"""A whole service with fake telemetry: runs from their placement until they are counted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
from prometheus_client.parser import text_string_to_metric_families
from tests.api.client import Client
from tests.fakes import (
    FakeClock,
    FakeCluster,
    new_fake_service,
    pod_manifest,
    sharing_node,
)

from vramcast.cluster.telemetry import TelemetryUnavailable
from vramcast.controllers.telemetry import poll
from vramcast.forecast.forecaster import CachingForecaster
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.names import NodeName, PodUid
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.readings import Frame, Interpreter, Series
from vramcast.placement.changes import PodGone, PodSeen
from vramcast.service import Service
from vramcast.settings import load_settings
from vramcast.task.pod import Pod, PodRecord, to_record

SUMMARY = {
    "share": "true", "architecture": "cnn", "parameters": "25.6M", "activations": "11.1M", "batch-size": "64",
}  # fmt: skip
SETTINGS = {
    "hold_wait_seconds": 0, "telemetry_interval_seconds": 15, "telemetry_lag_seconds": 10, "min_run_seconds": 30,
    "telemetry_stale_seconds": 60,
}  # fmt: skip


@dataclass(slots=True)
class FakeTelemetry:
    """The memory in use on node `a` by GPU index, as a test sets it, with history. `down`: every query fails.

    `skew_seconds`: the offset of its clock. Queries cover the same period despite it.
    `agent_mib`: by pod on GPU 0, a second before the other samples. None: there is no agent.
    """

    clock: FakeClock
    used_mib: dict[int, float] = field(default_factory=dict)
    down: bool = False
    busy_percent: float = 50.0
    profiled: dict[UtilizationCounter, float] = field(default_factory=dict)  # counters that have to be switched on
    skew_seconds: float = 0.0
    past: list[tuple[float, int, float]] = field(default_factory=list)
    agent_mib: dict[PodUid, float] | None = None
    agent_past: list[tuple[float, str, float]] = field(default_factory=list)

    def tick(self) -> None:
        """Store one scrape."""
        self.past += [(self.clock.now + self.skew_seconds, gpu, mib) for gpu, mib in self.used_mib.items()]
        if self.agent_mib is not None:
            values = {"": self.used_mib.get(0, 0.0), **self.agent_mib}
            self.agent_past += [(self.clock.now - 1, uid, mib) for uid, mib in values.items()]

    def poll(self, since: float, now: float) -> Frame:
        return self._read(since - 15, now)

    def history(self, since: float, now: float) -> Frame:
        return self._read(since, now)

    def _read(self, since: float, now: float) -> Frame:
        if self.down:
            raise TelemetryUnavailable("no answer")
        series: dict[int, list[tuple[float, float]]] = {}
        for at, gpu, mib in self.past:
            if at - self.skew_seconds >= since:
                series.setdefault(gpu, []).append((at, mib))
        memory = [Series({"Hostname": "a", "gpu": str(gpu)}, tuple(samples)) for gpu, samples in series.items()]
        busy = [Series(one.labels, tuple((at, self.busy_percent) for at, _ in one.samples)) for one in memory]
        whole = {"Hostname": "a", "gpu": "0", "told_apart": "yes"}
        agent = [Series({**whole, "pod_uid": uid}, ((at, mib),)) for at, uid, mib in self.agent_past if at >= since]
        counted = {UtilizationCounter.GPU_UTIL: busy}
        for counter, share in self.profiled.items():
            counted[counter] = [Series(one.labels, tuple((at, share) for at, _ in one.samples)) for one in memory]
        return Interpreter().read(memory, counted, now, agent)


class FinishedCluster(FakeCluster):
    """A fake cluster that can list finished pods."""

    def list_finished(self, since: float) -> list[PodRecord]:
        return [pod for pod in self.pods.values() if pod.run is not None and (pod.run.ended_at or 0) >= since]


class World:
    """A service on one node with two GPUs, and its clock. `base`: its forecaster, if physics alone will not do."""

    base: CachingForecaster | None = None

    def __init__(self, cluster: FakeCluster | None = None, clock: FakeClock | None = None, **settings: Any) -> None:
        self.clock = clock or FakeClock()
        self.clock.now = max(self.clock.now, 1_700_000_000.0)
        self.cluster = cluster or FinishedCluster()
        self.telemetry = FakeTelemetry(self.clock, {0: 0.0, 1: 0.0})
        self.start(**settings)

    def start(self, **settings: Any) -> None:
        """Start a new process. It has no state of the previous one."""
        loaded = load_settings({**SETTINGS, **settings}, {})
        service = new_fake_service(
            [sharing_node("a", 2)], cluster=self.cluster, clock=self.clock, settings=loaded, base=self.base
        )
        service.tracker.telemetry.configured = True
        self.recorded: list[Outcome] = []
        self.use(replace(service, learn=lambda outcome, _task: self.recorded.append(outcome)))

    def use(self, service: Service) -> None:
        self.service = service
        self.client = Client(service)

    def pass_time(self, seconds: float, *, step: float = 15.0) -> None:
        async def scrape_and_poll() -> None:
            end = self.clock.now + seconds
            while self.clock.now < end:
                self.clock.now += step
                self.telemetry.tick()
                await poll(self.service, self.telemetry)

        asyncio.run(scrape_and_poll())

    def poll(self) -> None:
        asyncio.run(poll(self.service, self.telemetry))

    def place(self, name: str, annotations: dict[str, str] | None = None) -> dict[str, Any]:
        """Filter and bind a pod and show it in the watch. Returns it as the API server then has it."""
        manifest = pod_manifest(name, annotations or SUMMARY)

        async def schedule() -> None:
            answer = await self.client.filter(manifest, ["a"])
            assert answer["NodeNames"] == ["a"], answer
            await self.client.bind(manifest, "a")

        asyncio.run(schedule())
        manifest["metadata"]["annotations"] |= self.cluster.writes[-1].annotations
        manifest["spec"]["nodeName"] = "a"
        manifest["status"] = {"phase": "Running", "startTime": stamp(self.clock.now)}
        self.see(manifest)
        return manifest

    def see(self, manifest: dict[str, Any]) -> None:
        record = record_of(manifest)
        self.cluster.pods[record.key] = record
        self.service.apply([PodSeen(record)])

    def finish(self, manifest: dict[str, Any], phase: str = "Succeeded", message: str = "", exit_code: int = 0) -> None:
        """The watch omits finished pods, so it reports the pod as gone. Reading the pod shows how it ended."""
        ended = {"terminated": {"exitCode": exit_code, "message": message, "finishedAt": stamp(self.clock.now)}}
        manifest["status"] = {**manifest["status"], "phase": phase, "containerStatuses": [{"state": ended}]}
        record = record_of(manifest)
        self.cluster.pods[record.key] = record
        self.service.apply([PodGone(record.uid)])

    def delete(self, manifest: dict[str, Any]) -> None:
        record = record_of(manifest)
        del self.cluster.pods[record.key]
        self.service.apply([PodGone(record.uid)])

    def room(self, gpu: int = 0) -> int:
        return self.service.state.ledger.device_views(NodeName("a"))[gpu].room_mib

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series with these labels."""
        text = self.client.request("GET", "/metrics").body.decode()
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())


def record_of(manifest: dict[str, Any]) -> PodRecord:
    return to_record(msgspec.convert(manifest, Pod))


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reserved_mib(world: World, name: str) -> int:
    promise = world.service.state.ledger.promise_of(PodUid(f"uid-{name}"))
    assert promise is not None
    assert promise.need_mib is not None
    return promise.need_mib
