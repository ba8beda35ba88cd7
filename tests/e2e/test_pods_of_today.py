"""Pods that wait between filter and bind, gangs and preemption, with the chart's default mode.

The replica is the chart's pod: a kube-scheduler that holds a Lease, and a vramcast that follows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.chart.replica import Replica
from tests.controlplane import Api, ControlPlane, Recorder, eventually
from tests.controlplane.objects import shared_pod
from tests.controlplane.today import (
    VolumeBinder,
    clear_today,
    create_claim,
    create_devices,
    create_gang,
    create_volume_claim,
)
from tests.e2e.todays_cluster import (
    SCHEDULER,
    create_gpu_nodes,
    node_of,
    place,
    todays_plane,
    todays_replica,
    unschedulable,
)

pytestmark = pytest.mark.e2e

# A second on a quiet machine. A pod that waits for another one's hold to expire takes at least 30 s.
SOON_SECONDS = 25.0
Json = dict[str, Any]


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with todays_plane() as running:
        yield running


@pytest.fixture(scope="module")
def replica(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One replica for all tests. It learns nothing that matters to them."""
    with todays_replica(plane, tmp_path_factory.mktemp("replica")) as running:
        yield running


@pytest.fixture
def api(plane: ControlPlane, replica: Replica, request: pytest.FixtureRequest) -> Iterator[Api]:
    request.node.replicas = [replica]
    plane.api.clear()
    clear_today(plane.api)
    yield plane.api
    plane.api.clear()
    clear_today(plane.api)


def test_a_pod_with_a_device_claim(api: Api, replica: Replica) -> None:
    create_gpu_nodes(api, 2)
    for node in ("gpu-00", "gpu-01"):
        create_devices(api, node)
    claims = create_claim(api, "claim")
    seconds, refused = place(api, replica, shared_pod("claims", "30Gi", scheduler=SCHEDULER, **claims))
    assert seconds < SOON_SECONDS
    assert refused == 0
    assert api.pod("claims")["metadata"]["annotations"]["vramcast.dev/reserved-memory"] == "30Gi"


def test_a_pod_with_a_volume_that_is_made_for_its_node(api: Api, replica: Replica) -> None:
    create_gpu_nodes(api, 2)
    volume = create_volume_claim(api, "data")
    with VolumeBinder(api):
        seconds, refused = place(api, replica, shared_pod("writes", "30Gi", scheduler=SCHEDULER, **volume))
    assert seconds < SOON_SECONDS
    assert refused == 0


def test_a_pod_that_waits_for_its_volume_leaves_the_other_nodes_to_others(api: Api, replica: Replica) -> None:
    """Two GPUs, and room for one pod on each. The hold shrinks to the node that the scheduler chose."""
    create_gpu_nodes(api, 2)
    api.create_pod(shared_pod("waits", "30Gi", scheduler=SCHEDULER, **create_volume_claim(api, "data")))
    eventually(lambda: api.pod("waits")["status"].get("nominatedNodeName"), what="the scheduler to choose")
    chosen = api.pod("waits")["status"]["nominatedNodeName"]
    seconds, _ = place(api, replica, shared_pod("other", "30Gi", scheduler=SCHEDULER))
    assert seconds < SOON_SECONDS
    assert node_of(api, "other") != chosen
    with VolumeBinder(api):
        eventually(lambda: node_of(api, "waits"), what="the waiting pod to be bound")
    assert node_of(api, "waits") == chosen


def test_a_gang_on_a_cluster_with_room(api: Api, replica: Replica) -> None:
    create_gpu_nodes(api, 17)
    gang = create_gang(api, "gang", 4)
    members = [shared_pod(f"member-{number}", "30Gi", scheduler=SCHEDULER, **gang) for number in range(4)]
    seconds, refused = place(api, replica, *members)
    assert seconds < SOON_SECONDS
    assert refused == 0


def test_a_gang_that_fits_exactly(api: Api, replica: Replica) -> None:
    """The scheduler filters all members before it reports any choice."""
    create_gpu_nodes(api, 2)
    gang = create_gang(api, "gang", 2)
    with Recorder(api) as recorder:
        members = [shared_pod(name, "30Gi", scheduler=SCHEDULER, **gang) for name in ("one", "two")]
        seconds, _ = place(api, replica, *members)
        history = recorder.sync()
    assert seconds < SOON_SECONDS
    history.assert_sound()


def test_a_single_pod_next_to_a_gang_that_does_not_fit(api: Api, replica: Replica) -> None:
    create_gpu_nodes(api, 2)
    gang = create_gang(api, "gang", 3)
    names = [f"member-{number}" for number in range(3)]
    api.create_pods([shared_pod(name, "30Gi", scheduler=SCHEDULER, **gang) for name in names])
    eventually(lambda: all(unschedulable(api.pod(name)) for name in names), what="the gang to be unschedulable")
    slowest = 0.0
    for number in range(5):
        # The gang is retried after every one of these events, and holds room each time.
        single = shared_pod(f"single-{number}", "30Gi", scheduler=SCHEDULER)
        slowest = max(slowest, place(api, replica, single)[0])
        api.delete_pod(f"single-{number}")
    assert slowest < SOON_SECONDS
    assert not any(node_of(api, name) for name in names)


def _why_pending(api: Api, name: str) -> str:
    conditions = api.pod(name)["status"].get("conditions", [])
    return " ".join(condition.get("message", "") for condition in conditions)


def test_preemption_evicts_the_lowest_sufficient_pods(api: Api, replica: Replica) -> None:
    """The scheduler's own filters need one eviction, for the CPU. vramcast adds those that the GPU needs."""
    create_gpu_nodes(api, 1, cpu="2")
    small = {"resources": {"cpu": "100m"}, "scheduler": SCHEDULER}
    place(
        api,
        replica,
        shared_pod("cpu-hog", "5Gi", resources={"cpu": "1500m"}, scheduler=SCHEDULER),
        shared_pod("gpu-hog", "20Gi", **small),
        shared_pod("spared", "10Gi", priorityClassName="medium", **small),
    )
    urgent = shared_pod("urgent", "24Gi", priorityClassName="high", resources={"cpu": "1"}, scheduler=SCHEDULER)
    place(api, replica, urgent)
    assert {pod["metadata"]["name"] for pod in api.pods()} == {"spared", "urgent"}


def test_a_shortage_of_gpu_memory_alone_evicts_nobody_yet(api: Api, replica: Replica) -> None:
    """Up to 1.36 the dry run spares every pod whose eviction the scheduler's own filters do not need.

    If this test fails, the scheduler asks about such nodes, and docs/how-it-decides.md must say so.
    """
    create_gpu_nodes(api, 1)
    place(api, replica, shared_pod("low", "30Gi", scheduler=SCHEDULER))
    api.create_pod(shared_pod("urgent", "30Gi", priorityClassName="high", scheduler=SCHEDULER))
    eventually(lambda: unschedulable(api.pod("urgent")), what="the pod to be unschedulable")
    # The scheduler has looked for victims before it says so.
    eventually(lambda: "preemption: " in _why_pending(api, "urgent"), what="its dry run")
    assert node_of(api, "low")
    assert not node_of(api, "urgent")
    api.delete_pod("low")
    eventually(lambda: node_of(api, "urgent"), what="the pod to be bound")
