"""From telemetry polls to room on GPUs and to outcomes, in a whole service with fake telemetry."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.api.client import Client
from tests.fakes import FakeClock, FakeCluster, new_fake_service, pod_manifest, shared_pod, sharing_node

from vramcast.cluster.telemetry import TelemetryUnavailable
from vramcast.controllers.telemetry import poll
from vramcast.names import NodeName, PodUid
from vramcast.outcomes.outcome import Outcome, Truth
from vramcast.outcomes.readings import Frame, Interpreter, Series
from vramcast.placement.changes import PodGone, PodSeen
from vramcast.service import Service
from vramcast.settings import load_settings
from vramcast.task.pod import Pod, PodRecord, to_record
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending

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
        return Interpreter().read(memory, busy, now, agent)


class FinishedCluster(FakeCluster):
    """A fake cluster that can list finished pods."""

    def list_finished(self, since: float) -> list[PodRecord]:
        return [pod for pod in self.pods.values() if pod.run is not None and (pod.run.ended_at or 0) >= since]


class World:
    """A service on one node with two GPUs, and its clock."""

    def __init__(self, cluster: FakeCluster | None = None, clock: FakeClock | None = None, **settings: Any) -> None:
        self.clock = clock or FakeClock()
        self.clock.now = max(self.clock.now, 1_700_000_000.0)
        self.cluster = cluster or FinishedCluster()
        self.telemetry = FakeTelemetry(self.clock, {0: 0.0, 1: 0.0})
        self.start(**settings)

    def start(self, **settings: Any) -> None:
        """Start a new process. It has no state of the previous one."""
        loaded = load_settings({**SETTINGS, **settings}, {})
        service = new_fake_service([sharing_node("a", 2)], cluster=self.cluster, clock=self.clock, settings=loaded)
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


@pytest.fixture
def world() -> World:
    return World()


def reserved_mib(world: World, name: str) -> int:
    promise = world.service.state.ledger.promise_of(PodUid(f"uid-{name}"))
    assert promise is not None
    assert promise.need_mib is not None
    return promise.need_mib


# --- unmanaged memory


def test_unmanaged_memory_keeps_pods_off_its_gpu_from_the_next_poll_on(world: World) -> None:
    free = world.room(0)
    world.telemetry.used_mib = {0: 10_240.0, 1: 0.0}
    world.pass_time(15)
    assert world.room(0) == free - 10_240
    assert world.room(1) == free
    answer = asyncio.run(world.client.filter(shared_pod("large", "35Gi", gpus="2"), ["a"]))
    assert "outside" in str(answer["FailedNodes"]) or "outside" in str(answer["FailedAndUnresolvableNodes"]), answer
    assert world.metric("vramcast_unmanaged_bytes") == 10_240 * MIB
    assert world.metric("vramcast_node_rejections_total", reason="unmanaged") == 1


def test_freed_unmanaged_memory_becomes_room_again(world: World) -> None:
    free = world.room(0)
    world.telemetry.used_mib = {0: 10_240.0, 1: 0.0}
    world.pass_time(15)
    world.telemetry.used_mib = {0: 0.0, 1: 0.0}
    world.pass_time(15)
    assert world.room(0) == free


def test_a_running_pod_counts_once_at_its_promise(world: World) -> None:
    world.place("p")
    promised = world.room(0)
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 500
    world.pass_time(60)
    assert world.room(0) == promised


def test_a_pod_that_outgrew_its_promise_counts_at_what_it_uses(world: World) -> None:
    world.place("p")
    promised = world.room(0)
    world.telemetry.used_mib[0] = reserved_mib(world, "p") + 700
    world.pass_time(15)
    assert world.room(0) == promised - 700


def test_the_utilization_of_a_pod_alone_on_its_gpu_replaces_its_forecast(world: World) -> None:
    world.place("p")
    world.telemetry.busy_percent = 12.0
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 500
    world.pass_time(60)
    promise = world.service.state.ledger.promise_of(PodUid("uid-p"))
    assert promise is not None
    assert promise.load.busy == pytest.approx(0.12)


def test_a_finished_pods_room_is_free_at_once_and_stays_free(world: World) -> None:
    free = world.room(0)
    pod = world.place("p")
    world.telemetry.used_mib[0] = reserved_mib(world, "p") - 100
    world.pass_time(60)
    world.finish(pod)
    assert world.room(0) == free
    # The exporter's value is a few seconds old and still includes the pod.
    world.pass_time(5, step=5)
    assert world.room(0) == free
    world.telemetry.used_mib[0] = 0
    world.pass_time(60)
    assert world.room(0) == free


# --- missing or bad telemetry


def test_without_telemetry_only_promises_count_and_the_age_metric_grows(world: World) -> None:
    free = world.room(0)
    world.telemetry.used_mib[0] = 10_240.0
    world.pass_time(30)
    world.telemetry.down = True
    world.pass_time(600)
    assert world.room(0) == free
    assert world.metric("vramcast_telemetry_age_seconds") == pytest.approx(600)
    assert world.metric("vramcast_telemetry_polls_total", result="failed") == 40
    world.place("p")
    world.telemetry.down = False
    world.pass_time(15)
    assert world.metric("vramcast_telemetry_age_seconds") == 0


def test_a_run_during_an_outage_is_read_from_history_and_counted_once(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 3_000.0
    world.pass_time(60)
    world.telemetry.down = True
    world.telemetry.used_mib[0] = 4_000.0
    world.pass_time(300)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(300)
    assert world.recorded == []
    world.telemetry.down = False
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [4_000 * MIB]
    world.pass_time(300)
    assert len(world.recorded) == 1
    assert world.metric("vramcast_outcomes_total") == 1


def test_the_telemetry_age_is_infinite_before_the_first_sample() -> None:
    world = World()
    world.telemetry.down = True
    world.pass_time(15)
    assert world.metric("vramcast_telemetry_age_seconds") == float("inf")


@pytest.mark.parametrize(
    ("value", "fault"), [(float("nan"), "not_a_number"), (-5.0, "negative"), (9e9, "unit"), (60_000.0, "unit")]
)
def test_bad_values_leave_promises_alone_and_are_counted(world: World, value: float, fault: str) -> None:
    world.place("p")
    before = world.room(0)
    world.telemetry.used_mib[0] = value
    world.pass_time(30)
    assert world.room(0) == before
    # The second poll sees the first sample again.
    assert world.metric("vramcast_telemetry_faults_total", fault=fault) >= 2


def test_samples_from_a_clock_that_is_ahead_are_ignored_and_counted(world: World) -> None:
    free = world.room(0)
    world.telemetry.skew_seconds = 600.0
    world.telemetry.used_mib[0] = 10_240.0
    world.pass_time(30)
    assert world.room(0) == free
    assert world.metric("vramcast_telemetry_faults_total", fault="ahead") > 0


def test_samples_from_a_clock_that_is_behind_count_as_stale(world: World) -> None:
    world.place("p")
    before = world.room(0)
    world.telemetry.skew_seconds = -300.0
    world.telemetry.used_mib[0] = 30_000.0
    world.pass_time(600)
    assert world.room(0) == before
    assert world.metric("vramcast_telemetry_faults_total", fault="stale") > 0
    assert world.metric("vramcast_telemetry_age_seconds") >= 300


def test_values_that_reset_to_zero_free_no_promise(world: World) -> None:
    world.place("p")
    before = world.room(0)
    for mib in (3_000.0, 0.0, 10.0):
        world.telemetry.used_mib[0] = mib
        world.pass_time(30)
        assert world.room(0) == before


# --- outcomes


def test_a_run_becomes_an_outcome_with_its_promise_and_its_measured_peak(world: World) -> None:
    pod = world.place("p")
    need_mib = reserved_mib(world, "p")
    for used in (1_000.0, 3_500.0, 3_000.0):
        world.telemetry.used_mib[0] = used
        world.pass_time(30)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    (outcome,) = world.recorded
    assert (outcome.pod, outcome.family, outcome.level) == ("default/p", "cnn", "summary")
    assert (outcome.product, outcome.ending) == ("NVIDIA-A100-SXM4-40GB", Ending.SUCCEEDED)
    assert (outcome.peak_bytes, outcome.bound_bytes) == (3_500 * MIB, need_mib * MIB)
    assert outcome.median_bytes < outcome.bound_bytes
    assert outcome.risk == 0.05
    assert outcome.gpu_utilization_observed == pytest.approx(0.5)
    assert world.metric("vramcast_promises_kept_total") == 1
    assert world.metric("vramcast_coverage_ratio", family="cnn") == 1
    assert world.metric("vramcast_forecast_error_ratio_sum") == pytest.approx(outcome.peak_bytes / outcome.median_bytes)


@pytest.mark.parametrize(
    ("phase", "message", "exit_code", "ending"),
    [
        ("Succeeded", "", 0, Ending.SUCCEEDED),
        ("Failed", "Traceback: KeyError", 1, Ending.FAILED),
        ("Failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1, Ending.OOM),
        ("Failed", "", 77, Ending.OOM),
        ("Failed", "OOMKilled", 137, Ending.FAILED),
    ],
)
def test_the_ending_of_a_run_is_read_from_its_pod(phase: str, message: str, exit_code: int, ending: Ending) -> None:
    world = World(oom_exit_codes="77,78")
    pod = world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.finish(pod, phase, message, exit_code)
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.ending is ending
    assert world.metric("vramcast_ooms_total") == (1 if ending is Ending.OOM else 0)
    if ending is Ending.OOM:
        assert outcome.peak_bytes >= outcome.bound_bytes
        assert not outcome.covered


def test_an_oom_within_seconds_is_still_an_outcome(world: World) -> None:
    pod = world.place("p")
    world.pass_time(5, step=5)
    world.finish(pod, "Failed", "CUDA out of memory", 1)
    world.pass_time(60)
    assert [outcome.ending for outcome in world.recorded] == [Ending.OOM]


def test_a_job_may_report_its_own_oom(world: World) -> None:
    pod = world.place("p")
    pod["metadata"]["annotations"]["vramcast.dev/out-of-memory"] = "true"
    world.pass_time(60)
    world.finish(pod, "Failed")
    world.pass_time(60)
    assert [outcome.ending for outcome in world.recorded] == [Ending.OOM]


def test_a_deleted_pod_counts_as_stopped(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.delete(pod)
    world.pass_time(60)
    assert [outcome.ending for outcome in world.recorded] == [Ending.STOPPED]


def test_runs_that_cannot_be_measured_are_counted_by_reason(world: World) -> None:
    short = world.place("short")
    world.pass_time(15)
    world.finish(short)
    world.pass_time(60)
    first, second = world.place("first"), world.place("second")
    world.telemetry.used_mib[0] = 5_000.0
    world.pass_time(60)
    for pod in (first, second):
        world.finish(pod)
    world.telemetry.used_mib = {0: 0.0, 1: 0.0}
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_unmeasured_runs_total", why="too_short") == 1
    assert world.metric("vramcast_unmeasured_runs_total", why="unclear") == 2


def test_a_jobs_own_measurement_counts_even_on_a_shared_gpu(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.pass_time(60)
    for pod in pods:
        pod["metadata"]["annotations"]["vramcast.dev/observed-memory"] = "2Gi"
        world.finish(pod)
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [2 << 30, 2 << 30]


def report(reserved_mib: int, *, processes: int = 1, ended: str = "exited") -> str:
    """As vramcast.report writes it."""
    gpus = {"GPU-0": {"allocated": reserved_mib * MIB // 2, "reserved": reserved_mib * MIB}}
    facts = {"ended": ended, "gpus": gpus}
    return json.dumps(
        {"vramcast": 1, "processes": {f"rank {n}": facts for n in range(processes)}}, separators=(",", ":")
    )


def test_exit_reports_tell_neighbours_on_one_gpu_apart(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.telemetry.used_mib[0] = 5_000.0
    world.pass_time(60)
    for pod, mib in zip(pods, (2_000, 1_500), strict=True):
        world.finish(pod, message=report(mib))
    world.pass_time(60)
    first, second = (outcome.peak_bytes for outcome in world.recorded)
    assert first - second == 500 * MIB
    # torch does not count the context of the process, but the driver does.
    context = first - 2_000 * MIB
    assert 300 * MIB < context < 2_000 * MIB
    assert [outcome.truth for outcome in world.recorded] == [Truth.REPORT, Truth.REPORT]
    assert world.metric("vramcast_outcomes_total", truth="report", ending="succeeded") == 2


def test_the_agent_tells_neighbours_on_one_gpu_apart(world: World) -> None:
    pods = [world.place("first"), world.place("second")]
    world.telemetry.used_mib[0] = 5_000.0
    world.telemetry.agent_mib = {PodUid("uid-first"): 3_000.0, PodUid("uid-second"): 1_500.0}
    world.pass_time(60)
    for pod in pods:
        world.finish(pod)
    world.pass_time(60)
    assert [(outcome.truth, outcome.peak_bytes // MIB) for outcome in world.recorded] == [
        (Truth.AGENT, 3_000), (Truth.AGENT, 1_500),
    ]  # fmt: skip
    assert world.metric("vramcast_outcomes_total", truth="agent", ending="succeeded") == 2
    assert world.metric("vramcast_unmeasured_runs_total") == 0


def test_a_report_counts_more_than_the_agent(world: World) -> None:
    pod = world.place("p")
    world.telemetry.agent_mib = {PodUid("uid-p"): 2_500.0}
    world.telemetry.used_mib[0] = 2_500.0
    world.pass_time(60)
    world.finish(pod, message=report(2_000))
    world.pass_time(60)
    assert [outcome.truth for outcome in world.recorded] == [Truth.REPORT]
    assert world.metric("vramcast_report_agreement_ratio_count") == 1


def test_every_process_of_a_report_has_a_context(world: World) -> None:
    for name, processes in (("one", 1), ("two", 2)):
        world.finish(world.place(name), message=report(1_000, processes=processes))
    world.pass_time(60)
    one, two = (outcome.peak_bytes for outcome in world.recorded)
    assert two == 2 * one


def test_a_report_counts_more_than_telemetry_and_their_ratio_is_a_metric(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 2_500.0
    world.pass_time(60)
    world.finish(pod, message=report(2_000))
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.peak_bytes != 2_500 * MIB
    assert world.metric("vramcast_report_agreement_ratio_count") == 1
    assert world.metric("vramcast_report_agreement_ratio_sum") == pytest.approx(outcome.peak_bytes / (2_500 * MIB))


def test_an_out_of_memory_in_the_report_breaks_the_promise(world: World) -> None:
    world.finish(world.place("p"), phase="Failed", message=report(1_000, ended="oom"), exit_code=1)
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.ending is Ending.OOM
    assert not outcome.covered


def test_a_report_of_more_than_the_gpu_has_is_ignored(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 2_500.0
    world.pass_time(60)
    world.finish(pod, message=report(500_000))
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [2_500 * MIB]
    assert world.metric("vramcast_telemetry_faults_total", fault="report") == 1


def test_a_run_with_a_users_own_number_is_measured_but_not_learned_from(world: World) -> None:
    pod = world.place("p", {"share": "true", "gpu-memory": "10Gi"})
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(60)
    world.finish(pod)
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_outcomes_total", level="given") == 1


def test_the_setting_detail_metrics_adds_series_per_pod_and_gpu() -> None:
    world = World(detail_metrics=True)
    world.place("p")
    world.telemetry.used_mib[0] = 1_000.0
    world.pass_time(15)
    assert world.metric("vramcast_pod_observed_bytes", task_pod="p") == 1_000 * MIB
    assert world.metric("vramcast_pod_predicted_bytes", quantile="bound") == reserved_mib(world, "p") * MIB
    assert world.metric("vramcast_gpu_promised_bytes", gpu_node="a") == reserved_mib(world, "p") * MIB


# --- restarts


def test_a_restart_during_a_run_loses_none_of_its_measurements(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 3_500.0
    world.pass_time(900)
    world.telemetry.used_mib[0] = 2_000.0
    world.start()
    world.see(pod)
    world.pass_time(60)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [3_500 * MIB]


def test_a_run_that_ended_while_the_service_was_down_is_counted_once(world: World) -> None:
    pod = world.place("p")
    world.telemetry.used_mib[0] = 3_500.0
    world.pass_time(900)
    world.finish(pod)
    world.telemetry.used_mib[0] = 0.0
    world.clock.now += 120
    world.telemetry.tick()
    world.start()
    world.pass_time(60)
    assert [outcome.peak_bytes for outcome in world.recorded] == [3_500 * MIB]
    stored = world.service.tracker.accuracy.snapshot()
    world.start()
    world.service.tracker.accuracy.restore(stored)
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_outcomes_total") == 1


def test_accuracy_metrics_survive_a_restart(world: World) -> None:
    for number in range(3):
        pod = world.place(f"p{number}")
        world.telemetry.used_mib[0] = 1_000.0 + number
        world.pass_time(60)
        world.finish(pod)
        world.telemetry.used_mib[0] = 0.0
        world.pass_time(60)
    names = (
        "vramcast_outcomes_total", "vramcast_promises_kept_total", "vramcast_forecast_error_ratio_sum",
        "vramcast_forecast_bias_ratio", "vramcast_over_reservation_ratio_bucket", "vramcast_coverage_outcomes",
        "vramcast_utilization_error_ratio_count",
    )  # fmt: skip
    before = {name: world.metric(name) for name in names}
    stored = msgspec.json.decode(msgspec.json.encode(world.service.tracker.accuracy.snapshot()))
    world.start()
    world.service.tracker.accuracy.restore(stored)
    assert {name: world.metric(name) for name in names} == pytest.approx(before)


def test_a_replica_that_does_not_lead_counts_no_outcomes(world: World) -> None:
    class Follower:
        fenced = True
        leading = False

        async def await_lead(self) -> None: ...

        def check(self) -> None: ...

    pod = world.place("p")
    world.use(replace(world.service, leadership=Follower(), may_count=lambda: False))
    world.telemetry.used_mib = {0: 1_000.0, 1: 10_240.0}
    free = world.room(1)
    world.pass_time(60)
    # Every replica tracks unmanaged memory, because it may become the leader at any time.
    assert world.room(1) == free - 10_240
    world.finish(pod)
    world.pass_time(60)
    assert world.recorded == []
    assert world.metric("vramcast_outcomes_total") == 0
