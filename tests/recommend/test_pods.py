"""Workloads from kube-state-metrics, and from names where it says nothing."""

from __future__ import annotations

import pytest

from vramcast.outcomes.readings import Series
from vramcast.recommend.pod_names import guess_owner, without_run
from vramcast.recommend.pods import read_chain, read_pods, resource_name, root_of
from vramcast.recommend.window import PodOwner


def sample(name: str, value: float = 1.0, **labels: str) -> Series:
    return Series({"__name__": name, "namespace": "ml", "pod": "p", "uid": "u", **labels}, ((0.0, value),))


def test_what_a_pod_asked_for_who_made_it_and_how_it_ended() -> None:
    (facts,) = read_pods(
        [
            sample("kube_pod_created", 100.0),
            sample("kube_pod_owner", owner_kind="ReplicaSet", owner_name="server-abc", owner_is_controller="true"),
            sample("kube_pod_owner", owner_kind="Other", owner_name="x", owner_is_controller="false"),
            sample("kube_pod_container_resource_requests", 2, resource="nvidia_com_gpu", container="a"),
            sample("kube_pod_container_resource_requests", 1, resource="nvidia_com_gpu", container="b"),
            sample("kube_pod_container_resource_requests", 8, resource="cpu", container="c"),
            sample("kube_pod_status_phase", 1, phase="Failed"),
            sample("kube_pod_status_phase", 0, phase="Running"),
            sample("kube_pod_completion_time", 200.0),
        ]
    )
    assert (facts.created_at, facts.completed_at, facts.failed) == (100.0, 200.0, True)
    assert (facts.devices, facts.containers) == ({"nvidia.com/gpu": 3}, ("a", "b"))
    chain = read_chain([
        Series({"__name__": "kube_replicaset_owner", "namespace": "ml", "replicaset": "server-abc",
                "owner_kind": "Deployment", "owner_name": "server"}, ((0.0, 1.0),))
    ])  # fmt: skip
    assert facts.owner is not None
    assert root_of("ml", facts.owner, chain) == PodOwner("Deployment", "server")
    assert root_of("other", facts.owner, chain) == facts.owner


@pytest.mark.parametrize("nobody", ["", "<none>"])
def test_a_pod_without_an_owner_has_none(nobody: str) -> None:
    (facts,) = read_pods([sample("kube_pod_owner", owner_kind=nobody, owner_name=nobody)])
    assert facts.owner is None


def test_two_pods_of_one_name_are_two() -> None:
    found = read_pods([sample("kube_pod_created", 1.0), sample("kube_pod_created", 2.0, uid="v")])
    assert [(facts.uid, facts.created_at) for facts in found] == [("u", 1.0), ("v", 2.0)]


def test_renamed_labels_are_read_too() -> None:
    (facts,) = read_pods([sample("kube_pod_created", 1.0, pod="ksm-0", exported_pod="p2", exported_namespace="ml2")])
    assert (facts.namespace, facts.pod) == ("ml2", "p2")


@pytest.mark.parametrize(
    ("label", "resource"),
    [
        ("nvidia_com_gpu", "nvidia.com/gpu"),
        ("nvidia_com_gpu_shared", "nvidia.com/gpu.shared"),
        ("nvidia_com_mig_1g_10gb", "nvidia.com/mig-1g.10gb"),
        ("nvidia_com_mig_1g_10gb_me", "nvidia.com/mig-1g.10gb.me"),
        ("amd_com_gpu", "amd.com/gpu"),
        ("amd_com_cpx_nps4", "amd.com/cpx_nps4"),
        ("cpu", "cpu"),
    ],
)
def test_resources_are_spelled_as_in_a_pod(label: str, resource: str) -> None:
    assert resource_name(label) == resource


@pytest.mark.parametrize(
    ("pod", "kind", "name"),
    [
        ("server-7d4b9c6f5d-x2x9k", "Deployment", "server"),
        ("nightly-29384756-x2x9k", "CronJob", "nightly"),
        ("train-x2x9k", "Job", "train"),
        ("train-bcdfg-x2x9k", "Job", "train"),
        ("tune-worker-0", "Job", "tune"),
        ("db-0", "StatefulSet", "db"),
        ("notebook", "Pod", "notebook"),
        ("train-20261105-120000", "Pod", "train"),
        ("resnet-hello", "Pod", "resnet-hello"),
    ],
)
def test_a_pods_name_shows_its_workload(pod: str, kind: str, name: str) -> None:
    assert guess_owner(pod) == PodOwner(kind, name)


@pytest.mark.parametrize("name", ["train", "x2x9k", "llama-70b", "gpt-2", "bert-large"])
def test_a_name_without_a_generated_part_stays(name: str) -> None:
    assert without_run(name) == name
