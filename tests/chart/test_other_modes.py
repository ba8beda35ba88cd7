"""Modes `extender` and `observe`, with the rights and certificates that the chart creates."""

from __future__ import annotations

import base64
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.chart.conftest import NAMESPACE
from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica, account_kubeconfig
from tests.controlplane import Api, ControlPlane, Process, eventually, free_port, scheduler_config
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node

pytestmark = pytest.mark.e2e


@pytest.fixture
def extender(plane: ControlPlane, helm: Helm) -> Iterator[str]:
    helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values={"mode": "extender"})
    yield "vramcast"
    helm.run("uninstall", "vramcast", f"--namespace={NAMESPACE}")


def write_secret(api: Api, name: str, directory: Path) -> Path:
    directory.mkdir()
    data: dict[str, str] = api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")["data"]
    for file, content in data.items():
        (directory / file).write_bytes(base64.b64decode(content))
    return directory


def extender_snippet(helm: Helm, release: str) -> Any:
    """What the user copies from the notes."""
    notes = helm.run("get", "notes", release, f"--namespace={NAMESPACE}")
    return yaml.safe_load(notes[notes.index("     extenders:") :])["extenders"][0]


@pytest.fixture
def service(plane: ControlPlane, api: Api, extender: str, tmp_path: Path) -> Iterator[tuple[Process, int]]:
    """The Deployment's container and its port."""
    server = write_secret(api, "vramcast-server-tls", tmp_path / "server")
    text = api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{extender}")["data"]["vramcast.yaml"]
    settings = yaml.safe_load(text.replace("/etc/vramcast-tls", str(server)))
    settings |= {"host": "127.0.0.1", "port": free_port(), "metrics_port": free_port()}
    file = tmp_path / "vramcast.yaml"
    file.write_text(yaml.safe_dump(settings))
    kubeconfig = account_kubeconfig(plane, NAMESPACE, "vramcast", tmp_path / "kubeconfig")
    command = [sys.executable, "-m", "vramcast", "serve", f"--config={file}"]
    process = Process("vramcast", command, tmp_path / "vramcast.log", {"KUBECONFIG": str(kubeconfig)})
    process.start()
    eventually(lambda: _answers(f"http://127.0.0.1:{settings['metrics_port']}/readyz"), 30, "readiness")
    yield process, settings["port"]
    process.terminate()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def test_the_clusters_own_scheduler_calls_over_mtls_with_the_configuration_of_the_notes(
    plane: ControlPlane, api: Api, helm: Helm, extender: str, service: tuple[Process, int], tmp_path: Path
) -> None:
    process, port = service
    client = write_secret(api, "vramcast-client-tls", tmp_path / "client")
    entry = extender_snippet(helm, extender)
    assert entry["urlPrefix"] == "https://CLUSTER-IP:8888"
    entry["urlPrefix"] = f"https://127.0.0.1:{port}"
    for key in ("caFile", "certFile", "keyFile"):
        entry["tlsConfig"][key] = entry["tlsConfig"][key].replace("/etc/kubernetes/vramcast", str(client))
    scheduler = plane.scheduler(scheduler_config(entry, name="clusters-own"))
    try:
        api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
        api.create_pod(shared_pod("task", "10Gi", scheduler="clusters-own"))
        eventually(lambda: api.pod("task")["spec"].get("nodeName") == "gpu", 20, "the pod to be bound")
    finally:
        scheduler.terminate()
    assert "forbidden" not in process.log.read_text().lower()


def test_a_caller_without_a_certificate_is_rejected(api: Api, service: tuple[Process, int], tmp_path: Path) -> None:
    client = write_secret(api, "vramcast-client-tls", tmp_path / "client")
    trust = ssl.create_default_context(cafile=client / "ca.crt")
    trust.check_hostname = False
    with pytest.raises(httpx.TransportError):
        httpx.post(f"https://127.0.0.1:{service[1]}/filter", json={}, verify=trust)


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
            eventually(lambda: httpx.get(f"{replica.url}/state").json()["nodes_total"] == 1, what="the node")
            forecast = httpx.post(f"{replica.url}/forecast", json=manifest)
            assert forecast.status_code == 200, forecast.text
            asked = {
                "PodName": "task", "PodNamespace": "default", "PodUID": created["metadata"]["uid"], "Node": "gpu",
            }  # fmt: skip
            assert "mode observe binds nothing" in httpx.post(f"{replica.url}/bind", json=asked).json()["Error"]
            assert "nodeName" not in api.pod("task")["spec"]
        finally:
            replica.kill()
    finally:
        helm.run("uninstall", "watcher", f"--namespace={NAMESPACE}")
