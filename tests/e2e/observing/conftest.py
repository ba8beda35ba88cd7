"""Everything that observing takes, for real: control plane, scheduler, service, Prometheus. Only GPUs are played."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

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
from tests.e2e.observing.world import MEMORY, MEMORY_PATH, SCHEDULER, World

ALERTS = RULES.parent / "alerts.yaml"
# What the service may do in its own namespace: keep what it has learned.
MEMORY_ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "vramcast-memory"},
    "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]}],
}
# A minute of the real world is a second here: looks and scrapes every second, runs of a few.
SETTINGS = {
    "telemetry_interval_seconds": "0.5",
    "telemetry_lag_seconds": "1",
    "telemetry_stale_seconds": "30",
    # In runs this short, one sample that has to be guessed at would be too many.
    "telemetry_pod_values": "pod",
    "min_run_seconds": "1",
    "calibration_save_seconds": "0.2",
    "detail_metrics": "true",
}


@dataclass(frozen=True, slots=True)
class Extender:
    """Where the service of each test listens: the scheduler is started once and finds it there."""

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
    """`begin({"node": (product, GPUs)}, setting="value")` is a running world of these nodes, empty of pods.

    `honor_labels`: whether Prometheus leaves the exporters' own labels alone; without, `pod` becomes `exported_pod`.
    `prometheus_url`: what the service asks instead of the Prometheus itself, made of that one's address.
    """
    with ExitStack() as stack:

        def start(
            nodes: Mapping[str, tuple[GpuProduct, int]],
            *,
            honor_labels: bool = False,
            prometheus_url: Callable[[str], str] = lambda url: url,
            **settings: str,
        ) -> World:
            _clear(plane.api)
            stack.callback(_clear, plane.api)
            plane.api.create_nodes([sharing_node(name, *gpus) for name, gpus in nodes.items()])
            exporter = stack.enter_context(FakeExporter(plane.api, dict(nodes)))
            url = f"http://127.0.0.1:{observed_extender.port}"
            jobs = [service_job(url), exporter_job(exporter, honor_labels=honor_labels)]
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
                        "calibration_config_map": f"default/{MEMORY}",
                        **settings,
                    }
                ),
            }
            command = [sys.executable, "-m", "vramcast", "serve", "--port", str(observed_extender.port)]
            service = RunningService(Process("vramcast", command, tmp_path / "vramcast.log", environment), url)
            stack.callback(service.process.terminate)
            service.start()
            world = World(plane.api, service, exporter, prometheus, "pod" if honor_labels else "exported_pod")
            request.node.stash[_WORLD] = world
            eventually(lambda: service.get("/state")["nodes_total"] == len(nodes), 30, "the service to see the nodes")
            return world

        yield start


def service_job(url: str) -> dict[str, Any]:
    """As a PodMonitor would have it."""
    return job("vramcast", {"vramcast": f"{url}/metrics"}, {"namespace": "vramcast-system", "pod": "vramcast-0"})


def exporter_job(exporter: FakeExporter, *, honor_labels: bool) -> dict[str, Any]:
    """As a ServiceMonitor would have it: the exporter's own pod is a label of the target."""
    targets = {node: f"{exporter.url}/{node}/metrics" for node in exporter.nodes}
    own = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x", "container": "dcgm-exporter"}
    return job("dcgm-exporter", targets, own, honor_labels=honor_labels)


def _clear(api: Api) -> None:
    api.clear()
    try:
        api.request("DELETE", MEMORY_PATH)
    except ApiError as error:
        if error.status != 404:
            raise


def _kubeconfig(plane: ControlPlane) -> Path:
    roles = [*yaml.safe_load_all(RULES.read_text()), MEMORY_ROLE]
    return plane.kubeconfig_for("vramcast-observing", roles)


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {f"VRAMCAST_{name.upper()}": value for name, value in settings.items()}


_WORLD = pytest.StashKey[World]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure shows what the processes said."""
    report = yield
    world = item.stash.get(_WORLD, None)
    if report.failed and world is not None:
        report.sections.append(("vramcast", world.service.process.log_tail(60)))
        report.sections.append(("Prometheus", world.prometheus.process.log_tail(20)))
    return report
