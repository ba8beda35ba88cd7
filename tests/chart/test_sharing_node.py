"""A sharing node and the cluster's own scheduler: the taint keeps device-plugin pods out; without it they are shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.chart.burst import SCHEDULER
from tests.chart.conftest import NewReplica, await_leader
from tests.chart.replica import Replica
from tests.controlplane import PATIENCE_SECONDS, Api, ControlPlane, eventually, scheduler_config
from tests.controlplane.objects import A100_40GB, SHARING_LABEL, shared_pod, whole_gpu_node, whole_gpu_pod

pytestmark = pytest.mark.e2e

TAINT = {"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}
TOLERATION = {"key": "vramcast.dev/gpu-sharing", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture
def default_scheduler(plane: ControlPlane) -> Iterator[None]:
    scheduler = plane.scheduler(scheduler_config(podMaxBackoffSeconds=2))
    yield
    scheduler.terminate()


def node_state(replica: Replica) -> dict[str, Any]:
    (node,) = httpx.get(f"{replica.url}/state?node=gpu", timeout=PATIENCE_SECONDS).json()["nodes"]
    shown: dict[str, Any] = node
    return shown


def test_the_taint_keeps_device_plugin_pods_out_and_without_it_they_are_shown(
    api: Api, new_replica: NewReplica, default_scheduler: None
) -> None:
    replica = new_replica("vramcast-0").start()
    await_leader(replica)
    # Its device plugin still runs, as on most real nodes.
    api.create_nodes([whole_gpu_node("gpu", A100_40GB, 2, labels={SHARING_LABEL: "true"}, spec={"taints": [TAINT]})])
    api.create_pod(whole_gpu_pod("other"))
    api.create_pod(shared_pod("shares", "10Gi", scheduler=SCHEDULER, tolerations=[TOLERATION]))
    eventually(lambda: api.pod("shares")["spec"].get("nodeName"), what="the sharing pod to be bound")
    eventually(lambda: any("taint" in event["message"] for event in api.events(about="other")), what="the rejection")
    assert "nodeName" not in api.pod("other")["spec"]
    assert node_state(replica)["tainted"] is True
    assert replica.metric("vramcast_untainted_sharing_nodes") == 0

    api.patch_node("gpu", {"spec": {"taints": None}})
    eventually(lambda: api.pod("other")["spec"].get("nodeName"), what="the other pod to land next to the promise")
    eventually(lambda: node_state(replica)["misplaced_pods"], what="vramcast to see it")
    assert node_state(replica)["tainted"] is False
    assert node_state(replica)["misplaced_pods"] == [
        {"pod": "default/other", "resource": "nvidia.com/gpu", "devices": 1}
    ]
    assert replica.metric("vramcast_untainted_sharing_nodes") == 1
    assert replica.metric("vramcast_misplaced_pods") == 1
