"""The static cluster file, and the cluster in memory that starts from it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from vramcast.cluster.seam import BindingWrite, Cluster, Fate, PodEvent
from vramcast.cluster.static import StaticCluster
from vramcast.cluster.static_file import ClusterFile, read_cluster_file
from vramcast.errors import InvalidClusterFile, InvalidRequest
from vramcast.hardware.vendors import SHARED_GPU, WHOLE_GPU
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeSeen, NodesListed, PodSeen, PodsListed, UnmanagedSeen
from vramcast.placement.gpus import NodeGpus
from vramcast.task.pod import Ask, Assignment, PodRecord

SHORT = """
nodes:
- {name: l40s, product: NVIDIA-L40S, gpus: 2, sharing: true, unmanaged: [0, 18Gi]}
- {name: a10, product: NVIDIA-A10, gpus: 2, replicas: 4}
- {name: odd, product: Some-GPU, gpus: 1, memory: 20Gi}
- {name: mig, product: NVIDIA-A100-SXM4-40GB, mig: {1g.5gb: 3, 3g.20gb: 1}}
pods:
- {name: bert, namespace: ml, node: l40s, annotations: {share: true, gpu-memory: 12Gi, gpu-indices: 0}}
- {name: notebook, node: a10, limits: {nvidia.com/gpu: 1}}
"""


def read(tmp_path: Path, text: str) -> ClusterFile:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    return read_cluster_file(path)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(InvalidClusterFile) as caught:
        read(tmp_path, text)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{tmp_path / 'cluster.yaml'}: ") for line in lines)
    return [line.removeprefix(f"{tmp_path / 'cluster.yaml'}: ") for line in lines]


class Inbox:
    """Collects the changes that a cluster reports."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def __call__(self, changes: Sequence[Change]) -> None:
        self.changes += changes

    def nodes(self) -> dict[str, NodeGpus]:
        return {change.node.name: change.node for change in self.changes if isinstance(change, NodeSeen)}

    def pods(self) -> dict[str, PodRecord]:
        return {change.pod.key: change.pod for change in self.changes if isinstance(change, PodSeen)}


def started(tmp_path: Path, text: str = SHORT) -> tuple[StaticCluster, Inbox]:
    cluster, inbox = StaticCluster(read(tmp_path, text)), Inbox()
    cluster.start(inbox)
    return cluster, inbox


