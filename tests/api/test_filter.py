"""POST /filter as kube-scheduler calls it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.api.client import Client
from tests.fakes import (
    FakeClock,
    FakeCluster,
    new_fake_service,
    pod_manifest,
    shared_pod,
    sharing_node,
    whole_node,
)
from vramcast.names import PodUid
from vramcast.placement.changes import PodGone
from vramcast.settings import load_settings

NODES = ["big", "small", "whole"]


@pytest.fixture
def client() -> Client:
    nodes = [sharing_node("big", 2, 81920), sharing_node("small", 1, 24576), whole_node("whole", 4)]
    return Client(new_fake_service(nodes))


def test_nodes_with_room_pass_and_every_other_gets_a_reason(client: Client) -> None:
    answer = asyncio.run(client.filter(shared_pod("p", "40Gi"), [*NODES, "stranger"]))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["big"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {
            "small": "GPU too small for 40.0 GiB",
            "whole": "node does not share its GPUs",
            "stranger": "node not known to vramcast",
        },
        "Error": "",
    }


def test_a_scheduler_without_a_node_cache_gets_whole_nodes_back(client: Client) -> None:
    items = [{"metadata": {"name": name}, "spec": {"keep": [1, {"me": None}]}} for name in NODES]
    body = {"Pod": shared_pod("p", "40Gi"), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    answer = asyncio.run(client.verb("filter", body))
    assert answer["Nodes"] == {"metadata": {}, "items": items[:1]}
    assert answer["NodeNames"] is None
    assert set(answer["FailedAndUnresolvableNodes"]) == {"small", "whole"}


def test_whole_nodes_in_the_body_are_a_simulation_and_hold_nothing(client: Client) -> None:
    items = [{"metadata": {"name": name}} for name in NODES]
    body = {"Pod": shared_pod("p", "40Gi"), "Nodes": {"items": items}, "NodeNames": None}
    asyncio.run(client.verb("filter", body))
    assert not client.service.state.ledger.holds


def test_a_scheduler_without_a_node_cache_holds_if_the_settings_say_so() -> None:
    settings = load_settings({"node_cache_capable": False}, {})
    client = Client(new_fake_service([sharing_node("a")], settings=settings))
    body = {"Pod": shared_pod("p"), "Nodes": {"items": [{"metadata": {"name": "a"}}]}, "NodeNames": None}
    asyncio.run(client.verb("filter", body))
    assert list(client.service.state.ledger.holds) == ["uid-p"]


@pytest.fixture
def crowd() -> Client:
    """Six that fit, of which `full-0` and `full-1` would be filled best, and one that does not."""
    nodes = [sharing_node(f"empty-{n}", 1, 81920) for n in range(4)]
    nodes += [sharing_node(f"full-{n}", 1, 24576) for n in range(2)]
    settings = load_settings({"most_nodes_offered": 2}, {})
    return Client(new_fake_service([*nodes, sharing_node("tiny", 1, 8192)], settings=settings))


CROWD = ["empty-0", "full-0", "empty-1", "tiny", "empty-2", "full-1", "empty-3"]


def test_of_many_nodes_that_fit_the_best_are_offered_and_held(crowd: Client) -> None:
    answer = asyncio.run(crowd.filter(shared_pod("p", "20Gi"), CROWD))
    assert answer["NodeNames"] == ["full-0", "full-1"]
    assert answer["FailedAndUnresolvableNodes"] == {}, "a choice is no verdict on the others"
    (hold,) = crowd.service.state.ledger.holds.values()
    board = crowd.service.state.ledger.board
    assert sorted(hold.columns) == sorted(board.columns(["full-0", "full-1"]))


def test_among_equally_good_nodes_the_schedulers_order_decides(crowd: Client) -> None:
    assert crowd.feasible(shared_pod("p", "60Gi"), CROWD) == ["empty-0", "empty-1"]
    assert crowd.feasible(shared_pod("q", "60Gi"), CROWD[::-1]) == ["empty-3", "empty-2"]


def test_a_simulation_sees_every_node_that_fits(crowd: Client) -> None:
    items = [{"metadata": {"name": name}} for name in CROWD]
    body = {"Pod": shared_pod("p", "20Gi"), "Nodes": {"items": items}, "NodeNames": None}
    assert len(asyncio.run(crowd.verb("filter", body))["Nodes"]["items"]) == 6


def test_a_pod_without_annotations_or_gpus_passes_without_a_look_at_the_nodes() -> None:
    client = Client(new_fake_service([sharing_node("a")], synced=False))
    # Not even valid names: nobody reads them.
    raw = b'{"Pod":{"metadata":{"name":"x","uid":"u"}},"Nodes":null,"NodeNames":["a", 17, {"b": 1}]}'
    assert client.request("POST", "/filter", raw).json()["NodeNames"] == ["a", 17, {"b": 1}]


def test_an_undescribed_gpu_pod_passes_but_never_onto_a_sharing_node(client: Client) -> None:
    pod = pod_manifest("x", limits={"nvidia.com/gpu": "1"})
    answer = asyncio.run(client.filter(pod, [*NODES, "cpu"]))
    assert answer["NodeNames"] == ["whole", "cpu"]
    assert set(answer["FailedAndUnresolvableNodes"]) == {"big", "small"}


@pytest.mark.parametrize(
    ("policy", "passes"), [("pass", ["whole"]), ("reject", [])], ids=["policy pass", "policy reject"]
)
def test_a_misspelt_annotation_is_told_and_then_the_policy_decides(policy: str, passes: list[str]) -> None:
    settings = load_settings({"undescribed": policy}, {})
    client = Client(new_fake_service([sharing_node("big"), whole_node("whole")], settings=settings))
    pod = pod_manifest("x", {"batch_size": "3", "gpu-memory": "4Gi"}, {"nvidia.com/gpu": "1"})
    answer = asyncio.run(client.filter(pod, ["big", "whole"]))
    assert answer["NodeNames"] == passes
    (event,) = client.cluster.events
    assert event.warning
    assert event.reason == "InvalidTaskDescription"
    assert "did you mean vramcast.dev/batch-size?" in event.message
    assert "vramcast.dev/batch_size" in answer["FailedAndUnresolvableNodes"]["big"]
    assert client.metric("vramcast_invalid_tasks_total") == 1


def test_policy_reject_also_turns_away_gpu_pods_that_say_nothing() -> None:
    client = Client(new_fake_service([whole_node("whole")], settings=load_settings({"undescribed": "reject"}, {})))
    reasons = client.reasons(pod_manifest("x", limits={"nvidia.com/gpu": "1"}), ["whole"])
    assert reasons == {"whole": "pod asks for a GPU and does not describe its task"}


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({"nvidia.com/gpu": "1"}, {"share": "true", "gpu-memory": "4Gi"}),
        ({}, {"gpu-memory": "4Gi"}),
        ({"nvidia.com/gpu": "2"}, {"gpu-memory": "4Gi", "gpus": "1"}),
        ({"nvidia.com/gpu": "1"}, {"model": "timm/resnet5000"}),
        ({"nvidia.com/gpu": "1"}, {"gpu-memory": "x" * 1_000_000}),
    ],
    ids=["shares and takes a device", "no GPU at all", "two counts", "not in the catalog", "a megabyte"],
)
def test_contradictions_are_told_on_the_pod(
    client: Client, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    client.feasible(pod_manifest("x", annotations, limits), NODES)
    assert len(client.cluster.events) == 1
    assert len(client.cluster.events[0].message) <= 1000


def test_before_the_first_list_described_pods_get_an_error_and_not_a_promise() -> None:
    client = Client(new_fake_service([sharing_node("a")], synced=False))
    answer = asyncio.run(client.filter(shared_pod("p"), ["a"]))
    assert answer["NodeNames"] is None
    assert "does not know the cluster yet" in answer["Error"]


def test_without_news_for_too_long_nothing_is_promised() -> None:
    cluster = FakeCluster()
    client = Client(new_fake_service([sharing_node("a")], cluster=cluster))
    cluster.stale_seconds = 61
    assert "not heard from the API server for 61 s" in asyncio.run(client.filter(shared_pod("p"), ["a"]))["Error"]
    assert client.request("GET", "/readyz").status == 503


def test_a_filtered_pod_holds_its_need_on_every_node_it_was_told_of() -> None:
    client = Client(new_fake_service([sharing_node("a", 1), sharing_node("b", 1)]))
    assert client.feasible(shared_pod("first", "30Gi"), ["a", "b"]) == ["a", "b"]
    reasons = client.reasons(shared_pod("second", "30Gi"), ["a", "b"])
    assert set(reasons.values()) == {"GPU memory held for pods that are being placed, 30.0 GiB needed"}


def test_a_hold_on_some_nodes_leaves_the_others_free() -> None:
    client = Client(new_fake_service([sharing_node("a", 1), sharing_node("b", 1)]))
    client.feasible(shared_pod("first", "30Gi"), ["a"])
    assert client.feasible(shared_pod("second", "30Gi"), ["a", "b"]) == ["b"]


def test_a_pod_that_only_holds_keep_out_waits_for_them_to_settle() -> None:
    client = Client(new_fake_service([sharing_node("a", 1), sharing_node("b", 1)], clock=None))
    first, second = shared_pod("first", "30Gi"), shared_pod("second", "30Gi")

    async def overlap() -> list[str]:
        await client.filter(first, ["a", "b"])
        waiting = asyncio.create_task(client.filter(second, ["a", "b"]))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await client.bind(first, "b") == ""
        names: list[str] = (await waiting)["NodeNames"]
        return names

    assert asyncio.run(overlap()) == ["a"]
    assert client.metric('vramcast_hold_waits_total{outcome="fits"}') == 1


def test_a_retry_without_news_waits_for_the_news_that_woke_the_scheduler() -> None:
    """The scheduler's watch may be ahead of ours: it retries because of an event that is still on its way here."""
    client = Client(new_fake_service([sharing_node("a", 1)]))
    first, second = shared_pod("first", "30Gi"), shared_pod("second", "30Gi")

    async def late_news() -> list[str]:
        await client.filter(first, ["a"])
        await client.bind(first, "a")
        assert (await client.filter(second, ["a"]))["NodeNames"] == []
        waiting = asyncio.create_task(client.filter(second, ["a"]))
        await asyncio.sleep(0)
        assert not waiting.done()
        client.service.apply([PodGone(PodUid("uid-first"))])
        names: list[str] = (await waiting)["NodeNames"]
        return names

    assert asyncio.run(late_news()) == ["a"]


