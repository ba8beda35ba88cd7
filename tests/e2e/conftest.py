"""The service as a real process on a real control plane, with only the permissions of its own ClusterRole."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.controlplane import (
    PATIENCE_SECONDS,
    Api,
    ControlPlane,
    Process,
    Scheduler,
    environment_as_in_the_image,
    eventually,
    extender,
    free_port,
    scheduler_config,
)
from tests.controlplane.objects import cpu_node, pod

RULES = Path(__file__).parents[2] / "helm/vramcast/files/rules.yaml"
SCHEDULER = "vramcast-scheduler"


@dataclass(slots=True)
class RunningService:
    """A `vramcast serve` process and its address."""

    process: Process
    url: str

    def start(self) -> None:
        self.process.start()
        eventually(self.ready, what="the service to be ready")

    def kill(self) -> None:
        self.process.kill()

    def ready(self) -> bool:
        self.process.check_alive()
        try:
            return httpx.get(f"{self.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    def get(self, path: str) -> Any:
        return httpx.get(self.url + path, timeout=PATIENCE_SECONDS).raise_for_status().json()

    def metric(self, name: str, *labels: str) -> float:
        """The sum over all series, or over those with these labels (`why="unclear"`)."""
        lines = httpx.get(f"{self.url}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
        of_name = (line for line in lines if line.split("{")[0].split(" ")[0] == name)
        wanted = (line for line in of_name if all(label in line for label in labels))
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


@pytest.fixture(scope="session")
def service(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    port = free_port()
    environment = {"KUBECONFIG": str(plane.kubeconfig_for("vramcast", RULES)), **environment_as_in_the_image()}
    log = tmp_path_factory.mktemp("vramcast") / "vramcast.log"
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(port)]
    running = RunningService(Process("vramcast", command, log, environment), f"http://127.0.0.1:{port}")
    running.start()
    yield running
    running.process.terminate()


@pytest.fixture(scope="session")
def scheduler(plane: ControlPlane, service: RunningService) -> Scheduler:
    return plane.scheduler(scheduler_config(extender(service.url), name=SCHEDULER))


@pytest.fixture
def api(plane: ControlPlane, service: RunningService, scheduler: Scheduler) -> Iterator[Api]:
    """An empty cluster with vramcast's scheduler."""
    plane.api.clear()
    _await_scheduler(plane.api)
    plane.api.clear()
    eventually(lambda: service.get("/state")["nodes_total"] == 0, what="the service to see an empty cluster")
    yield plane.api
    plane.api.clear()


def _await_scheduler(api: Api) -> None:
    """Wait until it sees a new node. Its watches may be down for half a minute after the API server restarts."""
    here = {"kubernetes.io/hostname": "probe"}
    api.create_nodes([cpu_node("probe")])
    api.create_pod(pod("probe", scheduler=SCHEDULER, nodeSelector=here))
    eventually(lambda: api.pod("probe")["spec"].get("nodeName"), what="the scheduler to follow the API server")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the logs of the processes to a failure."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    if report.failed and "plane" in arguments:
        report.sections.append(("control plane", arguments["plane"].log_tails()))
    if report.failed and "service" in arguments:
        report.sections.append(("vramcast", arguments["service"].process.log_tail(60)))
    return report
