"""How the API server is found; a static cluster never loads the client for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.fake_apiserver import FakeApiServer, answers
from tests.cluster.manifests import shared_pod
from vramcast.cluster.connection import connect
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.transport import Action, ApiRefused
from vramcast.errors import InvalidInput, WorldUnavailable
from vramcast.names import PodUid


def kubeconfig(directory: Path, url: str) -> Path:
    path = directory / "config"
    path.parent.mkdir(parents=True, exist_ok=True)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def test_the_kubeconfig_names_the_server_and_the_token(server: FakeApiServer, tmp_path: Path) -> None:
    transport = connect({"KUBECONFIG": str(kubeconfig(tmp_path, server.url))})
    assert transport.request(Action("list", "pods"), "GET", "/api/v1/pods").ok
    assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert server.requests[0].headers["User-Agent"] == "vramcast"


def test_without_the_variable_the_file_in_the_home_directory_is_used(server: FakeApiServer, tmp_path: Path) -> None:
    kubeconfig(tmp_path / ".kube", server.url)
    assert connect({"HOME": str(tmp_path)}).request(Action("list", "pods"), "GET", "/api/v1/pods").ok


@pytest.mark.parametrize("variable", [{}, {"KUBECONFIG": "/nowhere"}])
def test_without_any_cluster_the_error_lists_what_was_tried(tmp_path: Path, variable: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match=r"no Kubernetes cluster to talk to .*KUBECONFIG"):
        connect({"HOME": str(tmp_path), **variable})


def test_the_official_client_is_imported_only_when_needed() -> None:
    code = "import sys, vramcast.cluster.kubernetes; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_pod_is_read_from_the_api_server(server: FakeApiServer) -> None:
    cluster = KubernetesCluster(server.transport())
    assert cluster.read_pod("default", "task") is None
    server.put("pods", shared_pod("task"))
    record = cluster.read_pod("default", "task")
    assert record is not None
    assert record.uid == "uid-task"
    server.script("get pod", answers(500))
    with pytest.raises(WorldUnavailable, match="cannot get pods: the API server answered 500: scripted"):
        cluster.read_pod("default", "task")


@pytest.mark.parametrize("fine", [200, 404, 409, 422])
def test_a_requeue_names_the_pods_uid(server: FakeApiServer, fine: int) -> None:
    server.script("requeue", answers(fine))
    KubernetesCluster(server.transport()).requeue("default", "task", PodUid("u"))
    request = server.requests[0]
    assert (request.method, request.path) == ("PATCH", "/api/v1/namespaces/default/pods/task/status")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.body["metadata"]["uid"] == "u"
    assert list(request.body["metadata"]["annotations"]) == ["vramcast.dev/requeue"]


def test_a_forbidden_requeue_names_the_missing_permission(server: FakeApiServer) -> None:
    server.script("requeue", answers(403))
    with pytest.raises(ApiRefused, match=r"'patch' on 'pods/status' in ClusterRole vramcast-extender .*rules.yaml"):
        KubernetesCluster(server.transport()).requeue("default", "task", PodUid("u"))


def test_an_answer_that_is_not_a_status_is_quoted(server: FakeApiServer) -> None:
    server.script("get pod", lambda _, exchange: exchange.answer(502, b"<h1>Bad Gateway</h1>"))
    with pytest.raises(WorldUnavailable, match="502: <h1>Bad Gateway</h1>"):
        KubernetesCluster(server.transport()).read_pod("default", "task")
