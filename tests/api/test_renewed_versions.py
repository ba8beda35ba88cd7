"""A Binding names the version of the pod that was filtered, or a newer one that differs in nothing that matters."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.controllers.test_takeover import Elected
from tests.fakes import FakeCluster, new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.placement.changes import PodSeen
from vramcast.task.pod import Pod, PodRecord, to_record

Json = dict[str, Any]


class VersionedCluster(FakeCluster):
    """Accepts a Binding only if it names the version that the pod has now."""

    def __init__(self, pod: Json) -> None:
        super().__init__()
        self.pod = pod
        self.pod["metadata"] |= {"resourceVersion": "10", "generation": 1}
        self.pod["status"] = {}

    def change(self, **fields: Json) -> None:
        """Merges these fields of the pod and gives it a new version."""
        for name, values in fields.items():
            for key, value in values.items():
                known = self.pod[name].get(key)
                self.pod[name][key] = {**known, **value} if isinstance(known, dict) else value
        self.pod["metadata"]["resourceVersion"] = str(int(self.pod["metadata"]["resourceVersion"]) + 1)

    def record(self) -> PodRecord:
        return to_record(msgspec.convert(deepcopy(self.pod), Pod))

    def bind(self, write: BindingWrite) -> BindResult:
        super().bind(write)
        if write.resource_version == self.pod["metadata"]["resourceVersion"]:
            return BindResult(Fate.BOUND)
        return BindResult(Fate.REFUSED, "the pod has changed", self.record())


def placed(pod: Json) -> tuple[Client, VersionedCluster]:
    """Filtered, and about to be bound."""
    cluster = VersionedCluster(pod)
    service = new_fake_service([sharing_node("a", 1), whole_node("w", 1)], cluster=cluster)
    client = Client(replace(service, leadership=Elected()))
    client.service.apply([PodSeen(cluster.record())])
    assert asyncio.run(client.filter(deepcopy(pod), ["a", "w"]))["NodeNames"]
    return client, cluster


def nominate(cluster: VersionedCluster) -> None:
    cluster.change(status={"nominatedNodeName": "a"})


def test_a_nomination_that_the_watch_has_shown() -> None:
    client, cluster = placed(shared_pod("p", "30Gi"))
    nominate(cluster)
    client.service.apply([PodSeen(cluster.record())])
    assert client.place(cluster.pod, "a") == ""
    assert [write.resource_version for write in cluster.writes] == ["11"]


def test_a_nomination_that_the_watch_has_not_shown_yet() -> None:
    client, cluster = placed(shared_pod("p", "30Gi"))
    nominate(cluster)
    assert client.place(cluster.pod, "a") == ""
    assert [write.resource_version for write in cluster.writes] == ["10", "11"]
    assert client.metric('vramcast_binds_total{fate="refused"}') == 0


def test_a_pod_that_keeps_changing_while_it_is_bound() -> None:
    client, cluster = placed(shared_pod("p", "30Gi"))
    left = 3

    def change_again(_write: BindingWrite) -> None:
        nonlocal left
        if left:
            left -= 1
            cluster.change(metadata={"labels": {"step": str(left)}})

    cluster.before_bind = change_again
    assert client.place(cluster.pod, "a") == ""
    assert len(cluster.writes) == 4


def test_an_undescribed_pod_is_renewed_too() -> None:
    client, cluster = placed(pod_manifest("p", limits={"nvidia.com/gpu": "1"}))
    nominate(cluster)
    assert client.place(cluster.pod, "w") == ""


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"annotations": {"vramcast.dev/requeue": "2026-01-01T00:00:00+00:00"}}},
        {"metadata": {"annotations": {"vramcast.dev/gpu-memory": "1Gi"}}},
        {"metadata": {"annotations": {"vramcast.dev/typo": "1"}}},
        {"metadata": {"generation": 2}},
        {"metadata": {"uid": "another"}},
        {"spec": {"nodeName": "b"}},
    ],
    ids=["takeover", "need", "mistake", "spec", "recreated", "bound"],
)
@pytest.mark.parametrize("shown", [True, False], ids=["shown by the watch", "not shown yet"])
def test_a_change_of_what_the_version_guards_refuses_the_binding(change: Json, shown: bool) -> None:
    client, cluster = placed(shared_pod("p", "30Gi"))
    asked = deepcopy(cluster.pod)
    cluster.change(**change)
    nominate(cluster)
    if shown and "nodeName" not in cluster.pod["spec"]:
        client.service.apply([PodSeen(cluster.record())])
    assert client.place(asked, "a").startswith("refused: ")
    assert [write.resource_version for write in cluster.writes] == ["10"]


def test_a_replica_that_lost_the_lease_renews_nothing() -> None:
    client, cluster = placed(shared_pod("p", "30Gi"))
    nominate(cluster)

    def lose_the_lease(_write: BindingWrite) -> None:
        client.service.leadership.leading = False  # type: ignore[misc]

    cluster.before_bind = lose_the_lease
    assert client.place(cluster.pod, "a").startswith("refused: ")
    assert len(cluster.writes) == 1


def test_a_takeover_between_the_refusal_and_the_next_write_fences_that_write() -> None:
    """The read after the refusal shows the old mark. The takeover comes after it, and changes the version again."""
    client, cluster = placed(shared_pod("p", "30Gi"))
    nominate(cluster)

    def take_over(write: BindingWrite) -> None:
        if write.resource_version == "11":
            cluster.change(metadata={"annotations": {"vramcast.dev/requeue": "2026-01-01T00:00:00+00:00"}})

    cluster.before_bind = take_over
    assert client.place(cluster.pod, "a").startswith("refused: ")
    assert [write.resource_version for write in cluster.writes] == ["10", "11"]


def test_a_pod_that_changed_before_the_scheduler_saw_it_is_not_bound_as_it_was() -> None:
    """The scheduler filters the version that it knows. The watch has already shown a newer one with another need."""
    cluster = VersionedCluster(shared_pod("p", "3Gi"))
    service = new_fake_service([sharing_node("a", 1)], cluster=cluster)
    client = Client(replace(service, leadership=Elected()))
    asked = deepcopy(cluster.pod)
    cluster.change(metadata={"annotations": {"vramcast.dev/gpu-memory": "20Gi"}})
    client.service.apply([PodSeen(cluster.record())])
    asyncio.run(client.filter(asked, ["a"]))
    assert "changed" in client.place(asked, "a")
    assert [write.resource_version for write in cluster.writes] == ["10"]
