"""Prioritize, preempt, and the endpoints that people call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import yaml

from tests.api.client import Client
from tests.fakes import new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.placement.changes import NodeSeen

GPU = {"nvidia.com/gpu": "1"}


@pytest.fixture
def client() -> Client:
    return Client(new_fake_service([sharing_node("a", 2), sharing_node("b", 1, 81920), whole_node("w", 2)]))


def priorities(client: Client, pod: Any, nodes: list[str]) -> dict[str, int]:
    answer = asyncio.run(client.verb("prioritize", {"Pod": pod, "Nodes": None, "NodeNames": nodes}))
    return {entry["Host"]: entry["Score"] for entry in answer}


def test_the_node_that_the_pod_fills_best_scores_highest(client: Client) -> None:
    scores = priorities(client, shared_pod("p", "35Gi"), ["a", "b", "w"])
    assert scores["a"] > scores["b"] > 0
    assert scores["w"] == 0


def test_every_node_gets_an_integer_score_from_0_to_10(client: Client) -> None:
    for memory in ("1Mi", "1Gi", "39Gi", "79Gi"):
        scores = priorities(client, shared_pod("p", memory), ["a", "b", "w", "unknown"])
        assert set(scores) == {"a", "b", "w", "unknown"}
        assert all(isinstance(score, int) and 0 <= score <= 10 for score in scores.values())


def test_a_small_pod_prefers_a_gpu_that_is_already_in_use(client: Client) -> None:
    tenant = shared_pod("tenant", "60Gi")
    client.feasible(tenant, ["b"])
    client.place(tenant, "b")
    scores = priorities(client, shared_pod("p", "10Gi"), ["a", "b"])
    assert scores["b"] > scores["a"]


@pytest.mark.parametrize("pattern", ["node-{:04d}.example", "node-{}.example"], ids=["one length", "many lengths"])
def test_each_of_hundreds_of_nodes_gets_its_own_score(pattern: str) -> None:
    names = [pattern.format(number) for number in range(600)]
    nodes = [sharing_node(name, 1, 81920 if number % 3 else 24576) for number, name in enumerate(names)]
    scores = priorities(Client(new_fake_service(nodes)), shared_pod("p", "40Gi"), names[::-1])
    assert set(scores) == set(names)
    assert {scores[name] for name in names[::3]} == {0}
    assert all(scores[name] > 0 for number, name in enumerate(names) if number % 3)


def test_a_pods_own_holds_do_not_change_its_scores(client: Client) -> None:
    """But a node that changed since its filter gets a new score."""
    alone = priorities(client, shared_pod("p", "35Gi"), ["a", "b", "w"])
    client.feasible(shared_pod("p", "35Gi"), ["a", "b"])
    assert priorities(client, shared_pod("p", "35Gi"), ["w", "b", "a"]) == alone
    client.service.apply([NodeSeen(sharing_node("b", 1, 36_864))])
    assert priorities(client, shared_pod("p", "35Gi"), ["b"])["b"] > alone["b"]


def test_undescribed_pods_have_no_preference(client: Client) -> None:
    assert priorities(client, pod_manifest("x"), ["a", "w"]) == {"a": 0, "w": 0}


def test_preemption_keeps_the_nodes_where_evicting_would_help() -> None:
    client = Client(new_fake_service([sharing_node("full", 1), sharing_node("small", 1, 8192)]))
    tenant = shared_pod("tenant", "30Gi")
    client.feasible(tenant, ["full"])
    client.place(tenant, "full")
    meta = {
        "full": {"Pods": [{"UID": "uid-tenant"}], "NumPDBViolations": 1},
        "small": {"Pods": [{"UID": "other"}], "NumPDBViolations": 0},
    }
    body = {"Pod": shared_pod("p", "30Gi"), "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
    answer = asyncio.run(client.verb("preempt", body))
    assert answer == {"NodeNameToMetaVictims": {"full": meta["full"]}}
    # The preemption call changed nothing.
    assert client.reasons(shared_pod("p", "30Gi"), ["full"])


def test_preemption_answers_full_victim_objects_with_their_uids() -> None:
    client = Client(new_fake_service([sharing_node("full", 1)]))
    tenant = shared_pod("tenant", "30Gi")
    client.feasible(tenant, ["full"])
    client.place(tenant, "full")
    victims = {"full": {"Pods": [tenant], "NumPDBViolations": 0}}
    answer = asyncio.run(client.verb("preempt", {"Pod": shared_pod("p", "30Gi"), "NodeNameToVictims": victims}))
    assert answer["NodeNameToMetaVictims"] == {"full": {"Pods": [{"UID": "uid-tenant"}], "NumPDBViolations": 0}}


def test_explain_lists_every_gpu_and_changes_nothing(client: Client) -> None:
    pod = shared_pod("p", "50Gi")
    before = client.request("GET", "/state").json()
    explained = client.request("POST", "/explain", yaml.safe_dump(pod).encode()).json()
    assert {node["node"]: node["reason"] for node in explained["nodes"]} == {
        "a": "too_small", "b": "fits", "w": "not_sharing",
    }  # fmt: skip
    assert explained["nodes"][0]["gpus"][0] == {
        "index": 0, "size_mib": 40510, "room_mib": 40510, "need_mib": 51200, "short_mib": 10690,
    }  # fmt: skip
    terms = {node["node"]: node["terms"] for node in explained["nodes"]}
    assert terms["a"] is None
    assert terms["b"]["slowdown"] == 1.0
    weighed = 0.2 * (0.9 * terms["b"]["packing"] + 0.1 * terms["b"]["node_packing"]) + 0.8
    assert terms["b"]["worth"] == pytest.approx(weighed, abs=0.001)
    assert [node["score"] for node in explained["nodes"]] == [0, 10, 0]
    assert client.request("GET", "/state").json() == before


def test_forecast_breaks_a_summary_down_into_parts(client: Client) -> None:
    pod = pod_manifest("p", {"parameters": "25.6M", "activations": "11.1M", "batch-size": "64"}, GPU)
    answer = client.request("POST", "/forecast", yaml.safe_dump(pod).encode()).json()
    assert answer["assumptions"] == ["precision fp32", "optimizer adamw", "task training"]
    (forecast,) = answer["forecasts"]
    assert forecast["median_bytes"] == sum(part["size_bytes"] for part in forecast["parts"])
    assert forecast["bound_bytes"] > forecast["median_bytes"]
    assert {"weights", "gradients", "adamw states", "activations", "CUDA context"} <= {
        part["name"] for part in forecast["parts"]
    }


def test_forecast_works_for_a_product_that_the_cluster_does_not_have(client: Client) -> None:
    pod = pod_manifest("p", {"gpu-memory": "20Gi"}, GPU)
    answer = client.request("POST", "/forecast?gpu=Tesla-T4", yaml.safe_dump(pod).encode()).json()
    assert [(f["product"], f["holds_it"]) for f in answer["forecasts"]] == [("Tesla-T4", False)]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"kind: Job", "has no pod template: expected a Pod, Job"),
        (b"[]", "expected a manifest of a Pod, Job"),
        (b"a: [", "neither JSON nor YAML"),
        (b"a: &x [1]\nb: *x", "aliases"),
        (b"metadata: 3", "not a Pod"),
        (b"metadata: {name: p}", "no vramcast.dev/ annotation"),
        (b"metadata: {annotations: {vramcast.dev/gpu-memory: 16GB}}", "did you mean 16G?"),
        (b"metadata: {annotations: {vramcast.dev/gpu-memory: '16'}}", "did you mean 16Gi?"),
        (b"x" * 300_000, "larger than 256 KiB"),
    ],
)
def test_an_unusable_manifest_gets_400_and_the_cause(client: Client, body: bytes, words: str) -> None:
    response = client.request("POST", "/forecast", body)
    assert response.status == 400
    assert words in response.json()["Error"]


def test_state_shows_promises_holds_and_unschedulable_pods(client: Client) -> None:
    bound, held, waits = shared_pod("bound", "30Gi"), shared_pod("held", "20Gi"), shared_pod("waits", "90Gi")
    for pod in (bound, held, waits):
        client.feasible(pod, ["a"])
        if pod is bound:
            client.place(pod, "a")
    state = client.request("GET", "/state?node=a").json()
    first = state["nodes"][0]["pools"][0]["gpus"][0]
    assert (first["promised_mib"], first["room_mib"]) == (30720, 9790)
    assert first["pods"] == [{"pod": "default/bound", "need_mib": 30720, "state": "bound", "devices": 1}]
    assert state["nodes"][0]["pools"][0]["gpus"][1]["held_mib"] == 20480
    assert [hold["pod"] for hold in state["holds"]] == ["default/held"]
    assert state["unschedulable"] == ["default/waits"]
    assert client.metric("vramcast_holds") == 1
    assert client.metric("vramcast_held_bytes") == 20480 * 2**20
    assert client.metric('vramcast_promised_bytes{state="bound"}') == 30720 * 2**20
    assert client.metric("vramcast_unschedulable_pods") == 1


def test_the_state_of_a_large_cluster_is_paginated() -> None:
    client = Client(new_fake_service([sharing_node(f"n{number:04d}", 1) for number in range(1100)]))
    seen, after = [], ""
    while after is not None:
        page = client.request("GET", f"/state?after={after}").json()
        seen += [node["name"] for node in page["nodes"]]
        after = page["next_after"]
    assert seen == sorted(f"n{number:04d}" for number in range(1100))


def test_probes_report_liveness_and_readiness(client: Client) -> None:
    assert client.request("GET", "/healthz").status == 200
    assert client.request("GET", "/readyz").status == 200
    assert client.request("HEAD", "/healthz").status == 200
    unsynced = Client(new_fake_service(synced=False))
    assert unsynced.request("GET", "/healthz").status == 200
    assert unsynced.request("GET", "/readyz").status == 503
