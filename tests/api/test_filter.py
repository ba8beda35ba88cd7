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


def test_nodes_with_room_pass_and_all_others_get_a_reason(client: Client) -> None:
    answer = asyncio.run(client.filter(shared_pod("p", "40Gi"), [*NODES, "unknown"]))
    assert answer == {
        "Nodes": None,
        "NodeNames": ["big"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {
            "small": "GPU too small for 40.0 GiB",
            "whole": "node does not share its GPUs",
            "unknown": "node not known to vramcast",
        },
        "Error": "",
    }


def test_a_scheduler_without_a_node_cache_gets_full_node_objects_back(client: Client) -> None:
    items = [{"metadata": {"name": name}, "spec": {"keep": [1, {"me": None}]}} for name in NODES]
    body = {"Pod": shared_pod("p", "40Gi"), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    answer = asyncio.run(client.verb("filter", body))
    assert answer["Nodes"] == {"metadata": {}, "items": items[:1]}
    assert answer["NodeNames"] is None
    assert set(answer["FailedAndUnresolvableNodes"]) == {"small", "whole"}


def test_full_node_objects_mean_a_simulation_that_holds_nothing(client: Client) -> None:
    items = [{"metadata": {"name": name}} for name in NODES]
    body = {"Pod": shared_pod("p", "40Gi"), "Nodes": {"items": items}, "NodeNames": None}
    asyncio.run(client.verb("filter", body))
    assert not client.service.state.ledger.holds


def test_a_scheduler_configured_without_a_node_cache_gets_holds() -> None:
    settings = load_settings({"node_cache_capable": False}, {})
    client = Client(new_fake_service([sharing_node("a")], settings=settings))
    body = {"Pod": shared_pod("p"), "Nodes": {"items": [{"metadata": {"name": "a"}}]}, "NodeNames": None}
    asyncio.run(client.verb("filter", body))
    assert list(client.service.state.ledger.holds) == ["uid-p"]


@pytest.fixture
def many_nodes() -> Client:
    """Six nodes fit, and the pod would fill `full-0` and `full-1` best. `tiny` does not fit."""
    nodes = [sharing_node(f"empty-{n}", 1, 81920) for n in range(4)]
    nodes += [sharing_node(f"full-{n}", 1, 24576) for n in range(2)]
    settings = load_settings({"most_nodes_offered": 2}, {})
    return Client(new_fake_service([*nodes, sharing_node("tiny", 1, 8192)], settings=settings))


MANY_NODES = ["empty-0", "full-0", "empty-1", "tiny", "empty-2", "full-1", "empty-3"]


def test_only_the_best_of_many_fitting_nodes_are_offered_and_held(many_nodes: Client) -> None:
    answer = asyncio.run(many_nodes.filter(shared_pod("p", "20Gi"), MANY_NODES))
    assert answer["NodeNames"] == ["full-0", "full-1"]
    assert answer["FailedAndUnresolvableNodes"] == {}, "nodes that fit but are not offered did not fail"
    (hold,) = many_nodes.service.state.ledger.holds.values()
    board = many_nodes.service.state.ledger.board
    assert sorted(hold.columns) == sorted(board.columns(["full-0", "full-1"]))


def test_the_schedulers_order_breaks_ties_between_nodes(many_nodes: Client) -> None:
    assert many_nodes.feasible(shared_pod("p", "60Gi"), MANY_NODES) == ["empty-0", "empty-1"]
    assert many_nodes.feasible(shared_pod("q", "60Gi"), MANY_NODES[::-1]) == ["empty-3", "empty-2"]


def test_a_simulation_gets_every_node_that_fits(many_nodes: Client) -> None:
    items = [{"metadata": {"name": name}} for name in MANY_NODES]
    body = {"Pod": shared_pod("p", "20Gi"), "Nodes": {"items": items}, "NodeNames": None}
    assert len(asyncio.run(many_nodes.verb("filter", body))["Nodes"]["items"]) == 6


def test_a_pod_without_annotations_or_gpus_passes_before_the_cluster_is_known() -> None:
    client = Client(new_fake_service([sharing_node("a")], synced=False))
    assert client.feasible(pod_manifest("x"), ["a", "unknown"]) == ["a", "unknown"]


def test_an_undescribed_gpu_pod_passes_but_never_onto_a_sharing_node(client: Client) -> None:
    pod = pod_manifest("x", limits={"nvidia.com/gpu": "1"})
    answer = asyncio.run(client.filter(pod, [*NODES, "cpu"]))
    assert answer["NodeNames"] == ["whole", "cpu"]
    assert set(answer["FailedAndUnresolvableNodes"]) == {"big", "small"}


@pytest.mark.parametrize(
    ("policy", "passes"), [("pass", ["whole"]), ("reject", [])], ids=["policy pass", "policy reject"]
)
def test_a_misspelt_annotation_gets_a_warning_event_and_then_the_policy_decides(policy: str, passes: list[str]) -> None:
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


def test_policy_reject_also_rejects_undescribed_gpu_pods() -> None:
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
def test_an_unusable_description_gets_one_short_event_on_the_pod(
    client: Client, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    client.feasible(pod_manifest("x", annotations, limits), NODES)
    assert len(client.cluster.events) == 1
    assert len(client.cluster.events[0].message) <= 1000


def test_before_the_first_list_described_pods_get_an_error_instead_of_a_promise() -> None:
    client = Client(new_fake_service([sharing_node("a")], synced=False))
    answer = asyncio.run(client.filter(shared_pod("p"), ["a"]))
    assert answer["NodeNames"] is None
    assert "does not know the cluster yet" in answer["Error"]


def test_nothing_is_promised_while_the_cluster_view_is_stale() -> None:
    cluster = FakeCluster()
    client = Client(new_fake_service([sharing_node("a")], cluster=cluster))
    cluster.stale_seconds = 61
    assert "not heard from the API server for 61 s" in asyncio.run(client.filter(shared_pod("p"), ["a"]))["Error"]
    assert client.request("GET", "/readyz").status == 503


def test_a_filtered_pod_holds_its_need_on_every_node_it_was_offered() -> None:
    client = Client(new_fake_service([sharing_node("a", 1), sharing_node("b", 1)]))
    assert client.feasible(shared_pod("first", "30Gi"), ["a", "b"]) == ["a", "b"]
    reasons = client.reasons(shared_pod("second", "30Gi"), ["a", "b"])
    assert set(reasons.values()) == {"GPU memory held for pods that are being placed, 30.0 GiB needed"}


def test_a_hold_on_some_nodes_leaves_the_others_free() -> None:
    client = Client(new_fake_service([sharing_node("a", 1), sharing_node("b", 1)]))
    client.feasible(shared_pod("first", "30Gi"), ["a"])
    assert client.feasible(shared_pod("second", "30Gi"), ["a", "b"]) == ["b"]


def test_a_pod_blocked_only_by_holds_waits_for_them_to_end() -> None:
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


def test_a_retry_waits_for_the_event_that_woke_the_scheduler() -> None:
    """The scheduler's watch may be ahead of ours: it retries because of an event that has not reached us yet."""
    client = Client(new_fake_service([sharing_node("a", 1)]))
    first, second = shared_pod("first", "30Gi"), shared_pod("second", "30Gi")

    async def late_event() -> list[str]:
        await client.filter(first, ["a"])
        await client.bind(first, "a")
        assert (await client.filter(second, ["a"]))["NodeNames"] == []
        waiting = asyncio.create_task(client.filter(second, ["a"]))
        await asyncio.sleep(0)
        assert not waiting.done()
        client.service.apply([PodGone(PodUid("uid-first"))])
        names: list[str] = (await waiting)["NodeNames"]
        return names

    assert asyncio.run(late_event()) == ["a"]


def test_an_expired_hold_frees_its_room() -> None:
    clock = FakeClock()
    client = Client(new_fake_service([sharing_node("a", 1)], clock=clock))
    client.feasible(shared_pod("first", "30Gi"), ["a"])
    clock.now += 31
    client.service.state.ledger.expire_holds(clock())
    assert client.feasible(shared_pod("second", "30Gi"), ["a"]) == ["a"]


@pytest.mark.parametrize("pattern", ["node-{:04d}.example", "node-{}.example"], ids=["one length", "many lengths"])
def test_the_fast_path_for_hundreds_of_names_gives_the_same_answer(pattern: str) -> None:
    names = [pattern.format(number) for number in range(600)]
    nodes = [sharing_node(name, 1, 81920 if number % 3 else 24576) for number, name in enumerate(names)]
    client = Client(new_fake_service(nodes, settings=load_settings({"most_nodes_offered": 0}, {})))
    shuffled = names[::-1]
    answer = asyncio.run(client.filter(shared_pod("p", "40Gi"), shuffled))
    assert answer["NodeNames"] == [name for name in shuffled if names.index(name) % 3]
    assert set(answer["FailedAndUnresolvableNodes"]) == set(names[::3])
    with_odd_name = asyncio.run(client.filter(shared_pod("p", "40Gi"), [*shuffled, 'né"w\\']))
    assert with_odd_name["NodeNames"] == answer["NodeNames"]
    assert with_odd_name["FailedAndUnresolvableNodes"]['né"w\\'] == "node not known to vramcast"


def test_nodes_rejected_for_the_same_reason_share_one_text() -> None:
    nodes = [sharing_node(f"n{size}", 1, size) for size in (20000, 24576, 30000)]
    client = Client(new_fake_service(nodes))
    assert len(set(client.reasons(shared_pod("p", "40Gi"), [node.name for node in nodes]).values())) == 1


def test_rejections_are_counted_by_reason(client: Client) -> None:
    client.reasons(shared_pod("p", "100Gi"), NODES)
    assert client.metric('vramcast_node_rejections_total{reason="too_small"}') == 2
    assert client.metric('vramcast_node_rejections_total{reason="not_sharing"}') == 1
    assert client.metric('vramcast_pods_rejected_total{reason="too_small"}') == 1
    assert client.metric('vramcast_request_duration_seconds_count{verb="filter"}') == 1


def test_a_request_without_nodes_is_not_an_error(client: Client) -> None:
    answer = asyncio.run(client.filter(shared_pod("p"), []))
    assert answer["NodeNames"] == []
    body = msgspec.json.encode({"Pod": shared_pod("p"), "Nodes": None, "NodeNames": None})
    assert client.request("POST", "/filter", body).json()["Error"] == ""
