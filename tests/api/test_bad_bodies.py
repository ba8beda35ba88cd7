"""Every body gets a response: no traceback, no overfilled GPU, no leaked memory."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.api.damage import damaged
from tests.fakes import new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.settings import load_settings

VERBS = ("filter", "prioritize", "bind", "preempt", "forecast", "explain")
BODIES = 10_000


@pytest.fixture
def client() -> Client:
    settings = load_settings({"hold_wait_seconds": 0, "log_level": "error"}, {})
    return Client(new_fake_service([sharing_node("a", 2), whole_node("w")], settings=settings))


def good_body(verb: str, draw: random.Random) -> Any:
    name = f"p{draw.randrange(40)}"
    pod = draw.choice([
        shared_pod(name, draw.choice(["4Gi", "30Gi", "16GB", "-3", "1e30"])),
        pod_manifest(name, {"parameters": "7B", "activations": "1M", "batch-size": "8"}, {"nvidia.com/gpu": "1"}),
        pod_manifest(name, limits={"nvidia.com/gpu": "one"}),
    ])  # fmt: skip
    match verb:
        case "filter" | "prioritize":
            return {"Pod": pod, "Nodes": None, "NodeNames": ["a", "w", "z"]}
        case "bind":
            return {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": "a"}
        case "preempt":
            return {"Pod": pod, "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}}
        case _:
            return pod


def bad_body(verb: str, draw: random.Random) -> bytes:
    return damaged(good_body(verb, draw), draw)


def test_ten_thousand_bad_bodies_all_get_a_response_and_leak_nothing(client: Client) -> None:
    async def send_all(draw: random.Random, count: int) -> None:
        for _ in range(count):
            verb = draw.choice(VERBS)
            body = bad_body(verb, draw)
            response = await client.send("POST", f"/{verb}", body)
            assert response.status in {200, 400, 413}, (verb, body[:500], response)
            assert msgspec.json.decode(response.body) is not None

    def blocks_after(seed: int, count: int) -> int:
        asyncio.run(send_all(random.Random(seed), count))
        gc.collect()
        return sys.getallocatedblocks()

    # The first half fills the caches (tasks, pods between filter and bind). After that, no body may stay in memory.
    warm = blocks_after(1, BODIES // 2)
    assert blocks_after(2, BODIES // 2) - warm < BODIES // 2
    promised = sum(promise.need_mib or 0 for promise in client.service.state.ledger.promises_on("a"))  # type: ignore[arg-type]
    assert promised <= 2 * 40510


def test_a_body_over_the_limit_gets_413_and_the_name_of_the_setting() -> None:
    client = Client(new_fake_service(settings=load_settings({"max_body_mib": 1}, {})))
    response = client.request("POST", "/filter", chunks=[b"x" * 600_000] * 3)
    assert response.status == 413
    assert "max_body_mib" in response.json()["Error"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/filter", 405), ("POST", "/metrics", 405), ("POST", "/state", 405), ("GET", "/nothing", 404)],
)
def test_unknown_paths_and_wrong_methods_get_an_error_message(
    client: Client, method: str, path: str, status: int
) -> None:
    response = client.request(method, path)
    assert response.status == status
    assert response.json()["Error"]


def test_a_body_that_is_not_json_gets_400_and_an_explanation(client: Client) -> None:
    response = client.request("POST", "/filter", b"Pod: yaml?")
    assert response.status == 400
    assert "not what kube-scheduler sends" in response.json()["Error"]


@pytest.mark.parametrize(
    "nodes", [{"Nodes": "x"}, {"Nodes": [1]}, {"Nodes": {"items": 1}}, {"NodeNames": "x"}, {"NodeNames": [1]}]
)
def test_what_is_not_a_node_is_not_sent_back(client: Client, nodes: dict[str, Any]) -> None:
    body = msgspec.json.encode({"Pod": pod_manifest("asks-for-no-gpu"), **nodes})
    response = client.request("POST", "/filter", body)
    assert response.status == 400
    assert "not what kube-scheduler sends" in response.json()["Error"]


@pytest.mark.parametrize("pod", [pod_manifest("asks-for-no-gpu"), shared_pod("p")])
def test_names_win_over_whole_nodes(client: Client, pod: Any) -> None:
    body = msgspec.json.encode({"Pod": pod, "Nodes": "junk", "NodeNames": ["a"]})
    answer = client.request("POST", "/filter", body).json()
    assert (answer["Nodes"], answer["NodeNames"]) == (None, ["a"])


def test_a_verb_refuses_a_browser_because_any_site_may_send_a_post(client: Client) -> None:
    body = msgspec.json.encode({"Pod": shared_pod("p"), "Nodes": None, "NodeNames": ["a"]})
    messages: list[Any] = []

    async def ask() -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            messages.append(message)

        headers = [(b"content-type", b"text/plain"), (b"origin", b"https://elsewhere.example")]
        scope = {"type": "http", "method": "POST", "path": "/filter", "query_string": b"", "headers": headers}
        await client.app(scope, receive, send)

    asyncio.run(ask())
    assert messages[0]["status"] == 403
    assert client.feasible(shared_pod("p"), ["a"]) == ["a"]
