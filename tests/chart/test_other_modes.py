"""Modes `extender` and `observe`, with the rights and certificates that the chart creates."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.chart.conftest import NAMESPACE
from tests.chart.extender import ExtenderService, extender_snippet
from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica
from tests.controlplane import PATIENCE_SECONDS, Api, ControlPlane, eventually, scheduler_config
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node

pytestmark = pytest.mark.e2e


@pytest.fixture
def extender(plane: ControlPlane, helm: Helm) -> Iterator[str]:
    helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values={"mode": "extender"})
    yield "vramcast"
    helm.run("uninstall", "vramcast", f"--namespace={NAMESPACE}")


@pytest.fixture
def service(plane: ControlPlane, api: Api, extender: str, tmp_path: Path) -> Iterator[ExtenderService]:
    running = ExtenderService(plane, extender, tmp_path).start()
    yield running
    running.process.terminate()


def test_the_clusters_own_scheduler_calls_over_mtls_with_the_configuration_of_the_notes(
    plane: ControlPlane, api: Api, helm: Helm, extender: str, service: ExtenderService
) -> None:
    entry = service.entry(extender_snippet(helm, extender))
    scheduler = plane.scheduler(scheduler_config(entry, name="clusters-own"))
    try:
        api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
        api.create_pod(shared_pod("task", "10Gi", scheduler="clusters-own", resources={"vramcast.dev/task": "1"}))
        eventually(lambda: api.pod("task")["spec"].get("nodeName") == "gpu", what="the pod to be bound")
    finally:
        scheduler.terminate()
    assert "forbidden" not in service.process.log.read_text().lower()


def test_a_caller_without_a_certificate_is_rejected(service: ExtenderService) -> None:
    trust = ssl.create_default_context(cafile=service.client_ca)
    trust.check_hostname = False
    with pytest.raises(httpx.TransportError):
        httpx.post(f"https://127.0.0.1:{service.port}/filter", json={}, verify=trust, timeout=PATIENCE_SECONDS)


def test_mode_observe_needs_no_scheduler_and_binds_nothing(
    plane: ControlPlane, api: Api, helm: Helm, tmp_path: Path
) -> None:
    helm.run("install", "watcher", str(CHART), f"--namespace={NAMESPACE}", values={"mode": "observe"})
    try:
        replica = Replica(plane, NAMESPACE, "watcher-vramcast", "watcher-0", tmp_path / "watcher").start()
        try:
            assert replica.scheduler is None
            api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
            manifest = shared_pod("task", "10Gi", scheduler="nobody")
            created = api.create_pod(manifest)
            eventually(
                lambda: httpx.get(f"{replica.url}/state", timeout=PATIENCE_SECONDS).json()["nodes_total"] == 1,
                what="the node",
            )
            forecast = httpx.post(f"{replica.url}/forecast", json=manifest, timeout=PATIENCE_SECONDS)
            assert forecast.status_code == 200, forecast.text
            asked = {
                "PodName": "task", "PodNamespace": "default", "PodUID": created["metadata"]["uid"], "Node": "gpu",
            }  # fmt: skip
            answer = httpx.post(f"{replica.url}/bind", json=asked, timeout=PATIENCE_SECONDS)
            assert "mode observe binds nothing" in answer.json()["Error"]
            assert "nodeName" not in api.pod("task")["spec"]
        finally:
            replica.kill()
    finally:
        helm.run("uninstall", "watcher", f"--namespace={NAMESPACE}")
