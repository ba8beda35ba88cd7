"""KubernetesCluster against a real API server, with only the permissions of the chart's ClusterRole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.watching import StateSink
from tests.controlplane import Api, ControlPlane, eventually
from tests.controlplane.objects import A100, pod, shared_pod, sharing_node, whole_gpu_pod
from vramcast.cluster.kubernetes import KubernetesCluster
from vramcast.cluster.seam import BindingWrite, Fate, PodEvent
from vramcast.names import NodeName, PodUid
from vramcast.task.task import REQUEUE
from vramcast.task.vocabulary import Written

pytestmark = pytest.mark.e2e

RULES = Path(__file__).parents[2] / "helm" / "vramcast" / "files" / "rules.yaml"
ASSIGNMENT = {Written.GPU_INDICES.value: "3", Written.RESERVED_MEMORY.value: "10Gi"}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        yield running


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    yield plane.api
    plane.api.clear()


@pytest.fixture
def cluster(plane: ControlPlane) -> Iterator[KubernetesCluster]:
    kubeconfig = plane.kubeconfig_for("vramcast", RULES)
    running = KubernetesCluster.from_environment({"KUBECONFIG": str(kubeconfig)})
    yield running
    running.stop()


@pytest.fixture
def seen(cluster: KubernetesCluster) -> StateSink:
    sink = StateSink()
    cluster.start(sink)
    eventually(lambda: cluster.health().synced, what="both lists")
    return sink


def write_for(created: dict[str, Any], node: str = "gpu-0", **annotations: str) -> BindingWrite:
    metadata = created["metadata"]
    uid = PodUid(metadata["uid"])
    return BindingWrite(uid, metadata["namespace"], metadata["name"], NodeName(node), {**ASSIGNMENT, **annotations})


def test_existing_and_new_objects_are_reported(api: Api, cluster: KubernetesCluster) -> None:
    api.create_nodes([sharing_node("gpu-0", A100, 8)])
    before = api.create_pod(shared_pod("before", "10Gi", scheduler="nobody"))
    seen = StateSink()
    cluster.start(seen)
    seen.until(lambda s: before["metadata"]["uid"] in s.pods)
    assert seen.nodes["gpu-0"].pools[0].count == 8
    after = api.create_pod(whole_gpu_pod("after", scheduler="nobody"))
    api.create_pod(pod("web", scheduler="nobody"))
    seen.until(lambda s: after["metadata"]["uid"] in s.pods)
    assert {record.name for record in seen.pods.values()} == {"before", "after"}
    eventually(lambda: cluster.health().detail == "watching nodes; watching pods")
    assert cluster.health().stale_seconds < 60


def test_a_bind_writes_node_and_assignment_and_the_watch_shows_both(
    api: Api, cluster: KubernetesCluster, seen: StateSink
) -> None:
    api.create_nodes([sharing_node("gpu-0")])
    created = api.create_pod(shared_pod("task", scheduler="nobody"))
    write = write_for(created)
    assert cluster.bind(write).fate is Fate.BOUND
    record = cluster.read_pod("default", "task")
    assert record is not None
    assert record.node == "gpu-0"
    assert record.assignment is not None
    assert record.assignment.gpu_indices == (3,)
    seen.until(lambda s: write.uid in s.pods and s.pods[write.uid].assignment == record.assignment)


def test_only_the_same_bind_may_be_repeated(api: Api, cluster: KubernetesCluster) -> None:
    api.create_nodes([sharing_node("gpu-0"), sharing_node("gpu-1")])
    created = api.create_pod(shared_pod("task", scheduler="nobody"))
    assert cluster.bind(write_for(created)).fate is Fate.BOUND
    assert cluster.bind(write_for(created)).fate is Fate.BOUND
    elsewhere = cluster.bind(write_for(created, "gpu-1"))
    assert elsewhere.fate is Fate.REFUSED
    assert "already on node gpu-0" in elsewhere.message
    other_gpu = cluster.bind(write_for(created, **{Written.GPU_INDICES: "5"}))
    assert other_gpu.fate is Fate.REFUSED
    assert "another assignment" in other_gpu.message


def test_a_new_pod_with_the_same_name_is_not_bound(api: Api, cluster: KubernetesCluster) -> None:
    api.create_nodes([sharing_node("gpu-0")])
    first = api.create_pod(shared_pod("task", scheduler="nobody"))
    api.delete_pod("task")
    assert cluster.bind(write_for(first)).fate is Fate.REFUSED
    second = api.create_pod(shared_pod("task", scheduler="nobody"))
    result = cluster.bind(write_for(first))
    assert result.fate is Fate.REFUSED
    assert "does not exist any more" in result.message
    assert "nodeName" not in api.pod("task")["spec"]
    assert cluster.bind(write_for(second)).fate is Fate.BOUND


def test_deleted_and_finished_pods_are_reported(api: Api, seen: StateSink) -> None:
    for name in ("deleted", "finished"):
        api.create_pod(shared_pod(name, scheduler="nobody"))
    seen.until(lambda s: len(s.pods) == 2)
    api.delete_pod("deleted")
    api.finish_pod("finished")
    seen.until(lambda s: not s.pods)


def test_a_requeue_changes_only_its_annotation(api: Api, cluster: KubernetesCluster) -> None:
    uid = PodUid(api.create_pod(shared_pod("task", scheduler="nobody"))["metadata"]["uid"])
    cluster.requeue("default", "task", uid)
    touched = api.pod("task")["metadata"]["annotations"][REQUEUE]
    cluster.requeue("default", "task", uid)
    assert api.pod("task")["metadata"]["annotations"][REQUEUE] != touched
    record = cluster.read_pod("default", "task")
    assert record is not None
    assert record.invalid is None
    cluster.requeue("default", "task", PodUid("another"))
    cluster.requeue("default", "nobody", uid)


def test_an_event_is_posted_once(api: Api, cluster: KubernetesCluster, seen: StateSink) -> None:
    uid = PodUid(api.create_pod(shared_pod("task", scheduler="nobody"))["metadata"]["uid"])
    event = PodEvent(uid, "default", "task", warning=True, reason="InvalidAnnotations", message="no such key")
    cluster.post_event(event)
    cluster.post_event(event)
    eventually(lambda: cluster.event_stats().posted == 1)
    events = api.events(about="task")
    assert [(e["type"], e["reason"], e["message"]) for e in events] == [
        ("Warning", "InvalidAnnotations", "no such key")
    ]
    assert cluster.event_stats().repeated == 1


def test_no_change_is_lost_when_the_api_server_restarts(
    plane: ControlPlane, api: Api, cluster: KubernetesCluster, seen: StateSink
) -> None:
    api.create_nodes([sharing_node("gpu-0")])
    created = api.create_pods([shared_pod(f"task-{i}", "1Gi", scheduler="nobody") for i in range(20)])
    seen.until(lambda s: len(s.pods) == 20)
    plane.apiserver.kill()
    # Nothing listens on the port, so nothing was sent: the refusal is certain.
    assert cluster.bind(write_for(created[0])).fate is Fate.REFUSED
    eventually(lambda: not any(watch.connected for watch in cluster.watch_stats()))
    # A watch may hear from the new server before this thread knows that it is ready.
    started_at = time.monotonic()
    plane.start_apiserver()
    api.delete_pods([f"task-{i}" for i in range(10)])
    more = api.create_pods([shared_pod(f"more-{i}", "1Gi", scheduler="nobody") for i in range(10)])
    assert cluster.bind(write_for(created[10])).fate is Fate.BOUND
    expected = {p["metadata"]["uid"] for p in [*created[10:], *more]}
    seen.until(lambda s: s.pods.keys() == expected and s.pods[created[10]["metadata"]["uid"]].node == "gpu-0")
    eventually(lambda: cluster.health().stale_seconds < time.monotonic() - started_at, what="news on both watches")


def test_a_missing_permission_is_named(plane: ControlPlane, api: Api) -> None:
    role = yaml.safe_load(RULES.read_text())
    role["metadata"]["name"] = "without-binding"
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] not in (["pods/binding"], ["nodes"])]
    kubeconfig = plane.kubeconfig_for("powerless", [role])
    created = api.create_pod(shared_pod("task", scheduler="nobody"))
    powerless = KubernetesCluster.from_environment({"KUBECONFIG": str(kubeconfig)})
    try:
        result = powerless.bind(write_for(created))
        assert result.fate is Fate.REFUSED
        assert "allow verb 'create' on 'pods/binding' in ClusterRole vramcast-extender" in result.message
        powerless.start(StateSink())
        eventually(lambda: "allow verb 'list' on 'nodes'" in powerless.health().detail)
        assert not powerless.health().synced
    finally:
        powerless.stop()
