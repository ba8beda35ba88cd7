"""Missing permissions, an API server that is down, nodes that shrink and nodes that cannot be read."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.controlplane import PATIENCE_SECONDS, Api, ControlPlane, Process, eventually, free_port
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node, whole_gpu_node, whole_gpu_pod
from tests.e2e.conftest import SCHEDULER, RunningService
from tests.e2e.test_placement import bound_node, create, failure

pytestmark = pytest.mark.e2e

MEMORY_LABEL = "nvidia.com/gpu.memory"
MEMORY_ANNOTATION = "vramcast.dev/gpu-memory"
# The driver's reserve on this product (hardware/products.py), repeated so that the check does not use the tested code.
RESERVE_MIB = 450


# --- permissions


@pytest.fixture
def unprivileged(plane: ControlPlane, service: RunningService, tmp_path: Path) -> Iterator[RunningService]:
    """A second service whose user has no permissions."""
    port = free_port()
    environment = {"KUBECONFIG": str(plane.kubeconfig_for("nobody"))}
    command = [sys.executable, "-m", "vramcast", "serve", "--port", str(port)]
    running = RunningService(
        Process("vramcast", command, tmp_path / "nobody.log", environment), f"http://127.0.0.1:{port}"
    )
    running.process.start()
    yield running
    running.process.terminate()


def test_missing_permissions_are_named_and_the_service_recovers_once_they_are_granted(
    plane: ControlPlane, unprivileged: RunningService
) -> None:
    def missing_permission() -> str | None:
        unprivileged.process.check_alive()
        try:
            answer = httpx.get(f"{unprivileged.url}/readyz", timeout=PATIENCE_SECONDS)
        except httpx.TransportError:
            return None
        assert answer.status_code == 503
        return answer.text if "403" in answer.text else None

    text = str(eventually(missing_permission, what="/readyz to name the missing permission"))
    assert "allow verb 'list' on 'nodes' in ClusterRole vramcast-extender" in text
    assert httpx.get(f"{unprivileged.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200
    assert unprivileged.metric("vramcast_cluster_synced") == 0
    plane.api.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", grant("nobody"))
    eventually(unprivileged.ready, what="the service to become ready without a restart")


def grant(user: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"late-{user}"},
        "subjects": [{"kind": "ServiceAccount", "name": user, "namespace": "default"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "vramcast-extender"},
    }


# --- the API server down


def ask(service: RunningService, verb: str, body: dict[str, Any]) -> Any:
    return httpx.post(f"{service.url}/{verb}", json=body, timeout=PATIENCE_SECONDS).raise_for_status().json()


def feasible(service: RunningService, manifest: dict[str, Any]) -> list[str]:
    names: list[str] = ask(service, "filter", {"Pod": manifest, "Nodes": None, "NodeNames": ["small"]})["NodeNames"]
    return names


def test_nothing_is_promised_twice_while_the_api_server_is_down_and_all_pods_are_placed_afterwards(
    api: Api, plane: ControlPlane, service: RunningService
) -> None:
    def stale_seconds() -> float:
        return service.metric("vramcast_cluster_stale_seconds")

    api.create_nodes([sharing_node("small", A100_40GB, 1), sharing_node("other", A100_40GB, 2)])
    create(api, shared_pod("tenant", "30Gi", scheduler="another-scheduler", nodeName="small"))
    eventually(lambda: gpu(service, "small").get("promised_mib"), what="the tenant to count")
    # The test itself filters and binds these two. Of the eight, some are bound or being bound; not all of them fit.
    large = api.create_pod(shared_pod("large", "30Gi", scheduler="nobody"))
    tiny = api.create_pod(shared_pod("tiny", "1Gi", scheduler="nobody"))
    pending = [create(api, shared_pod(f"pod-{number}", "15Gi", scheduler=SCHEDULER)) for number in range(8)]
    plane.apiserver.kill()

    first = stale_seconds()
    # The tenant still counts. A bind that cannot be written is an error, not a promise.
    assert feasible(service, large) == []
    assert feasible(service, tiny) == ["small"]
    metadata = tiny["metadata"]
    binding = {"PodName": metadata["name"], "PodNamespace": "default", "PodUID": metadata["uid"], "Node": "small"}
    assert "no connection to the API server" in ask(service, "bind", binding)["Error"]
    eventually(lambda: stale_seconds() > first + 2, what="the staleness to grow")
    assert service.process.alive

    # A watch may hear from the new server before this thread knows that it is ready.
    started_at = time.monotonic()
    plane.start_apiserver()
    api.create_nodes([sharing_node("late", A100_40GB, 4)])
    assert {bound_node(api, name) for name in pending} <= {"other", "late"}
    eventually(lambda: stale_seconds() < time.monotonic() - started_at, what="news on both watches")
    assert room(service, "small") == 40_960 - RESERVE_MIB - 30 * 1024
    assert ask(service, "bind", binding) == {"Error": ""}
    assert bound_node(api, metadata["name"]) == "small"


# --- nodes that shrink


def gpu(service: RunningService, node: str) -> dict[str, Any]:
    """The node's first GPU as the service sees it. Empty if the node is missing or has no GPU."""
    nodes = service.get(f"/state?node={node}")["nodes"]
    pools = nodes[0]["pools"] if nodes else []
    first: dict[str, Any] = pools[0]["gpus"][0] if pools else {}
    return first


