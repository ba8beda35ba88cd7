"""Two replicas lose their leader, for good or for a while. docs/high-availability.md explains why that is safe."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.chart.burst import SCHEDULER, run_burst
from tests.chart.conftest import NewReplica, await_leader
from tests.chart.proxy import HoldingProxy
from tests.controlplane import PATIENCE_SECONDS, Api, ApiError, ControlPlane, Recorder, eventually
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node

pytestmark = pytest.mark.e2e


@pytest.fixture
def proxy(plane: ControlPlane) -> Iterator[HoldingProxy]:
    certificates = plane.directory / "certificates"
    with HoldingProxy(plane.url, certificates / "apiserver.crt", certificates / "apiserver.key") as running:
        yield running


def test_one_replica_leads_and_the_other_refuses_to_decide(api: Api, new_replica: NewReplica) -> None:
    replicas = [new_replica(f"vramcast-{n}").start() for n in range(2)]
    leader = await_leader(*replicas)
    (other,) = [replica for replica in replicas if replica is not leader]
    assert not other.leading
    question = {"Pod": shared_pod("asked", "1Gi"), "NodeNames": []}
    assert "on standby" in httpx.post(f"{other.url}/filter", json=question, timeout=PATIENCE_SECONDS).json()["Error"]
    assert not httpx.post(f"{leader.url}/filter", json=question, timeout=PATIENCE_SECONDS).json().get("Error")


def test_the_leader_killed_in_a_burst(api: Api, new_replica: NewReplica) -> None:
    replicas = [new_replica(f"vramcast-{n}").start() for n in range(2)]
    leader = await_leader(*replicas)
    (other,) = [replica for replica in replicas if replica is not leader]

    def kill() -> None:
        leader.kill()
        eventually(lambda: other.leading, what="the other to lead")

    run_burst(api, seed=21, halfway=kill)
    assert other.metric("vramcast_takeovers_total") >= 1


def test_vramcast_restarts_next_to_a_scheduler_that_keeps_the_lease(api: Api, new_replica: NewReplica) -> None:
    replica = new_replica("vramcast-0").start()
    await_leader(replica)
    api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
    replica.service.kill()
    api.create_pod(shared_pod("waits", "10Gi", scheduler=SCHEDULER))
    replica.service.start()
    eventually(lambda: api.pod("waits")["spec"].get("nodeName"), what="the pod to be bound")


def test_a_bind_of_a_paused_leader_that_arrives_after_the_takeover_is_refused(
    plane: ControlPlane, api: Api, new_replica: NewReplica, proxy: HoldingProxy
) -> None:
    """One GPU with room for one of two pods. The late bind is for the pod that the new leader did not choose."""
    _priority_class(api, "urgent", 1000)
    paused = new_replica("vramcast-paused", api_url=proxy.url).start()
    await_leader(paused)
    other = new_replica("vramcast-other").start()
    api.create_nodes([sharing_node("only", A100_40GB, 1)])
    with Recorder(api) as recorder:
        proxy.hold("/pods/late/binding")
        api.create_pod(shared_pod("late", "30Gi", scheduler=SCHEDULER))
        assert proxy.held.wait(PATIENCE_SECONDS), "the leader's Binding never came"
        paused.pause()
        # Its priority is higher than that of the pod with the delayed Binding, so the new leader places it first.
        api.create_pod(shared_pod("urgent", "30Gi", scheduler=SCHEDULER, priorityClassName="urgent"))
        eventually(lambda: api.pod("urgent")["spec"].get("nodeName"), what="the other to take over and bind")
        assert other.leading
        # Only the resource version in the late Binding prevents it: without one, the API server accepts it.
        _bind_dry(api, "late", "only")

        proxy.release()
        eventually(lambda: proxy.answers, what="the API server's answer to the late Binding")
        assert set(proxy.answers) == {"HTTP/1.1 409 Conflict"}
        paused.resume()
        eventually(lambda: not paused.leading, what="the paused replica to notice that it lost the lease")
        question = {"Pod": api.pod("late"), "NodeNames": ["only"]}
        assert (
            "on standby" in httpx.post(f"{paused.url}/filter", json=question, timeout=PATIENCE_SECONDS).json()["Error"]
        )
        history = recorder.sync()
    history.assert_sound()
    assert [event.state.name for event in history.bindings()] == ["urgent"]


def test_the_leader_paused_in_a_burst_and_resumed(api: Api, new_replica: NewReplica) -> None:
    replicas = [new_replica(f"vramcast-{n}").start() for n in range(2)]
    leader = await_leader(*replicas)
    (other,) = [replica for replica in replicas if replica is not leader]

    def pause() -> None:
        leader.pause()
        eventually(lambda: other.leading, what="the other to lead")
        leader.resume()

    run_burst(api, seed=22, halfway=pause)
    assert not leader.leading


def test_without_a_takeover_hardly_any_bind_is_refused(api: Api, new_replica: NewReplica) -> None:
    """A pod that changes between filter and bind is retried. That must stay rare."""
    replica = new_replica("vramcast-0").start()
    await_leader(replica)
    run_burst(api, seed=23, halfway=lambda: None)
    bound = replica.metric("vramcast_binds_total", 'fate="bound"')
    refused = replica.metric("vramcast_binds_total", 'fate="refused"')
    print(f"{bound:.0f} binds, {refused:.0f} refused")
    # The burst deletes pods, so some binds are for pods that are gone.
    assert refused <= 0.05 * bound


def _priority_class(api: Api, name: str, value: int) -> None:
    try:
        body = {"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"}
        api.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def _bind_dry(api: Api, pod: str, node: str) -> None:
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    api.request("POST", f"/api/v1/namespaces/default/pods/{pod}/binding", binding, query={"dryRun": "All"})
