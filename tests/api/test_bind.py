"""POST /bind: one write, safe to retry, safe when its answer is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.fakes import FakeClock, FakeCluster, new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.cluster.seam import BindResult, Fate
from vramcast.controllers.maintenance import resolve_unconfirmed
from vramcast.names import NodeName, PodUid
from vramcast.placement.promises import State
from vramcast.task.pod import Pod, to_record


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def client(clock: FakeClock) -> Client:
    return Client(new_fake_service([sharing_node("a", 2), whole_node("w", 2)], clock=clock))


def room(client: Client, node: str = "a") -> list[int]:
    return [view.room_mib for view in client.service.state.ledger.device_views(NodeName(node))]


def test_the_assignment_is_written_with_the_binding(client: Client) -> None:
    pod = shared_pod("p", "30Gi")
    client.feasible(pod, ["a"])
    assert client.place(pod, "a") == ""
    (write,) = client.cluster.writes
    assert (write.uid, write.node) == ("uid-p", "a")
    assert dict(write.annotations) == {
        "vramcast.dev/reserved-memory": "30Gi",
        "vramcast.dev/gpu-indices": "0",
        "vramcast.dev/forecast-memory": "30Gi",
        "vramcast.dev/model-version": "given",
        # 33 GiB with the slack, without a context of 430 MiB, of 40,510 MiB.
        "vramcast.dev/limit-torch": "per_process_memory_fraction:0.8236",
        # 30 GiB without a context of 1,429 MiB: JAX takes it all at the start.
        "vramcast.dev/limit-jax": "0.7230",
    }
    assert client.cluster.events[-1].reason == "GpuAssigned"


def limits(client: Client, pod: dict[str, Any], node: str) -> dict[str, str]:
    client.feasible(pod, [node])
    assert client.place(pod, node) == ""
    written = client.cluster.writes[-1].annotations
    return {name: value for name, value in written.items() if name.startswith("vramcast.dev/limit-")}


def test_a_pod_that_wants_no_cap_gets_no_limit(client: Client) -> None:
    pod = shared_pod("p", "30Gi")
    pod["metadata"]["annotations"]["vramcast.dev/cap"] = "off"
    assert limits(client, pod, "a") == {}


def test_a_pod_with_its_own_gpu_gets_a_limit_only_if_it_says_so(client: Client) -> None:
    annotations = {"gpu-memory": "30Gi"}
    assert limits(client, pod_manifest("p", annotations, {"nvidia.com/gpu": "1"}), "w") == {}
    asking = pod_manifest("q", {**annotations, "cap": "soft"}, {"nvidia.com/gpu": "1"})
    assert limits(client, asking, "w")["vramcast.dev/limit-torch"] == "per_process_memory_fraction:0.8236"


def test_a_need_below_the_context_gets_no_limit(client: Client) -> None:
    assert limits(client, shared_pod("p", "128Mi"), "a") == {}


def test_bind_picks_the_fullest_gpu_that_fits(client: Client) -> None:
    for name, memory in (("x", "10Gi"), ("y", "35Gi"), ("z", "20Gi")):
        pod = shared_pod(name, memory)
        client.feasible(pod, ["a"])
        assert client.place(pod, "a") == ""
    assert [write.annotations["vramcast.dev/gpu-indices"] for write in client.cluster.writes] == ["0", "1", "0"]


def test_a_repeated_bind_gets_the_same_gpu_and_counts_once(client: Client) -> None:
    pod = shared_pod("p", "30Gi")
    client.feasible(pod, ["a"])
    assert [client.place(pod, "a"), client.place(pod, "a")] == ["", ""]
    first, second = client.cluster.writes
    assert first == second
    assert room(client) == [40510 - 30720, 40510]


def test_a_refused_bind_frees_its_room(client: Client) -> None:
    pod = shared_pod("p", "30Gi")
    client.feasible(pod, ["a"])
    client.cluster.results.append(BindResult(Fate.REFUSED, "the pod is gone"))
    assert client.place(pod, "a") == "refused: the pod is gone"
    assert room(client) == [40510, 40510]
    assert client.metric('vramcast_binds_total{fate="refused"}') == 1


def test_an_unconfirmed_bind_keeps_its_room_until_the_write_can_no_longer_arrive(
    client: Client, clock: FakeClock
) -> None:
    pod = shared_pod("p", "30Gi")
    client.feasible(pod, ["a"])
    client.cluster.results.append(BindResult(Fate.UNKNOWN, "timed out"))
    assert client.place(pod, "a").startswith("unknown:")
    assert room(client) == [40510 - 30720, 40510]
    client.cluster.pods["default/p"] = to_record(msgspec.convert(pod, Pod))
    asyncio.run(resolve_unconfirmed(client.service))
    assert room(client) == [40510 - 30720, 40510]
    clock.now += 66
    asyncio.run(resolve_unconfirmed(client.service))
    assert room(client) == [40510, 40510]


def test_an_unconfirmed_bind_that_was_written_becomes_bound(client: Client, clock: FakeClock) -> None:
    pod = shared_pod("p", "30Gi")
    client.feasible(pod, ["a"])
    client.cluster.results.append(BindResult(Fate.UNKNOWN, "timed out"))
    client.place(pod, "a")
    pod["spec"]["nodeName"] = "a"
    pod["metadata"]["annotations"] |= client.cluster.writes[0].annotations
    client.cluster.pods["default/p"] = to_record(msgspec.convert(pod, Pod))
    clock.now += 66
    asyncio.run(resolve_unconfirmed(client.service))
    promise = client.service.state.ledger.promise_of(PodUid("uid-p"))
    assert promise is not None
    assert promise.state is State.BOUND
    assert room(client) == [40510 - 30720, 40510]


def test_bind_reads_the_pod_if_the_service_restarted_after_filter(client: Client) -> None:
    pod = shared_pod("p", "30Gi")
    client.cluster.pods["default/p"] = to_record(msgspec.convert(pod, Pod))
    assert client.place(pod, "a") == ""
    assert client.cluster.writes[0].annotations["vramcast.dev/gpu-indices"] == "0"


def test_a_deleted_or_recreated_pod_is_not_bound(client: Client) -> None:
    assert "no longer exists" in client.place(shared_pod("p"), "a")
    client.cluster.pods["default/p"] = to_record(msgspec.convert(shared_pod("p"), Pod))
    recreated = shared_pod("p") | {"metadata": {**shared_pod("p")["metadata"], "uid": "another"}}
    assert "no longer exists" in client.place(recreated, "a")
    assert client.cluster.writes == []


def test_room_taken_since_filter_is_not_promised_twice() -> None:
    clock = FakeClock()
    client = Client(new_fake_service([sharing_node("a", 1)], clock=clock))
    late, other = shared_pod("late", "30Gi"), shared_pod("other", "30Gi")
    client.feasible(late, ["a"])
    clock.now += 31
    client.service.state.ledger.expire_holds(clock())
    client.feasible(other, ["a"])
    assert client.place(other, "a") == ""
    assert client.place(late, "a") == "not bound: GPU memory promised to other pods, 30.0 GiB needed"
    assert [write.pod for write in client.cluster.writes] == ["other"]


def test_concurrent_binds_never_get_the_same_room() -> None:
    cluster = FakeCluster()
    client = Client(new_fake_service([sharing_node("a", 1)], cluster=cluster))
    pods = [shared_pod(f"p{number}", "30Gi") for number in range(5)]
    for pod in pods:
        cluster.pods[f"default/{pod['metadata']['name']}"] = to_record(msgspec.convert(pod, Pod))

    async def bind_concurrently() -> list[str]:
        return list(await asyncio.gather(*(client.bind(pod, "a") for pod in pods)))

    errors = asyncio.run(bind_concurrently())
    assert errors.count("") == 1
    assert len(cluster.writes) == 1


def test_unannotated_pods_are_bound_without_annotations(client: Client) -> None:
    pod = pod_manifest("plain")
    client.feasible(pod, ["a", "w"])
    assert client.place(pod, "w") == ""
    assert client.cluster.writes[0].annotations == {}


def test_an_undescribed_gpu_pod_is_not_bound_to_a_sharing_node(client: Client) -> None:
    pod = pod_manifest("x", limits={"nvidia.com/gpu": "1"})
    client.feasible(pod, ["a", "w"])
    assert "node shares its GPUs" in client.place(pod, "a")
    assert client.place(pod, "w") == ""


def test_the_kubelet_assigns_whole_gpus(client: Client) -> None:
    pod = pod_manifest("x", {"gpu-memory": "30Gi"}, {"nvidia.com/gpu": "2"})
    client.feasible(pod, ["w"])
    assert client.place(pod, "w") == ""
    written = client.cluster.writes[0].annotations
    assert "vramcast.dev/gpu-indices" not in written
    assert written["vramcast.dev/reserved-memory"] == "30Gi"


def test_a_defect_during_the_write_leaves_the_promise_unconfirmed(client: Client) -> None:
    pod = shared_pod("p", "30Gi")
    client.feasible(pod, ["a"])

    def raise_defect(_write: object) -> None:
        raise RuntimeError("boom")

    client.cluster.before_bind = raise_defect
    body = {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "a"}
    response = client.request("POST", "/bind", msgspec.json.encode(body))
    assert response.status == 500
    assert b"boom" not in response.body
    promise = client.service.state.ledger.promise_of(PodUid("uid-p"))
    assert promise is not None
    assert promise.state is State.UNCONFIRMED
