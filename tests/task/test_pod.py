from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cluster.manifests import Json, plain_pod, shared_pod

from vramcast.hardware.vendors import MAX_GPUS, SHARED_GPU, WHOLE_GPU
from vramcast.names import NodeName, PodUid
from vramcast.task.pod import (
    MAX_COUNT,
    MAX_DEVICES,
    Ask,
    Assignment,
    ContainerDevices,
    Pod,
    PodRecord,
    parse_count,
    read_pod,
    to_record,
)
from vramcast.task.task import Task
from vramcast.task.vocabulary import PREFIX, Written

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.5gb"
GIVEN = {PREFIX + "gpu-memory": "10Gi"}
SHARED = {**GIVEN, PREFIX + "share": "true"}


def app(count: int, resource: str = GPU) -> ContainerDevices:
    return ContainerDevices({resource: count})


def init(count: int, resource: str = GPU) -> ContainerDevices:
    return ContainerDevices({resource: count}, init=True)


def sidecar(count: int, resource: str = GPU) -> ContainerDevices:
    return ContainerDevices({resource: count}, init=True, restartable=True)


def pod(
    annotations: dict[str, str], *containers: ContainerDevices, node: str | None = None, finished: bool = False
) -> PodRecord:
    where = NodeName(node) if node else None
    return read_pod(PodUid("u"), "ml", "train", annotations, containers, where, finished)


def error_text(record: PodRecord) -> str:
    assert record.invalid is not None
    assert record.task is None
    return str(record.invalid)


@pytest.mark.parametrize(
    ("containers", "count"),
    [
        ([app(1)], 1),
        ([app(1), app(2)], 3),
        ([init(1), app(1)], 1),
        ([init(4), app(1)], 4),
        ([init(2), init(3)], 3),
        ([sidecar(1), app(1)], 2),
        ([sidecar(1), init(2), app(1)], 3),
        ([init(2), sidecar(1), app(1)], 2),
        ([app(0), app(1)], 1),
        ([app(-1), app(1)], 1),
    ],
)
def test_devices_are_counted_as_the_scheduler_counts_them(containers: list[ContainerDevices], count: int) -> None:
    assert pod(GIVEN, *containers).ask == Ask(GPU, count)


SHARDED = {PREFIX + "model": "hf/gpt2", PREFIX + "zero-stage": "3", PREFIX + "data-parallel-size": "64"}


def test_states_sharded_over_more_gpus_than_the_pod_has_are_told() -> None:
    """The job may span pods, so it is no mistake. If it does not, the forecast is far too low."""
    record = pod(SHARDED, app(4))
    assert record.task is not None
    assert "data-parallel-size 64, so the job has other pods than this one with 4 GPUs" in record.task.assumptions


@pytest.mark.parametrize(
    ("annotations", "gpus"),
    [(SHARDED, 64), ({**SHARDED, PREFIX + "zero-stage": "0"}, 4), ({**SHARDED, **GIVEN}, 4)],
    ids=["enough GPUs", "nothing is sharded", "nothing is forecast"],
)
def test_a_data_parallel_size_without_consequence_is_not_mentioned(annotations: dict[str, str], gpus: int) -> None:
    record = pod(annotations, app(gpus))
    assert record.task is not None
    assert not any("data-parallel-size" in note for note in record.task.assumptions)


def test_a_pod_without_devices_and_annotations_asks_for_nothing() -> None:
    record = pod({}, ContainerDevices({"cpu": 4, "example.com/fpga": 1}))
    assert (record.ask, record.task, record.invalid) == (None, None, None)


def test_an_undescribed_pod_still_asks_for_its_devices() -> None:
    record = pod({}, app(2))
    assert (record.ask, record.task) == (Ask(GPU, 2), None)


def test_a_mig_device_is_asked_for_by_its_profile() -> None:
    assert pod(GIVEN, app(1, MIG)).ask == Ask(MIG, 1)


def test_a_sharing_pod_asks_for_shared_gpus() -> None:
    assert pod(SHARED).ask == Ask(SHARED_GPU, 1)
    assert pod({**SHARED, PREFIX + "gpus": "4"}).ask == Ask(SHARED_GPU, 4)


@pytest.mark.parametrize(
    ("annotations", "containers", "expected"),
    [
        (GIVEN, [], "the pod asks for no GPU"),
        (SHARED, [app(1)], "contradicts resources.limits nvidia.com/gpu: 1"),
        ({**GIVEN, PREFIX + "gpus": "2"}, [app(1)], "contradicts resources.limits nvidia.com/gpu: 1"),
        ({**SHARED, PREFIX + "gpus": "33"}, [], f"at most {MAX_GPUS}"),
        (GIVEN, [app(1), app(1, MIG)], "one kind of GPU device"),
        ({PREFIX + "batch_size": "1"}, [app(1)], "did you mean vramcast.dev/batch-size?"),
    ],
)
def test_contradictions_between_annotations_and_devices_are_reported(
    annotations: dict[str, str], containers: list[ContainerDevices], expected: str
) -> None:
    assert expected in error_text(pod(annotations, *containers))


def test_the_gpus_annotation_may_repeat_the_number_in_the_limits() -> None:
    record = pod({**GIVEN, PREFIX + "gpus": "2"}, app(2))
    assert isinstance(record.task, Task)
    assert record.ask == Ask(GPU, 2)


