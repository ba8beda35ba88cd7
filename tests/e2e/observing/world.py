"""An observed cluster and its runs, from the creation of a pod until its outcome is counted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import httpx

from tests.agent.machine import FakeProcess, Machine, systemd_cgroup
from tests.controlplane import PATIENCE_SECONDS, Api, ApiError, eventually
from tests.controlplane.objects import pod
from tests.e2e.conftest import RunningService
from tests.e2e.observing.exporter import FakeExporter
from tests.e2e.observing.prometheus import Prometheus
from tests.e2e.observing.replicas import Replica, await_leader
from vramcast.outcomes.agent_series import MEMORY

Json = dict[str, Any]
SCHEDULER = "observed-scheduler"
# The ConfigMap with the learned state.
LEARNED_STATE = "vramcast-learned"
LEARNED_STATE_PATH = f"/api/v1/namespaces/default/configmaps/{LEARNED_STATE}"
FB_USED = "DCGM_FI_DEV_FB_USED"


@dataclass(frozen=True, slots=True)
class Run:
    """A pod that takes `need_mib` on each of its GPUs and ends with `phase` and `message`."""

    name: str
    annotations: Mapping[str, str]
    need_mib: int
    product: str
    phase: str = "Succeeded"
    message: str = ""
    scheduler: str = SCHEDULER
    namespace: str = "default"

    def manifest(self) -> Json:
        here = {"nvidia.com/gpu.product": self.product}
        shared = {"share": "true", **self.annotations}
        return pod(self.name, shared, namespace=self.namespace, scheduler=self.scheduler, nodeSelector=here)

    def saying(self, message: str) -> Run:
        """The same, with another termination message."""
        return replace(self, message=message)

    def died(self, promised_mib: float) -> Run:
        """As it ends on a GPU that has nothing left beyond the promise."""
        if promised_mib >= self.need_mib:
            return self
        return replace(self, phase="Failed", message="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate")


@dataclass(slots=True)
class World:
    """`over`: every finished run as the API server last showed it. `machine`: the node that has an agent.

    `service`: the leader, where there are `replicas`.
    """

    api: Api
    service: RunningService
    exporter: FakeExporter
    prometheus: Prometheus
    pod_label: str
    machine: Machine | None = None
    replicas: list[Replica] = field(default_factory=list)
    over: list[Json] = field(default_factory=list)

    # ------------------------------------------------------------------ runs

    def run_to_the_end(self, runs: Sequence[Run]) -> None:
        """Run all of them at the same time and wait until each is counted."""
        self.begin(runs)
        self.end(runs)
        self.await_counted()

    def begin(self, runs: Sequence[Run]) -> None:
        """Create the pods and wait until all of them run."""
        self.exporter.needs_mib.update({run.name: run.need_mib for run in runs})
        self.api.create_pods(run.manifest() for run in runs)
        wanted = {run.name for run in runs}
        eventually(lambda: wanted <= self.running(), what=f"{len(runs)} pods to run")

    def end(self, runs: Sequence[Run]) -> None:
        """End the runs once Prometheus has seen each at its peak. A run without samples is not an outcome."""
        moment = self.await_peaks(runs)
        self.over += self.api.in_parallel(lambda run: self.finish(run, moment), runs)

    def await_peaks(self, runs: Sequence[Run]) -> int:
        """Wait for every peak. Returns the time in whole seconds, as Kubernetes writes it."""

        def seen_by_now() -> int:
            moment = int(time.time())
            seen = self.seen_mib(until=moment)
            unseen = [run.name for run in runs if run.need_mib not in seen[run.name]]
            assert not unseen, f"{len(unseen)} of {len(runs)} pods not seen at their peak: {unseen[:3]}"
            return moment

        return eventually(seen_by_now, what="Prometheus to see every pod at its peak", interval_seconds=0.2)

    def seen_mib(self, until: float) -> dict[str, set[float]]:
        """Every value of the last five minutes, by pod."""
        found: dict[str, set[float]] = defaultdict(set)
        for labels, samples in self.prometheus.samples(f'{FB_USED}{{{self.pod_label}!=""}}', "5m"):
            found[labels[self.pod_label]].update(value for at, value in samples if at <= until)
        return found

    def finish(self, run: Run, moment: int) -> Json:
        """End the run as the kubelet would."""
        ended = {
            "exitCode": 0 if run.phase == "Succeeded" else 1,
            "message": run.message,
            "finishedAt": datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        container = {"name": "main", "image": "example/task:1", "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": run.phase, "containerStatuses": [{**container, "state": {"terminated": ended}}]}
        return self.api.patch_pod_status(run.name, {"status": status}, run.namespace)

    def await_counted(self) -> None:
        """Wait until every finished run is counted, measured or not."""
        eventually(
            lambda: self.counted() == len(self.over),
            what=f"{len(self.over)} runs to be counted, not {self.counted():g}",
            interval_seconds=0.1,
        )

    def counted(self) -> float:
        return self.service.metric("vramcast_outcomes_total") + self.service.metric("vramcast_unmeasured_runs_total")

    def show_processes(self) -> None:
        """The running pods of the agent's node get a process on each of their GPUs, and ended ones lose theirs."""
        assert self.machine is not None
        selector = f"spec.nodeName={self.machine.node},status.phase=Running"
        processes = []
        for found in self.api.get("/api/v1/pods", fieldSelector=selector)["items"]:
            need_mib = self.exporter.needs_mib[found["metadata"]["name"]]
            for gpu in written(found)["gpu-indices"].split(","):
                pid = 1_000 + len(processes)
                self.machine.add_process(pid, systemd_cgroup(found["metadata"]["uid"]))
                processes.append(FakeProcess(pid, need_mib, 20, int(gpu)))
        self.machine.show(processes)

    def await_agent_peaks(self, runs: Sequence[Run]) -> int:
        """Wait until Prometheus has each run's peak by the agent. Returns the time in whole seconds."""
        uids = {self.api.pod(run.name)["metadata"]["uid"]: run.need_mib for run in runs}

        def seen_by_now() -> int:
            moment = int(time.time())
            found = {
                labels["pod_uid"]
                for labels, samples in self.prometheus.samples(f'{MEMORY}{{pod_uid!=""}}', "5m")
                if any(value == uids.get(labels["pod_uid"]) for at, value in samples if at <= moment)
            }
            assert found >= uids.keys(), f"{len(uids.keys() - found)} of {len(uids)} pods not seen at their peak"
            return moment

        return eventually(seen_by_now, what="Prometheus to have the agent's samples", interval_seconds=0.2)

    def restart(self) -> None:
        """The service alone: its kube-scheduler stays and keeps the Lease."""
        self.service.kill()
        self.service.start()
        if self.replicas:
            self.service = await_leader(self.replicas).service

    def lose_leader(self) -> None:
        """The leader's machine is lost, and the other replica takes over."""
        next(replica for replica in self.replicas if replica.service is self.service).kill()
        self.service = await_leader(self.replicas).service

    def running(self) -> set[str]:
        pods = self.api.get("/api/v1/pods", fieldSelector="status.phase=Running")["items"]
        return {found["metadata"]["name"] for found in pods}

    def make_namespace(self, name: str) -> str:
        """It stays: without a controller manager no namespace is ever gone."""
        try:
            self.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        return name

    # ------------------------------------------------------------------ what the service reports

    def forecast(self, manifest: Json, product: str) -> Json:
        """The service's current forecast for such a pod."""
        answer = httpx.post(f"{self.service.url}/forecast?gpu={product}", json=manifest, timeout=PATIENCE_SECONDS)
        (found,) = answer.raise_for_status().json()["forecasts"]
        assert isinstance(found, dict)
        return found

    def gpus(self, node: str) -> list[Json]:
        (found,) = self.service.get(f"/state?node={node}")["nodes"]
        gpus: list[Json] = found["pools"][0]["gpus"]
        return gpus

    def await_polls(self, count: int) -> None:
        """Wait for `count` more telemetry polls, successful or not."""
        before = self.service.metric("vramcast_telemetry_polls_total")
        eventually(
            lambda: self.service.metric("vramcast_telemetry_polls_total") >= before + count,
            what=f"{count} telemetry polls",
        )

    def metrics_text(self) -> str:
        return httpx.get(f"{self.service.url}/metrics", timeout=PATIENCE_SECONDS).text


def written(manifest: Json) -> dict[str, str]:
    """The pod's annotations, with our prefix removed."""
    annotations: Mapping[str, str] = manifest["metadata"].get("annotations", {})
    return {key.removeprefix("vramcast.dev/"): value for key, value in annotations.items()}
