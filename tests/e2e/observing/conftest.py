"""A real control plane, scheduler, service and Prometheus. Only the GPUs are fake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.machine import Machine, build_library
from tests.controlplane import (
    Api,
    ApiError,
    ControlPlane,
    Process,
    Scheduler,
    eventually,
    extender,
    free_port,
    scheduler_config,
)
from tests.controlplane.objects import GpuProduct, sharing_node
from tests.e2e.conftest import RULES, RunningService
from tests.e2e.observing.exporter import FakeExporter
from tests.e2e.observing.prometheus import Prometheus, job
from tests.e2e.observing.world import LEARNED_STATE, LEARNED_STATE_PATH, SCHEDULER, World

ALERTS = RULES.parent / "alerts.yaml"
# The service's permissions in its own namespace: store its learned state.
LEARNED_STATE_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "vramcast-learned-state"},
    "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}],
}
# One second stands for a minute: Prometheus scrapes every second, and runs last a few seconds.
SETTINGS = {
    "telemetry_interval_seconds": "0.5",
    "telemetry_lag_seconds": "1",
    "telemetry_stale_seconds": "30",
    # In runs this short, a single sample that has to be guessed would spoil the result.
    "telemetry_pod_values": "pod",
    "min_run_seconds": "1",
    "calibration_save_seconds": "0.2",
    "detail_metrics": "true",
}


@dataclass(frozen=True, slots=True)
class Extender:
    """The port of every test's service. The scheduler is started once and always calls this port."""

    port: int
    scheduler: Scheduler


@pytest.fixture(scope="session")
def observed_extender(plane: ControlPlane) -> Extender:
    port = free_port()
    config = scheduler_config(extender(f"http://127.0.0.1:{port}"), name=SCHEDULER)
    return Extender(port, plane.scheduler(config))


Begin = Callable[..., World]


@pytest.fixture
def begin(
    plane: ControlPlane, observed_extender: Extender, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Begin]:
    """`begin({"node": (product, GPUs)}, setting="value")` starts a world with these nodes and no pods.

    `honor_labels`: whether Prometheus keeps the exporters' own labels. If not, `pod` becomes `exported_pod`.
    `agent`: whether the first node has an agent, which Prometheus scrapes.
    `prometheus_url`: maps Prometheus' address to the one that the service queries instead.
    """
    with ExitStack() as stack:

        def start(
            nodes: Mapping[str, tuple[GpuProduct, int]],
            *,
            honor_labels: bool = False,
            agent: bool = False,
            prometheus_url: Callable[[str], str] = lambda url: url,
            **settings: str,
        ) -> World:
            _clear(plane.api)
            stack.callback(_clear, plane.api)
            plane.api.create_nodes([sharing_node(name, *gpus) for name, gpus in nodes.items()])
            exporter = stack.enter_context(FakeExporter(plane.api, dict(nodes)))
            url = f"http://127.0.0.1:{observed_extender.port}"
            jobs = [service_job(url), exporter_job(exporter, honor_labels=honor_labels)]
            machine = _machine(nodes, tmp_path) if agent else None
            if machine is not None:
                stack.callback(machine.process.terminate)
                machine.start()
                jobs.append(agent_job(machine))
            rules = yaml.safe_load(ALERTS.read_text())
            prometheus = Prometheus(plane.binaries.prometheus, tmp_path / "prometheus", jobs, rules)
            stack.callback(prometheus.stop)
            prometheus.start()
            environment = {
                "KUBECONFIG": str(_kubeconfig(plane)),
                **_variables(
                    {
                        **SETTINGS,
                        "prometheus_url": prometheus_url(prometheus.url),
                        "calibration_config_map": f"default/{LEARNED_STATE}",
                        **settings,
                    }
                ),
            }
            command = [sys.executable, "-m", "vramcast", "serve", "--port", str(observed_extender.port)]
            service = RunningService(Process("vramcast", command, tmp_path / "vramcast.log", environment), url)
            stack.callback(service.process.terminate)
            service.start()
            world = World(plane.api, service, exporter, prometheus, "pod" if honor_labels else "exported_pod", machine)
            request.node.stash[_WORLD] = world
            eventually(lambda: service.get("/state")["nodes_total"] == len(nodes), what="the service to see the nodes")
            return world

        yield start


def service_job(url: str) -> dict[str, Any]:
    """As a PodMonitor would configure it."""
    return job("vramcast", {"vramcast": f"{url}/metrics"}, {"namespace": "vramcast-system", "pod": "vramcast-0"})


def exporter_job(exporter: FakeExporter, *, honor_labels: bool) -> dict[str, Any]:
    """As a ServiceMonitor would configure it: the exporter's own pod is a label of the target."""
    targets = {node: f"{exporter.url}/{node}/metrics" for node in exporter.nodes}
    own = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x", "container": "dcgm-exporter"}
    return job("dcgm-exporter", targets, own, honor_labels=honor_labels)


def _machine(nodes: Mapping[str, tuple[GpuProduct, int]], directory: Path) -> Machine:
    node, (_, gpus) = next(iter(nodes.items()))
    return Machine(directory / "machine", build_library(directory / "nvml"), gpus, node)


def agent_job(machine: Machine) -> dict[str, Any]:
    """As a PodMonitor would configure it: the agent's own pod is a label of the target."""
    own = {"namespace": "vramcast-system", "pod": "vramcast-agent-x", "container": "agent"}
    return job("vramcast-agent", {machine.node: f"{machine.url}/metrics"}, own)


def _clear(api: Api) -> None:
    api.clear()
    try:
        api.request("DELETE", LEARNED_STATE_PATH)
    except ApiError as error:
        if error.status != 404:
            raise


def _kubeconfig(plane: ControlPlane) -> Path:
    roles = [*yaml.safe_load_all(RULES.read_text()), LEARNED_STATE_ROLE]
    return plane.kubeconfig_for("vramcast-observing", roles)


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"VRAMCAST_{name.upper()}": value for name, value in settings.items()}


_WORLD = pytest.StashKey[World]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the logs of the processes to a failure."""
    report = yield
    world = item.stash.get(_WORLD, None)
    if report.failed and world is not None:
        report.sections.append(("vramcast", world.service.process.log_tail(60)))
        if world.machine is not None:
            report.sections.append(("agent", world.machine.process.log_tail(20)))
        report.sections.append(("Prometheus", world.prometheus.process.log_tail(20)))
    return report
