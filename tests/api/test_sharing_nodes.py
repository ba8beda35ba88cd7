"""GET /state and the metrics show sharing nodes that let other pods in, and the pods that came."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.fakes import new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import NodeSeen, PodGone, PodSeen, UnmanagedSeen
from vramcast.task.pod import Pod, to_record

GPU = {"nvidia.com/gpu": "1"}


@pytest.fixture
def client() -> Client:
    tainted = replace(sharing_node("tainted", 2), tainted=True)
    return Client(new_fake_service([tainted, sharing_node("open", 2), whole_node("whole", 2)]))


def see(client: Client, manifest: dict[str, Any], node: str) -> None:
    """Another scheduler bound the pod."""
    manifest["spec"]["nodeName"] = node
    client.service.apply([PodSeen(to_record(msgspec.convert(manifest, Pod)))])


def node_state(client: Client, name: str) -> dict[str, Any]:
    (node,) = client.request("GET", f"/state?node={name}").json()["nodes"]
    shown: dict[str, Any] = node
    return shown


def test_a_sharing_node_without_the_taint_is_shown_and_counted(client: Client) -> None:
    assert node_state(client, "tainted")["tainted"] is True
    assert node_state(client, "open")["tainted"] is False
    assert "tainted" not in node_state(client, "whole"), "only sharing nodes need it"
    assert client.metric("vramcast_untainted_sharing_nodes") == 1
    client.service.apply([NodeSeen(replace(sharing_node("open", 2), tainted=True))])
    assert client.metric("vramcast_untainted_sharing_nodes") == 0


def test_a_device_plugin_pod_on_a_sharing_node_is_shown_and_counted_until_it_ends(client: Client) -> None:
    assert node_state(client, "open")["misplaced_pods"] == []
    see(client, pod_manifest("trainer", limits=GPU), "open")
    see(client, pod_manifest("fine", limits=GPU), "whole")
    assert node_state(client, "open")["misplaced_pods"] == [
        {"pod": "default/trainer", "resource": "nvidia.com/gpu", "devices": 1}
    ]
    assert node_state(client, "whole")["misplaced_pods"] == []
    assert client.metric("vramcast_misplaced_pods") == 1
    assert client.feasible(shared_pod("next"), ["open"]) == [], "the device plugin may have given it any GPU"
    client.service.apply([PodGone(PodUid("uid-trainer"))])
    assert node_state(client, "open")["misplaced_pods"] == []
    assert client.metric("vramcast_misplaced_pods") == 0


def test_a_sharing_pod_on_a_node_that_no_longer_shares_is_misplaced(client: Client) -> None:
    see(client, shared_pod("left"), "whole")
    assert [pod["pod"] for pod in node_state(client, "whole")["misplaced_pods"]] == ["default/left"]
    assert client.metric("vramcast_misplaced_pods") == 1


def test_a_gpu_with_more_promised_than_it_has_is_counted(client: Client) -> None:
    """vramcast never binds this way. Another scheduler may, with vramcast's annotations."""
    written = {"gpu-indices": "1", "reserved-memory": "30Gi"}
    see(client, shared_pod("first", "30Gi", **written), "open")
    assert client.metric("vramcast_overpromised_gpus") == 0
    # Room that is only held, or in use by nobody's promise, is not promised.
    client.feasible(shared_pod("held", "8Gi"), ["open"])
    client.service.apply([UnmanagedSeen(NodeName("open"), (0, 20_000))])
    assert client.metric("vramcast_overpromised_gpus") == 0
    see(client, shared_pod("second", "30Gi", **written), "open")
    assert client.metric("vramcast_overpromised_gpus") == 1
    client.service.apply([PodGone(PodUid("uid-first"))])
    assert client.metric("vramcast_overpromised_gpus") == 0
