"""A real control plane, scheduler, service and Prometheus. Only the GPUs are fake."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
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
    kubelet,
    scheduler_config,
)
from tests.controlplane.objects import GpuProduct, sharing_node
from tests.e2e.conftest import RULES, RunningService
from tests.e2e.observing.exporter import FakeExporter
from tests.e2e.observing.prometheus import Prometheus, job
from tests.e2e.observing.replicas import (
    ELECTION,
    LEASE_NAME,
    LEASE_NAMESPACE,
    LEASE_PATH,
    LEASE_ROLE,
    Replica,
    await_leader,
)
from tests.e2e.observing.replicas import SCHEDULER as REPLICATED
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
    `replicas`: 2 for two services with leader election, each next to its own scheduler (`replicas.SCHEDULER`).
    `prometheus_url`: maps Prometheus' address to the one that the service queries instead.
    """
    with ExitStack() as stack:

        def start(
            nodes: Mapping[str, tuple[GpuProduct, int]],
            *,
            honor_labels: bool = False,
            agent: bool = False,
            replicas: int = 1,
            prometheus_url: Callable[[str], str] = lambda url: url,
            **settings: str,
        ) -> World:
            _clear(plane.api)
            stack.callback(_clear, plane.api)
            plane.api.create_nodes([sharing_node(name, *gpus) for name, gpus in nodes.items()])
            exporter = stack.enter_context(FakeExporter(plane.api, dict(nodes)))
            ports = [observed_extender.port] if replicas == 1 else [free_port() for _ in range(replicas)]
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            jobs = [service_job(*urls), exporter_job(exporter, honor_labels=honor_labels)]
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
            if replicas == 1:
                pair, service = [], _service(tmp_path, ports[0], environment)
                stack.callback(service.process.terminate)
                service.start()
            else:
                pair = _replicas(stack, plane, tmp_path, ports, environment)
                service = await_leader(pair).service
            pod_label = "pod" if honor_labels else "exported_pod"
            world = World(plane.api, service, exporter, prometheus, pod_label, machine, pair)
            request.node.stash[_WORLD] = world
            eventually(
                lambda: world.service.get("/state")["nodes_total"] == len(nodes), what="the service to see the nodes"
            )
            return world

        yield start


def service_job(*urls: str) -> dict[str, Any]:
    """As a PodMonitor would configure it."""
    targets = {f"vramcast-{number}": f"{url}/metrics" for number, url in enumerate(urls)}
    return job("vramcast", targets, {"namespace": "vramcast-system", "pod": "vramcast"})


def _service(directory: Path, port: int, environment: Mapping[str, str], name: str = "vramcast") -> RunningService:
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(port)]
    return RunningService(Process(name, command, directory / f"{name}.log", environment), f"http://127.0.0.1:{port}")


def _replicas(
    stack: ExitStack, plane: ControlPlane, directory: Path, ports: Sequence[int], environment: Mapping[str, str]
) -> list[Replica]:
    made = [_replica(plane, directory, number, port, environment) for number, port in enumerate(ports)]
    stack.callback(_delete, plane.api, LEASE_PATH)
    stack.callback(lambda: [replica.kill() for replica in made])
    for replica in made:
        replica.service.start()
    stack.enter_context(kubelet(lambda: [replica.revive_scheduler() for replica in made]))
    return made


def _replica(plane: ControlPlane, directory: Path, number: int, port: int, environment: Mapping[str, str]) -> Replica:
    """Its scheduler runs. Start the service."""
    name = f"replica-{number}"
    election = {"leader_lease": f"{LEASE_NAMESPACE}/{LEASE_NAME}", "leader_identity": name}
    service = _service(directory, port, {**environment, **_variables(election)}, name)
    config = scheduler_config(extender(service.url), name=REPLICATED, leaderElection=ELECTION, podMaxBackoffSeconds=2)
    return Replica(service, plane.scheduler(config, host_name=name))


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
    _delete(api, LEARNED_STATE_PATH)


def _delete(api: Api, path: str) -> None:
    try:
        api.request("DELETE", path)
    except ApiError as error:
        if error.status != 404:
            raise


def _kubeconfig(plane: ControlPlane) -> Path:
    roles = [*yaml.safe_load_all(RULES.read_text()), LEARNED_STATE_ROLE, LEASE_ROLE]
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
        report.sections += [("scheduler", replica.scheduler.log_tail(20)) for replica in world.replicas]
        if world.machine is not None:
            report.sections.append(("agent", world.machine.process.log_tail(20)))
        report.sections.append(("Prometheus", world.prometheus.process.log_tail(20)))
    return report
