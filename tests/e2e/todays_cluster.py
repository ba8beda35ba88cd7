"""A cluster with claims, volumes, gangs and priorities, and one replica of the chart's default mode on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica
from tests.controlplane import Api, ControlPlane, eventually
from tests.controlplane.objects import A100_40GB, sharing_node
from tests.controlplane.today import (
    GANG_API,
    GANG_GATES,
    create_device_class,
    create_priority_class,
    create_storage_class,
)

NAMESPACE = "vramcast-system"
SCHEDULER = "vramcast-scheduler"
Json = dict[str, Any]


@contextmanager
def todays_plane() -> Iterator[ControlPlane]:
    with ControlPlane(apiserver_flags=[GANG_GATES, GANG_API]) as running:
        running.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        create_device_class(running.api)
        create_storage_class(running.api)
        create_priority_class(running.api, "medium", 100)
        create_priority_class(running.api, "high", 1000)
        yield running


@contextmanager
def todays_replica(plane: ControlPlane, directory: Path) -> Iterator[Replica]:
    # Long enough that a busy machine renews it in time.
    lease = {"leaseDuration": "9s", "renewDeadline": "6s", "retryPeriod": "1s"}
    values = {"scheduler": {"leaderElection": lease, "extraArgs": [GANG_GATES]}}
    helm = Helm(plane.binaries.helm, plane.kubeconfig)
    helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values=values)
    running = Replica(plane, NAMESPACE, "vramcast", "vramcast-0", directory / "vramcast-0")
    try:
        for process in running.processes:
            process.start()
        eventually(lambda: running.ready() and running.leading, what="the replica to lead")
        yield running
    finally:
        running.kill()


def node_of(api: Api, name: str) -> str | None:
    node: str | None = api.pod(name)["spec"].get("nodeName")
    return node


def create_gpu_nodes(api: Api, count: int, **more: Any) -> None:
    api.create_nodes([sharing_node(f"gpu-{number:02d}", A100_40GB, 1, **more) for number in range(count)])
    eventually(lambda: all(_ready(node) for node in api.nodes()), what="the nodes to be ready")


def _ready(node: Json) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def place(api: Api, replica: Replica, *pods: Json) -> tuple[float, int]:
    """Creates the pods and waits until all are bound. Returns the seconds, and how many Bindings were refused."""
    refused_before, started = _refused(replica), time.monotonic()
    api.create_pods(pods)
    names = [pod["metadata"]["name"] for pod in pods]
    try:
        eventually(lambda: all(node_of(api, name) for name in names), what=f"{names} to be bound")
    finally:
        seconds, refused = time.monotonic() - started, _refused(replica) - refused_before
        print(f"{', '.join(names)}: {seconds:.2f} s, {refused} refused")
    return seconds, refused


def _refused(replica: Replica) -> int:
    return int(replica.metric("vramcast_binds_total", 'fate="refused"'))


def unschedulable(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "PodScheduled" and condition["status"] == "False" for condition in conditions)
