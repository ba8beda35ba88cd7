"""Background maintenance: requeue pods once they fit, expire holds, survive a bad change."""

from __future__ import annotations

import asyncio

import pytest
from tests.api.client import Client
from tests.fakes import FakeClock, new_fake_service, shared_pod, sharing_node

from vramcast.controllers.maintenance import requeue_unschedulable
from vramcast.names import PodUid
from vramcast.placement.changes import PodGone, PodSeen, PodsListed
from vramcast.settings import load_settings


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def client(clock: FakeClock) -> Client:
    """One GPU that one pod fills, and a second pod that is unschedulable."""
    settings = load_settings({"hold_wait_seconds": 0}, {})
    client = Client(new_fake_service([sharing_node("a", 1)], clock=clock, settings=settings))
    first = shared_pod("first", "30Gi")
    client.feasible(first, ["a"])
    client.place(first, "a")
    assert client.feasible(shared_pod("waits", "30Gi"), ["a"]) == []
    return client


def requeue(client: Client) -> list[str]:
    asyncio.run(requeue_unschedulable(client.service))
    return client.cluster.requeued


def test_an_unschedulable_pod_is_requeued_once_there_is_room(client: Client, clock: FakeClock) -> None:
    clock.now += 10
    assert requeue(client) == []
    client.service.apply([PodGone(PodUid("uid-first"))])
    clock.now += 10
    assert requeue(client) == ["default/waits"]
    assert client.metric("vramcast_requeues_total") == 1


def test_a_pod_is_not_requeued_before_the_scheduler_had_time_to_retry_it(client: Client, clock: FakeClock) -> None:
    client.service.apply([PodGone(PodUid("uid-first"))])
    clock.now += 1
    assert requeue(client) == []


def test_requeues_back_off(client: Client, clock: FakeClock) -> None:
    client.service.apply([PodGone(PodUid("uid-first"))])
    for _ in range(600):
        clock.now += 1
        requeue(client)
    assert 5 <= len(client.cluster.requeued) <= 12


def test_a_deleted_pod_is_not_requeued(client: Client, clock: FakeClock) -> None:
    client.service.apply([PodGone(PodUid("uid-first")), PodGone(PodUid("uid-waits"))])
    clock.now += 100
    assert requeue(client) == []


def test_a_pod_deleted_while_the_watch_was_down_is_not_requeued(client: Client, clock: FakeClock) -> None:
    client.service.apply([PodsListed(frozenset(), clock.now + 1)])
    clock.now += 100
    assert requeue(client) == []
    assert len(client.service.state.unschedulable) == 0


def test_expired_holds_are_counted_and_free_their_room(client: Client, clock: FakeClock) -> None:
    client.service.apply([PodGone(PodUid("uid-first"))])
    client.feasible(shared_pod("held", "30Gi"), ["a"])
    clock.now += 31
    client.service.expire_holds()
    assert client.metric("vramcast_hold_expirations_total") == 1
    assert client.feasible(shared_pod("next", "30Gi"), ["a"]) == ["a"]


def test_a_change_that_hits_a_defect_does_not_stop_the_others(client: Client) -> None:
    broken = PodSeen(None)  # type: ignore[arg-type] # no reader ever produces this
    client.service.apply([broken, PodGone(PodUid("uid-first"))])
    assert client.metric("vramcast_defects_total") == 1
    assert client.feasible(shared_pod("next", "30Gi"), ["a"]) == ["a"]