def test_a_pod_with_invalid_annotations_still_asks_for_its_devices() -> None:
    assert pod({PREFIX + "typo": "1"}, app(2)).ask == Ask(GPU, 2)


def test_an_absurd_number_of_devices_is_capped() -> None:
    assert pod(GIVEN, app(10**18), app(10**18)).ask == Ask(GPU, MAX_DEVICES)


# ---------------------------------------------------------------------- what an earlier bind wrote


def written(reserved: str, indices: str | None = None) -> dict[str, str]:
    more = {} if indices is None else {Written.GPU_INDICES.value: indices}
    return {Written.RESERVED_MEMORY.value: reserved, **more}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        (written("10Gi", "0"), Assignment((0,), 10240)),
        (written("10Gi", "1,3"), Assignment((1, 3), 10240)),
        (written("10Gi", " 1, 3,"), Assignment((1, 3), 10240)),
        (written("10Gi", "1,1"), Assignment((1,), 10240)),
        (written("10Gi"), Assignment((), 10240)),
        (written("1048577"), Assignment((), 2)),
        (written("10Gi", "a"), None),
        (written("10Gi", "-1"), None),
        (written("10Gi", "32"), None),
        (written("10Gi", "9" * 5000), None),
        (written("10GB", "0"), None),
        (written("-1Gi", "0"), None),
        (written("1e300", "0"), None),
        (written("", "0"), None),
        ({Written.GPU_INDICES.value: "0"}, None),
    ],
)
def test_a_valid_assignment_is_read_and_an_invalid_one_is_ignored(
    annotations: dict[str, str], expected: Assignment | None
) -> None:
    assert pod({**SHARED, **annotations}, node="n1").assignment == expected


def test_an_assignment_on_an_unbound_pod_is_ignored() -> None:
    assert pod({**SHARED, **written("10Gi", "0")}).assignment is None


@pytest.mark.parametrize("edited", [{}, {PREFIX + "batch_size": "1"}, GIVEN])
def test_an_assignment_survives_later_edits_of_the_other_annotations(edited: dict[str, str]) -> None:
    record = pod({**edited, **written("10Gi", "0,1")}, node="n1")
    assert record.ask == Ask(SHARED_GPU, 2)
    assert record.assignment == Assignment((0, 1), 10240)


_ANNOTATIONS = st.dictionaries(
    st.sampled_from([*(PREFIX + k for k in ("gpu-memory", "share", "gpus", "model", "oops")), *Written]),
    st.one_of(st.text(max_size=12), st.sampled_from(["true", "10Gi", "0,1", "2", "1e999", "-1"])),
)
_CONTAINERS = st.lists(
    st.builds(
        ContainerDevices,
        st.dictionaries(st.sampled_from([GPU, MIG, "cpu"]), st.integers(-(2**70), 2**70), max_size=2),
        st.booleans(),
        st.booleans(),
    ),
    max_size=4,
)


@given(_ANNOTATIONS, _CONTAINERS, st.sampled_from([None, "n1"]))
def test_any_pod_can_be_read(annotations: dict[str, str], containers: list[ContainerDevices], node: str | None) -> None:
    record = pod(annotations, *containers, node=node)
    assert record.key == "ml/train"
    assert record.task is None or record.ask is not None
    assert record.ask is None or 1 <= record.ask.count <= MAX_DEVICES


# ---------------------------------------------------------------------- manifests


def record(manifest: Json) -> PodRecord:
    return to_record(msgspec.json.decode(msgspec.json.encode(manifest), type=Pod))


def with_spec(**spec: Any) -> Json:
    return {**plain_pod("p"), "spec": spec}


def container(limits: Any = None, requests: Any = None, **fields: Any) -> Json:
    return {"name": "c", "resources": {"limits": limits, "requests": requests}, **fields}


def test_a_described_pod_is_read_in_full() -> None:
    manifest = shared_pod("task", "10Gi", resourceVersion="7")
    manifest["metadata"]["annotations"] |= {"vramcast.dev/gpu-indices": "1,3", "vramcast.dev/reserved-memory": "11Gi"}
    manifest["spec"]["nodeName"] = "n0"
    read = record(manifest)
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
def test_malformed_pods_ask_for_nothing_and_never_raise(manifest: Json) -> None:
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
def test_limits_and_requests_of_all_containers_are_counted(spec: Json, count: int) -> None:
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
def test_a_count_is_a_quantity_or_else_zero(value: object, count: int) -> None:
    assert parse_count(value) == count


@pytest.mark.parametrize(
    ("phase", "finished"),
    [("Pending", False), ("Running", False), ("Unknown", False), (None, False), ("Succeeded", True), ("Failed", True)],
)
def test_a_pod_is_finished_once_it_succeeded_or_failed(phase: str | None, finished: bool) -> None:
    assert record({**plain_pod("p"), "status": {"phase": phase}}).finished is finished


def test_a_pod_that_is_being_deleted_still_counts() -> None:
    read = record(shared_pod("p", deletionTimestamp="2026-01-01T00:00:00Z"))
    assert not read.finished
    assert read.ask == Ask(SHARED_GPU, 1)


def test_invalid_annotations_are_recorded_and_not_raised() -> None:
    assert record(shared_pod("p", "ten")).invalid is not None
