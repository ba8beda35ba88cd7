"""Preemption: which nodes filter calls resolvable, and which victims /preempt names."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.fakes import new_fake_service, shared_pod, sharing_node
from vramcast.placement.changes import PodSeen
from vramcast.settings import load_settings
from vramcast.task.pod import Pod, to_record

Json = dict[str, Any]


def with_priority(manifest: Json, priority: int) -> Json:
    manifest["spec"]["priority"] = priority
    return manifest


@pytest.fixture
def client() -> Client:
    """Node `full`: 5, 20 and 10 GiB promised to pods of priority 0, 0 and 100. Node `kept`: all of priority 1000."""
    nodes = [sharing_node("full", 1), sharing_node("kept", 1), sharing_node("small", 1, 8192)]
    made = Client(new_fake_service(nodes, settings=load_settings({"hold_wait_seconds": 0}, {})))
    for name, memory, priority, node in (
        ("tiny", "5Gi", 0, "full"),
        ("large", "20Gi", 0, "full"),
        ("medium", "10Gi", 100, "full"),
        ("urgent", "30Gi", 1000, "kept"),
    ):
        pod = with_priority(shared_pod(name, memory), priority)
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"] |= {"vramcast.dev/reserved-memory": memory, "vramcast.dev/gpu-indices": "0"}
        made.service.apply([PodSeen(to_record(msgspec.convert(pod, Pod)))])
    return made


def preempt(client: Client, pod: Json, victims: dict[str, list[str]]) -> dict[str, list[str]]:
    meta = {
        node: {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": 0}
        for node, names in victims.items()
    }
    answer = asyncio.run(client.verb("preempt", {"Pod": pod, "NodeNameToMetaVictims": meta}))["NodeNameToMetaVictims"]
    return {node: [entry["UID"].removeprefix("uid-") for entry in given["Pods"]] for node, given in answer.items()}


def test_sufficient_victims_are_kept_as_they_are(client: Client) -> None:
    high = with_priority(shared_pod("p", "20Gi"), 500)
    assert preempt(client, high, {"full": ["large"]}) == {"full": ["large"]}


def test_the_lowest_sufficient_pods_are_added(client: Client) -> None:
    high = with_priority(shared_pod("p", "24Gi"), 500)
    assert preempt(client, high, {"full": ["tiny"]}) == {"full": ["tiny", "large"]}


@pytest.mark.parametrize(
    ("memory", "victims"), [("4Gi", []), ("9Gi", ["large"]), ("28Gi", ["tiny", "large"]), ("38Gi", None)]
)
def test_an_empty_list_of_victims_is_filled_as_far_as_needed(
    client: Client, memory: str, victims: list[str] | None
) -> None:
    """Newer schedulers send such lists for nodes that only an extender rejected."""
    high = with_priority(shared_pod("p", memory), 50)
    answer = preempt(client, high, {"full": [], "small": []})
    answer.pop("small", None)
    assert answer == ({} if victims is None else {"full": victims})


def test_the_most_important_victim_comes_first(client: Client) -> None:
    high = with_priority(shared_pod("p", "39Gi"), 500)
    assert preempt(client, high, {"full": []}) == {"full": ["medium", "tiny", "large"]}


def test_pods_of_the_same_or_a_higher_priority_are_never_added(client: Client) -> None:
    assert preempt(client, with_priority(shared_pod("p", "20Gi"), 1000), {"kept": []}) == {}
    assert preempt(client, with_priority(shared_pod("p", "20Gi"), 0), {"full": []}) == {}


@pytest.mark.parametrize(
    ("memory", "priority", "resolvable"),
    [("20Gi", 500, ["full"]), ("20Gi", 0, []), ("39Gi", 50, []), ("30Gi", 5000, ["full", "kept"]), ("70Gi", 5000, [])],
)
def test_only_nodes_where_evictions_help_are_resolvable(
    client: Client, memory: str, priority: int, resolvable: list[str]
) -> None:
    pod = with_priority(shared_pod("p", memory), priority)
    answer = asyncio.run(client.filter(pod, ["full", "kept", "small"]))
    assert answer["NodeNames"] == []
    assert sorted(answer["FailedNodes"]) == resolvable
    assert sorted(answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]) == ["full", "kept", "small"]
    assert not answer["FailedNodes"].keys() & answer["FailedAndUnresolvableNodes"].keys()


def test_indices_beyond_the_nodes_gpus_do_not_break_the_search(client: Client) -> None:
    pod = shared_pod("odd", "1Gi")
    pod["spec"]["nodeName"] = "small"
    pod["metadata"]["annotations"] |= {"vramcast.dev/reserved-memory": "1Gi", "vramcast.dev/gpu-indices": "31"}
    client.service.apply([PodSeen(to_record(msgspec.convert(pod, Pod)))])
    answer = asyncio.run(client.filter(with_priority(shared_pod("p", "20Gi"), 500), ["full", "small"]))
    assert sorted(answer["FailedNodes"]) == ["full"]