def room(service: RunningService, node: str) -> int:
    return int(gpu(service, node)["room_mib"])


def shrunk(service: RunningService, node: str) -> bool:
    return gpu(service, node).get("size_mib") == 20 * 1024 - RESERVE_MIB


def test_a_node_that_shrank_below_its_promises_takes_no_pods_until_they_end(api: Api, service: RunningService) -> None:
    names = ["relabelled", "recreated"]
    api.create_nodes([sharing_node(name, A100_40GB, 1) for name in names])
    for name in names:
        here = {"kubernetes.io/hostname": name}
        create(api, shared_pod(f"on-{name}", "30Gi", scheduler=SCHEDULER, nodeSelector=here))
        assert bound_node(api, f"on-{name}") == name

    labels = {MEMORY_LABEL: str(20 * 1024)}
    api.patch_node("relabelled", {"metadata": {"labels": labels}})
    api.delete_node("recreated")
    eventually(lambda: not gpu(service, "recreated"), what="the node to be gone")
    api.create_nodes([sharing_node("recreated", A100_40GB, 1, labels=labels)])
    for name in names:
        eventually(partial(shrunk, service, name), what=f"{name} to be seen smaller")
        assert gpu(service, name)["promised_mib"] == 30 * 1024
        assert room(service, name) == 0

    create(api, shared_pod("next", "1Gi", scheduler=SCHEDULER))
    assert failure(api, "next", "0/2 nodes are available: 2 GPU memory promised to other pods, 1.0 GiB needed")
    api.delete_pod("on-recreated")
    assert bound_node(api, "next") == "recreated"
    assert room(service, "relabelled") == 0


# --- nodes that cannot be read


def unlabelled_node(name: str) -> dict[str, Any]:
    """A device plugin counts its GPU, but no label describes it."""
    manifest: dict[str, Any] = whole_gpu_node(name, count=1)
    manifest["metadata"]["labels"] = {}
    return manifest


def unknown_product_node(name: str) -> dict[str, Any]:
    manifest: dict[str, Any] = sharing_node(name, count=1, labels={"nvidia.com/gpu.product": "Acme-9000"})
    del manifest["metadata"]["labels"][MEMORY_LABEL]
    return manifest


def test_unreadable_nodes_are_explained_in_an_event_and_usable_once_annotated(
    api: Api, service: RunningService
) -> None:
    api.create_nodes([unlabelled_node("unlabelled"), unknown_product_node("unknown")])
    create(api, shared_pod("shares", "10Gi", scheduler=SCHEDULER))
    create(api, whole_gpu_pod("whole", annotations={"gpu-memory": "10Gi"}, scheduler=SCHEDULER))
    for name in ("shares", "whole"):
        assert failure(api, name, "GPU memory of the node not known (see the node's labels)")
    for node in ("unlabelled", "unknown"):
        problem = service.get(f"/state?node={node}")["nodes"][0]["problem"]
        assert "annotate the node with vramcast.dev/gpu-memory" in problem

    for node in ("unlabelled", "unknown"):
        api.patch_node(node, {"metadata": {"annotations": {MEMORY_ANNOTATION: "24Gi"}}})
    assert bound_node(api, "shares") == "unknown"
    assert bound_node(api, "whole") == "unlabelled"