def pod(name: str, **annotations: str) -> dict[str, Any]:
    ours = {f"vramcast.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "ml", "annotations": ours}}


def write(record: PodRecord, node: str = "l40s", uid: str | None = None, **annotations: str) -> BindingWrite:
    ours = {f"vramcast.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return BindingWrite(PodUid(uid or record.uid), record.namespace, record.name, NodeName(node), ours)


# --- the file


def test_the_short_form_describes_nodes(tmp_path: Path) -> None:
    _, inbox = started(tmp_path)
    nodes = inbox.nodes()
    assert all(not node.problem for node in nodes.values())
    assert [(p.resource, p.memory_mib, p.count, p.replicas) for node in nodes.values() for p in node.pools] == [
        (SHARED_GPU, (45448, 45448), 2, 1),
        (WHOLE_GPU, (22528,), 2, 4),
        (WHOLE_GPU, (20 * 1024 - 900,), 1, 1),
        ("nvidia.com/mig-1g.5gb", (4864,), 3, 1),
        ("nvidia.com/mig-3g.20gb", (19456,), 1, 1),
    ]


def test_the_short_form_describes_pods(tmp_path: Path) -> None:
    _, inbox = started(tmp_path)
    bert, notebook = inbox.pods()["ml/bert"], inbox.pods()["default/notebook"]
    assert (bert.node, bert.ask, bert.assignment) == ("l40s", Ask(SHARED_GPU, 1), Assignment((0,), 12288))
    assert (notebook.node, notebook.ask, notebook.task) == ("a10", Ask(WHOLE_GPU, 1), None)
    assert bert.uid != notebook.uid


def test_kubernetes_objects_are_read(tmp_path: Path) -> None:
    objects = """
kind: List
items:
- kind: Node
  metadata: {name: n1, labels: {nvidia.com/gpu.product: Tesla-T4, nvidia.com/gpu.count: "1"}}
  status: {allocatable: {cpu: "8", nvidia.com/gpu: "1"}}
- kind: Node
  metadata: {name: without-gpus}
---
kind: Pod
metadata: {name: p, namespace: ml, uid: u-1, annotations: {vramcast.dev/gpu-memory: 4Gi}}
spec:
  nodeName: n1
  containers: [{name: c, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]
status: {phase: Running}
"""
    _, inbox = started(tmp_path, objects)
    assert set(inbox.nodes()) == {"n1", "without-gpus"}
    assert (inbox.pods()["ml/p"].uid, inbox.pods()["ml/p"].node) == ("u-1", "n1")


def test_both_forms_may_be_in_one_list(tmp_path: Path) -> None:
    text = """
nodes:
- {name: short, product: Tesla-T4, gpus: 1}
- metadata: {name: long, labels: {nvidia.com/gpu.product: Tesla-T4, nvidia.com/gpu.count: "2"}}
pods:
- metadata: {name: p}
  spec: {nodeName: long}
"""
    _, inbox = started(tmp_path, text)
    assert {name: node.pools[0].count for name, node in inbox.nodes().items()} == {"short": 1, "long": 2}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: [{name: a, product: Tesla-T4, gpus: many}]", "nodes[0].gpus: 'many' is not valid: expected a whole"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: -1}]", "nodes[0].gpus: '-1' is not valid"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: 99}]", "from 1 to 32"),
        ("nodes: [{name: a, product: Tesla-T4}]", "nodes[0].gpus: '' is not valid: expected the node's number of GPUs"),
        ("nodes: [{name: a, product: Tesla-T5, gpus: 1}]", "nodes[0]: 'a' is not valid: the GPU memory is not known"),
        ("nodes: [{name: a, product: Tesla-T4, gpu: 1, gpus: 1}]", "nodes[0].gpu: '1' is not valid: there is no"),
        ("nodes: [{name: a, product: x, gpus: 1, memory: 40GB}]", "did you mean 40G?"),
        ("nodes: [{name: a, product: x, gpus: 1, memory: 40}]", "nodes[0].memory: '40' is not valid: expected the mem"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: 1, sharing: maybe}]", "nodes[0].sharing: 'maybe'"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: 1, replicas: 0}]", "nodes[0].replicas: '0'"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: 1, unmanaged: 5Gi}]", "nodes[0].unmanaged: '5Gi'"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: 1, unmanaged: [-5Gi]}]", "nodes[0].unmanaged[0]: '-5Gi'"),
        ("nodes: [{name: a, product: Tesla-T4, mig: {tiny: 1}}]", "nodes[0].mig.tiny: 'tiny' is not valid: expected a"),
        ("nodes: [{name: a, product: Tesla-T4, gpus: 1, sharing: true, mig: {1g.5gb: 1}}]", "use MIG, not both"),
        ("nodes: [{name: A_b, product: Tesla-T4, gpus: 1}]", "nodes[0].name: 'A_b' is not valid"),
        ("nodes: [{product: Tesla-T4, gpus: 1}]", "nodes[0].name: '' is not valid: expected a name"),
        ("nodes: [{name: a, product: 4, gpus: 1}]", "nodes[0].product: '4' is not valid: expected a string"),
        ("nodes: [a]", "nodes[0]: 'a' is not valid: expected a mapping"),
        ("nodes: 5", "nodes: '5' is not valid: expected a list"),
        ("node: []", "node: '[]' is not valid: there is no such key; did you mean nodes?"),
        ("- name: a", "expected `nodes:` and `pods:`"),
        ("kind: Deployment", "kind: 'Deployment' is not valid: expected Node, Pod or List"),
        ("kind: Node\nmetadata: {name: a, labels: {x: 1}}", "Expected `str`, got `int`"),
        ("", "nodes: '' is not valid: expected at least one node"),
        ("a: b: c", "is not YAML"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_place_its_value_and_what_is_expected(tmp_path: Path, text: str, expected: str) -> None:
    (line,) = mistakes(tmp_path, text)
    assert expected in line


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{name: p, node: elsewhere}", "pods[0]: node: 'elsewhere' is not valid: expected a node of this file"),
        ("{name: p, limits: {nvidia.com/gpu: lots}}", "pods[0].limits.nvidia.com/gpu: 'lots'"),
        ("{name: p, limits: {cpu: 1}}", "expected a GPU resource"),
        ("{name: p, annotations: {batch_size: 4}}", "did you mean vramcast.dev/batch-size?"),
        ("{name: p, annotations: {gpu-memory: [1]}}", "pods[0].annotations.gpu-memory: '[1]'"),
        ("{name: p, annotations: none}", "pods[0].annotations: 'none'"),
        ("{name: p, nodename: n}", "did you mean node?"),
        ("{node: n}", "pods[0].name: ''"),
    ],
)
def test_a_mistake_in_a_pod_is_reported_the_same_way(tmp_path: Path, entry: str, expected: str) -> None:
    (line,) = mistakes(tmp_path, f"nodes: [{{name: n, product: Tesla-T4, gpus: 1}}]\npods: [{entry}]")
    assert expected in line


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    text = "nodes: [{name: n, gpus: x}, {name: m, product: Tesla-T4, gpus: 1, memory: 1GB}]\npods: [{nam: p}]"
    assert len(mistakes(tmp_path, text)) == 4


def test_names_must_be_unique(tmp_path: Path) -> None:
    text = "nodes: [{name: n, product: Tesla-T4, gpus: 1}, {name: n, product: Tesla-T4, gpus: 2}]"
    assert "each node once" in mistakes(tmp_path, text)[0]
    text = "nodes: [{name: n, product: Tesla-T4, gpus: 1}]\npods: [{name: p}, {name: p}]"
    assert "each pod once, it is also pods[0]" in mistakes(tmp_path, text)[0]


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidClusterFile, match=r"nowhere\.yaml: cannot be read"):
        StaticCluster.from_file(tmp_path / "nowhere.yaml")


