"""A new leader knows every promise of its predecessor, and the predecessor's late binds no longer succeed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest
from tests.api.client import Client
from tests.fakes import FakeCluster, new_fake_service, pod_manifest, shared_pod, sharing_node

from vramcast.cluster.objects import Lease
from vramcast.controllers.takeover import take_over
from vramcast.errors import NotLeading, WorldUnavailable
from vramcast.names import NodeName, PodUid
from vramcast.service import NoElection
from vramcast.task.pod import Assignment, Pod, PodRecord, to_record


class FakeElectionApi(FakeCluster):
    """`answers`: pods that changed between the list and the touch."""

    def __init__(self, *listed: PodRecord) -> None:
        super().__init__()
        self.listed = list(listed)
        self.answers: dict[str, PodRecord | None] = {}
        self.touched: list[str] = []

    def read_lease(self, namespace: str, name: str) -> Lease | None:
        return None

    def list_pods(self) -> list[PodRecord]:
        return self.listed

    def touch(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        self.touched.append(name)
        (pod,) = [pod for pod in self.listed if pod.uid == uid]
        return self.answers.get(name, replace(pod, resource_version="100"))


class Elected(NoElection):
    """Bindings are fenced. The test sets `leading`."""

    fenced = True

    def check(self) -> None:
        if not self.leading:
            raise NotLeading("on standby")


def record(manifest: dict[str, object], version: str = "1") -> PodRecord:
    pod = to_record(msgspec.convert(manifest, Pod))
    return replace(pod, resource_version=version)


def bound(pod: PodRecord, node: str, gpu: int, mib: int) -> PodRecord:
    return replace(pod, node=NodeName(node), assignment=Assignment((gpu,), mib))


def room(client: Client) -> list[int]:
    return [view.room_mib for view in client.service.state.ledger.device_views(NodeName("a"))]


def taken_over(cluster: FakeElectionApi) -> Client:
    service = new_fake_service([sharing_node("a", 2)], cluster=cluster)
    client = Client(replace(service, leadership=Elected()))
    asyncio.run(take_over(client.service, cluster))
    return client


def test_only_pending_pods_that_may_get_a_gpu_are_touched() -> None:
    plain = record(pod_manifest("plain"))
    placed = bound(record(shared_pod("placed")), "a", 0, 10240)
    cluster = FakeElectionApi(record(shared_pod("waits")), plain, placed)
    taken_over(cluster)
    assert cluster.touched == ["waits"]


def test_promises_that_the_watch_has_not_shown_yet_count() -> None:
    before = room(Client(new_fake_service([sharing_node("a", 2)])))
    cluster = FakeElectionApi(bound(record(shared_pod("placed")), "a", 0, 10240))
    assert room(taken_over(cluster)) == [before[0] - 10240, before[1]]


def test_a_binding_written_just_before_the_touch_counts() -> None:
    waits = record(shared_pod("waits"))
    cluster = FakeElectionApi(waits)
    before = room(Client(new_fake_service([sharing_node("a", 2)])))
    cluster.answers["waits"] = bound(waits, "a", 1, 10240)
    assert room(taken_over(cluster)) == [before[0], before[1] - 10240]


def test_a_pod_deleted_during_the_takeover_is_skipped() -> None:
    cluster = FakeElectionApi(record(shared_pod("gone")))
    cluster.answers["gone"] = None
    taken_over(cluster)


def test_a_takeover_fails_before_the_cluster_is_synced() -> None:
    cluster = FakeElectionApi()
    service = new_fake_service([sharing_node("a", 2)], cluster=cluster, synced=False)
    with pytest.raises(WorldUnavailable):
        asyncio.run(take_over(service, cluster))


def test_the_binding_names_the_touched_version_even_if_the_scheduler_has_an_older_one() -> None:
    client = taken_over(FakeElectionApi(record(shared_pod("waits"))))
    stale = shared_pod("waits")
    stale["metadata"]["resourceVersion"] = "1"
    client.feasible(stale, ["a"])
    assert client.place(stale, "a") == ""
    assert [write.resource_version for write in client.cluster.writes] == ["100"]


def test_without_leader_election_the_binding_names_no_version() -> None:
    client = Client(new_fake_service([sharing_node("a", 2)]))
    pod = shared_pod("p")
    pod["metadata"]["resourceVersion"] = "1"
    client.feasible(pod, ["a"])
    client.place(pod, "a")
    assert [write.resource_version for write in client.cluster.writes] == [""]


def test_a_bind_after_the_lead_is_lost_is_not_written() -> None:
    client = taken_over(FakeElectionApi())
    pod = shared_pod("p")
    client.feasible(pod, ["a"])
    assert isinstance(client.service.leadership, Elected)
    client.service.leadership.leading = False
    assert "on standby" in client.place(pod, "a")
    assert not client.cluster.writes
