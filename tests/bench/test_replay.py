"""The replay of openb, on a made-up log of the kube-scheduler."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from bench.cluster.packing import Cluster, Node, Pod, allocated
from bench.cluster.replay import (
    LEAST,
    MOST,
    VRAMCAST,
    WAITING,
    Progress,
    first_failure,
    node_manifest,
    pod_manifest,
    scheduler_of,
    taken,
)

from vramcast.names import NodeName
from vramcast.placement.gpus import SHARING_LABEL, read_node
from vramcast.task.pod import read_pod

NODE = Node(NodeName("node"), 64_000, 262_144, 2, "P100")
PODS = [Pod(1_000, 1_024, 1, 500, frozenset()), Pod(1_000, 1_024, 2, 1_000, frozenset())]


def bound(number: int) -> bytes:
    return b'I1118 bind.go:1] "Successfully bound pod to node" pod="default/pod-%d" node="n"\n' % number


def failed(number: int) -> bytes:
    return b'I1118 run.go:1] "Unable to schedule pod; no fit; waiting" pod="default/pod-%d"\n' % number


def test_a_pod_that_is_bound_later_has_not_failed() -> None:
    log = failed(0) + bound(0) + failed(1)
    assert first_failure(log) > len(failed(0) + bound(0))
    assert taken(log, [NODE], PODS) == (0.25, 1)


def test_what_is_bound_after_the_first_failure_does_not_count() -> None:
    assert taken(failed(1) + bound(0), [NODE], PODS) == (0.0, 0)
    assert taken(bound(0), [NODE], PODS) == (0.25, 1)


def test_pods_are_created_a_few_ahead_of_the_scheduler(tmp_path: Path) -> None:
    """The scheduler takes pods in the order in which it hears of them, so they must not pile up before it."""
    progress = Progress(VRAMCAST, tmp_path / "log")
    progress.log.write_bytes(b"")
    assert progress.has_room(WAITING - 1)
    assert not progress.has_room(WAITING)
    progress.log.write_bytes(bound(0) + failed(1) + bound(2)[:-1])  # the last line is not written to its end
    assert progress.has_room(WAITING + 1)
    assert not progress.has_room(WAITING + 2)


def test_a_gpu_of_the_trace_holds_a_thousand_of_its_thousandths() -> None:
    labels = node_manifest(NODE)["metadata"]["labels"]
    assert labels[SHARING_LABEL] == "true"
    (pool,) = read_node(NODE.name, labels, {}, {}).pools
    manifest = pod_manifest(1, PODS[1])["metadata"]
    pod = read_pod("uid", "default", manifest["name"], manifest["annotations"], ())
    assert pod.task is not None
    assert pod.task.gpu_memory_mib == pool.memory_mib[0]
    assert (pod.ask and pod.ask.count, pool.count) == (2, 2)


@pytest.mark.parametrize("policy", [MOST, LEAST])
def test_where_the_scheduler_ranks_vramcast_does_not(policy: str) -> None:
    assert "prioritizeVerb" not in scheduler_of(policy, "http://x")["extenders"][0]
    assert "prioritizeVerb" in scheduler_of(VRAMCAST, "http://x")["extenders"][0]


def test_most_allocated_takes_the_node_with_most_cpu_and_memory_requested() -> None:

    whole = Cluster.of([NODE, NODE])
    cluster = Cluster.of([NODE, NODE])
    cluster.take(PODS[0], 1, np.array([0]))
    able = cluster.feasible(PODS[0])
    assert allocated(whole, random.Random(0), most=True)(cluster, PODS[0], able)[0] == 1
    assert allocated(whole, random.Random(0), most=False)(cluster, PODS[0], able)[0] == 0