# --- the Cluster interface


def test_it_is_a_cluster(tmp_path: Path) -> None:
    cluster: Cluster = started(tmp_path)[0]
    assert cluster.health().synced
    assert cluster.stats().events > 0


def test_the_first_report_is_complete_and_in_order(tmp_path: Path) -> None:
    _, inbox = started(tmp_path)
    kinds = [type(change) for change in inbox.changes]
    assert kinds == [*[NodeSeen] * 4, NodesListed, UnmanagedSeen, PodSeen, PodSeen, PodsListed]
    unmanaged = next(change for change in inbox.changes if isinstance(change, UnmanagedSeen))
    assert (unmanaged.name, unmanaged.used_mib) == ("l40s", (0, 18 * 1024))


def test_a_bind_sets_node_and_annotations_in_one_report(tmp_path: Path) -> None:
    cluster, inbox = started(tmp_path)
    record = cluster.create_pod(pod("a", share="true", gpu_memory="8Gi"))
    inbox.changes.clear()
    result = cluster.bind(write(record, reserved_memory="8Gi", gpu_indices="1"))
    assert result.fate is Fate.BOUND
    (change,) = inbox.changes
    assert isinstance(change, PodSeen)
    assert (change.pod.node, change.pod.assignment) == ("l40s", Assignment((1,), 8192))
    assert cluster.read_pod("ml", "a") == change.pod


def test_a_repeated_bind_succeeds_and_is_reported_once(tmp_path: Path) -> None:
    cluster, inbox = started(tmp_path)
    record = cluster.create_pod(pod("a"))
    cluster.bind(write(record))
    inbox.changes.clear()
    assert cluster.bind(write(record)).fate is Fate.BOUND
    assert inbox.changes == []


@pytest.mark.parametrize(
    ("node", "uid", "expected"),
    [
        ("a10", None, "is already on node l40s"),
        ("nowhere", None, "there is no node nowhere"),
        ("l40s", "another", "with UID another is not in this static cluster"),
    ],
)
def test_a_contradicting_bind_is_refused(tmp_path: Path, node: str, uid: str | None, expected: str) -> None:
    cluster, _ = started(tmp_path)
    record = cluster.create_pod(pod("a"))
    cluster.bind(write(record))
    result = cluster.bind(write(record, node, uid))
    assert result.fate is Fate.REFUSED
    assert expected in result.message


def test_another_assignment_on_the_same_node_is_refused(tmp_path: Path) -> None:
    cluster, _ = started(tmp_path)
    record = cluster.create_pod(pod("a"))
    cluster.bind(write(record, gpu_indices="0"))
    assert cluster.bind(write(record, gpu_indices="1")).fate is Fate.REFUSED


def test_a_finished_pod_is_reported_and_cannot_be_bound(tmp_path: Path) -> None:
    cluster, inbox = started(tmp_path)
    record = cluster.create_pod(pod("a"))
    assert cluster.finish_pod("ml", "a")
    assert inbox.pods()["ml/a"].finished
    assert cluster.bind(write(record)).fate is Fate.REFUSED
    assert not cluster.finish_pod("ml", "nobody")


def test_a_pod_is_valid_and_created_once(tmp_path: Path) -> None:
    cluster, _ = started(tmp_path)
    cluster.create_pod(pod("a"))
    with pytest.raises(InvalidRequest, match="ml/a exists already"):
        cluster.create_pod(pod("a"))
    with pytest.raises(InvalidRequest, match="not a Pod"):
        cluster.create_pod({"metadata": "x"})
    with pytest.raises(InvalidRequest, match=r"metadata\.name"):
        cluster.create_pod({})


def test_after_stop_nothing_is_reported(tmp_path: Path) -> None:
    cluster, inbox = started(tmp_path)
    cluster.stop()
    inbox.changes.clear()
    cluster.create_pod(pod("a"))
    assert inbox.changes == []
    assert cluster.stopped.is_set()


def test_the_last_events_are_kept_for_display(tmp_path: Path) -> None:
    cluster, _ = started(tmp_path)
    for n in range(300):
        cluster.post_event(PodEvent(PodUid("u"), "ml", "a", False, "Reason", str(n)))
    assert (len(cluster.events), cluster.events[-1].message) == (200, "299")


def test_of_many_concurrent_binds_one_wins(tmp_path: Path) -> None:
    cluster, inbox = started(tmp_path)
    record = cluster.create_pod(pod("a"))
    fates: list[Fate] = []
    threads = [
        threading.Thread(target=lambda n=n: fates.append(cluster.bind(write(record, gpu_indices=str(n))).fate))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(fates) == [Fate.BOUND, *[Fate.REFUSED] * 7]
    assert sum(isinstance(change, PodSeen) and change.pod.node is not None for change in inbox.changes) == 3