def test_an_expired_hold_is_free_again() -> None:
    clock = FakeClock()
    client = Client(new_fake_service([sharing_node("a", 1)], clock=clock))
    client.feasible(shared_pod("first", "30Gi"), ["a"])
    clock.now += 31
    client.service.state.ledger.expire_holds(clock())
    assert client.feasible(shared_pod("second", "30Gi"), ["a"]) == ["a"]


@pytest.mark.parametrize("pattern", ["node-{:04d}.example", "node-{}.example"], ids=["one length", "many lengths"])
def test_hundreds_of_names_take_the_fast_way_to_the_same_answer(pattern: str) -> None:
    names = [pattern.format(number) for number in range(600)]
    nodes = [sharing_node(name, 1, 81920 if number % 3 else 24576) for number, name in enumerate(names)]
    client = Client(new_fake_service(nodes, settings=load_settings({"most_nodes_offered": 0}, {})))
    shuffled = names[::-1]
    answer = asyncio.run(client.filter(shared_pod("p", "40Gi"), shuffled))
    assert answer["NodeNames"] == [name for name in shuffled if names.index(name) % 3]
    assert set(answer["FailedAndUnresolvableNodes"]) == set(names[::3])
    strange = asyncio.run(client.filter(shared_pod("p", "40Gi"), [*shuffled, 'né"w\\']))
    assert strange["NodeNames"] == answer["NodeNames"]
    assert strange["FailedAndUnresolvableNodes"]['né"w\\'] == "node not known to vramcast"


def test_the_reason_text_is_the_same_for_every_node_of_a_kind() -> None:
    nodes = [sharing_node(f"n{size}", 1, size) for size in (20000, 24576, 30000)]
    client = Client(new_fake_service(nodes))
    assert len(set(client.reasons(shared_pod("p", "40Gi"), [node.name for node in nodes]).values())) == 1


def test_decisions_are_counted_by_reason(client: Client) -> None:
    client.reasons(shared_pod("p", "100Gi"), NODES)
    assert client.metric('vramcast_node_rejections_total{reason="too_small"}') == 2
    assert client.metric('vramcast_node_rejections_total{reason="not_sharing"}') == 1
    assert client.metric('vramcast_pods_rejected_total{reason="too_small"}') == 1
    assert client.metric('vramcast_request_seconds_count{verb="filter"}') == 1


def test_no_nodes_at_all_is_an_answer_too(client: Client) -> None:
    answer = asyncio.run(client.filter(shared_pod("p"), []))
    assert answer["NodeNames"] == []
    body = msgspec.json.encode({"Pod": shared_pod("p"), "Nodes": None, "NodeNames": None})
    assert client.request("POST", "/filter", body).json()["Error"] == ""
