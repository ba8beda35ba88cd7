"""What is read from Kubernetes objects, and what is forgiven in them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.cluster.manifests import Json, node, plain_pod, shared_pod

from vramcast.cluster.readers import Node, to_node
from vramcast.hardware.vendors import SHARED_GPU, WHOLE_GPU
from vramcast.placement.gpus import NodeGpus
from vramcast.task.pod import MAX_COUNT, Ask, Assignment, Pod, PodRecord, parse_count, to_record


def record(manifest: Json) -> PodRecord:
    return to_record(msgspec.json.decode(msgspec.json.encode(manifest), type=Pod))


def gpus(manifest: Json) -> NodeGpus:
    return to_node(msgspec.json.decode(msgspec.json.encode(manifest), type=Node))


def with_spec(**spec: Any) -> Json:
    return {**plain_pod("p"), "spec": spec}


def container(limits: Any = None, requests: Any = None, **fields: Any) -> Json:
    return {"name": "c", "resources": {"limits": limits, "requests": requests}, **fields}


def test_a_described_pod_is_read_in_full() -> None:
    pod = shared_pod("task", "10Gi", resourceVersion="7")
    pod["metadata"]["annotations"] |= {"vramcast.dev/gpu-indices": "1,3", "vramcast.dev/reserved-memory": "11Gi"}
    pod["spec"]["nodeName"] = "n0"
    read = record(pod)
    assert (read.uid, read.key, read.node, read.resource_version) == ("uid-task", "default/task", "n0", "7")
    assert read.task is not None
    assert read.ask == Ask(SHARED_GPU, 1)
    assert read.assignment == Assignment((1, 3), 11 * 1024)


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"metadata": None, "spec": None, "status": None},
        {"metadata": {"name": None, "annotations": None, "labels": None}, "spec": {"containers": None}},
        with_spec(containers=[None, {"resources": None}], initContainers=None, nodeName=None),
        with_spec(containers=[container(limits=None, requests={})]),
        with_spec(containers=[container(limits={"nvidia.com/gpu": "many"})]),
        with_spec(containers=[container(limits={"nvidia.com/gpu": None, "cpu": {"odd": []}})]),
        with_spec(containers=[container(limits={"nvidia.com/gpu": -1})]),
    ],
)
def test_odd_pods_ask_for_nothing_and_never_raise(manifest: Json) -> None:
    assert record(manifest).ask is None


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({"containers": [container({"nvidia.com/gpu": "2"})]}, 2),
        ({"containers": [container({"nvidia.com/gpu": 2})]}, 2),
        ({"containers": [container(requests={"nvidia.com/gpu": "2"})]}, 2),
        ({"containers": [container({"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "2"})]}, 2),
        ({"containers": [container({"nvidia.com/gpu": "1"}), container({"nvidia.com/gpu": "2"})]}, 3),
        ({"containers": [container({"nvidia.com/gpu": "1"})], "initContainers": [container({"nvidia.com/gpu": 4})]}, 4),
        (
            {
                "containers": [container({"nvidia.com/gpu": "1"})],
                "initContainers": [container({"nvidia.com/gpu": "1"}, restartPolicy="Always")],
            },
            2,
        ),
    ],
)
def test_devices_are_counted_as_the_scheduler_counts_them(spec: Json, count: int) -> None:
    assert record(with_spec(**spec)).ask == Ask(WHOLE_GPU, count)


@pytest.mark.parametrize(
    ("value", "count"),
    [
        ("8", 8),
        (8, 8),
        ("0", 0),
        ("1k", 1000),
        ("500m", 1),
        (1.5, 2),
        ("", 0),
        ("eight", 0),
        ("-1", 0),
        (-1, 0),
        (True, 0),
        (None, 0),
        ([8], 0),
        ("9" * 30, MAX_COUNT),
        ("1e999", MAX_COUNT),
        (float("inf"), 0),
        (float("nan"), 0),
    ],
)
def test_a_count_is_a_quantity_or_nothing(value: object, count: int) -> None:
    assert parse_count(value) == count


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Pending", False), ("Running", False), ("Unknown", False), (None, False), ("Succeeded", True), ("Failed", True)],
)
def test_a_pod_is_finished_when_its_phase_says_so(phase: str | None, finished: bool) -> None:
    assert record({**plain_pod("p"), "status": {"phase": phase}}).finished is finished


def test_a_pod_that_is_being_deleted_still_counts() -> None:
    read = record(shared_pod("p", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert not read.finished
    assert read.ask == Ask(SHARED_GPU, 1)


def test_mistakes_in_annotations_are_data() -> None:
    assert record(shared_pod("p", "ten")).invalid is not None


def test_a_node_is_read_from_labels_and_allocatable() -> None:
    shared = gpus(node("n0", gpus=4))
    assert shared.sharing
    assert [pool.count for pool in shared.pools] == [4]
    whole = node("n1")
    whole["metadata"]["labels"].pop("vramcast.dev/gpu-sharing")
    whole["status"]["allocatable"] = {"cpu": "64", "nvidia.com/gpu": 8, "odd": None}
    assert [(pool.resource, pool.count) for pool in gpus(whole).pools] == [(WHOLE_GPU, 8)]


@pytest.mark.parametrize("manifest", [{}, {"metadata": None}, {"metadata": {"name": "n"}, "status": None}])
def test_a_node_without_anything_has_no_gpus(manifest: Json) -> None:
    assert gpus(manifest).pools == ()
