"""Pods that wait between filter and bind, and gangs: what they hold, and for how long."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.fakes import FakeClock, new_fake_service, shared_pod, sharing_node
from vramcast.names import NodeName
from vramcast.placement.changes import PodSeen
from vramcast.settings import load_settings
from vramcast.task.pod import Pod, to_record

Json = dict[str, Any]
NODES = ["a", "b"]
FREE_MIB = 40510
TAKEN_MIB = FREE_MIB - 30 * 1024


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def client(clock: FakeClock) -> Client:
    """Two GPUs with room for one of these pods each."""
    settings = load_settings({"hold_wait_seconds": 0}, {})
    return Client(new_fake_service([sharing_node(name, 1) for name in NODES], clock=clock, settings=settings))


def pod(name: str, gang: str = "") -> Json:
    manifest = shared_pod(name, "30Gi")
    manifest["metadata"]["resourceVersion"] = "1"
    if gang:
        manifest["spec"]["schedulingGroup"] = {"podGroupName": gang}
    return manifest


def see(client: Client, manifest: Json, version: int, **status: Any) -> None:
    shown = deepcopy(manifest)
    shown["metadata"]["resourceVersion"] = str(version)
    shown["status"] = status
    client.service.apply([PodSeen(to_record(msgspec.convert(shown, Pod)))])


def failed(message: str) -> list[Json]:
    return [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]


def rooms(client: Client) -> list[int]:
    return [client.service.state.ledger.device_views(NodeName(name))[0].room_mib for name in NODES]


def feasible(client: Client, manifest: Json) -> list[str]:
    names: list[str] = asyncio.run(client.filter(manifest, NODES))["NodeNames"]
    return names


# ------------------------------------------------------------------ nominations


def test_a_hold_shrinks_to_the_node_that_the_scheduler_chose(client: Client) -> None:
    assert feasible(client, pod("p")) == NODES
    assert rooms(client) == [TAKEN_MIB, TAKEN_MIB]
    see(client, pod("p"), 2, nominatedNodeName="b")
    assert rooms(client) == [FREE_MIB, TAKEN_MIB]
    assert feasible(client, pod("q")) == ["a"]


def test_a_chosen_node_is_held_longer_but_not_for_ever(client: Client, clock: FakeClock) -> None:
    feasible(client, pod("p"))
    see(client, pod("p"), 2, nominatedNodeName="b")
    clock.now += 299
    client.service.expire_holds()
    assert rooms(client) == [FREE_MIB, TAKEN_MIB]
    clock.now += 2
    client.service.expire_holds()
    assert rooms(client) == [FREE_MIB, FREE_MIB]


def test_a_hold_ends_when_the_scheduler_takes_its_choice_back(client: Client) -> None:
    feasible(client, pod("p"))
    see(client, pod("p"), 2, nominatedNodeName="b")
    see(client, pod("p"), 3)
    assert rooms(client) == [FREE_MIB, FREE_MIB]


def test_a_hold_ends_when_the_attempt_fails_after_filter(client: Client) -> None:
    feasible(client, pod("p"))
    see(client, pod("p"), 2, conditions=failed("volume node affinity conflict"))
    assert rooms(client) == [FREE_MIB, FREE_MIB]


def test_an_old_failure_in_a_new_version_does_not_end_the_hold(client: Client) -> None:
    manifest = pod("p") | {"status": {"conditions": failed("no room")}}
    feasible(client, manifest)
    see(client, pod("p"), 2, conditions=failed("no room"))
    assert rooms(client) == [TAKEN_MIB, TAKEN_MIB]


def test_what_the_scheduler_wrote_before_this_filter_call_does_not_count(client: Client) -> None:
    manifest = pod("p")
    manifest["metadata"]["resourceVersion"] = "5"
    feasible(client, manifest)
    see(client, pod("p"), 4, nominatedNodeName="a")
    see(client, pod("p"), 5)
    assert rooms(client) == [TAKEN_MIB, TAKEN_MIB]


def test_a_node_that_was_not_offered_ends_the_hold(client: Client) -> None:
    asyncio.run(client.filter(pod("p"), ["a"]))
    see(client, pod("p"), 2, nominatedNodeName="b")
    assert rooms(client) == [FREE_MIB, FREE_MIB]


# ------------------------------------------------------------------ gangs


def test_each_member_of_a_gang_is_offered_one_node(client: Client) -> None:
    first, second = feasible(client, pod("m0", "gang")), feasible(client, pod("m1", "gang"))
    assert sorted(first + second) == NODES
    assert feasible(client, pod("m2", "gang")) == []


def test_a_gang_that_is_filtered_again_starts_over(client: Client) -> None:
    """Its first member must not find the nodes of the others taken by their last attempt."""
    for _ in range(3):
        assert feasible(client, pod("m0", "gang"))
        assert feasible(client, pod("m1", "gang"))
        assert not feasible(client, pod("m2", "gang"))


def test_a_gang_of_which_one_member_fits_nowhere_lets_others_pass(client: Client, clock: FakeClock) -> None:
    for name in ("m0", "m1", "m2"):
        feasible(client, pod(name, "gang"))
    clock.now += 0.06
    assert feasible(client, pod("single")) == NODES


def test_a_gang_that_was_filtered_holds_its_nodes_a_moment_longer(client: Client, clock: FakeClock) -> None:
    """The binds of its members are on their way when the next pod is filtered."""
    feasible(client, pod("m0", "gang"))
    feasible(client, pod("m1", "gang"))
    clock.now += 20
    assert feasible(client, pod("single")) == []
    clock.now += 1.1
    assert feasible(client, pod("single")) == NODES


def test_a_nominated_member_keeps_its_node(client: Client, clock: FakeClock) -> None:
    (node,) = feasible(client, pod("m0", "gang"))
    see(client, pod("m0", "gang"), 2, nominatedNodeName=node)
    for _ in range(5):
        clock.now += 5
        assert feasible(client, pod("single")) == [name for name in NODES if name != node]


def test_a_gang_that_is_tried_for_hours_still_holds_for_each_member(client: Client, clock: FakeClock) -> None:
    for _ in range(100):
        clock.now += 40
        nodes = feasible(client, pod("m0", "gang")) + feasible(client, pod("m1", "gang"))
        assert sorted(nodes) == NODES


def test_groups_of_the_same_name_in_two_namespaces_are_two_gangs(client: Client, clock: FakeClock) -> None:
    elsewhere = pod("m0", "gang")
    elsewhere["metadata"] |= {"namespace": "other", "uid": "uid-elsewhere"}
    feasible(client, elsewhere)
    feasible(client, pod("m0", "gang"))
    clock.now += 1.1
    client.service.expire_holds()
    assert [hold.pod for hold in client.service.state.ledger.holds.values()] == ["default/m0"]
