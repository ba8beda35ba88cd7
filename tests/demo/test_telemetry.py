"""The demo's telemetry is what a real exporter gives, and its runs are measured all the same."""

from __future__ import annotations

import pytest

from vramcast.cluster.static import StaticCluster
from vramcast.demo import kubelet
from vramcast.demo.day import CLUSTER_FILE, Submit, read_day
from vramcast.demo.telemetry import DemoTelemetry, exit_report, peak_mib
from vramcast.task.exit_report import read_report


@pytest.fixture
def cluster() -> StaticCluster:
    """The pods of the day, each on a node that the day's script may have chosen."""
    cluster = StaticCluster.from_file(CLUSTER_FILE)
    for step in read_day():
        if isinstance(step, Submit):
            cluster.create_pod(step.manifest("day-1"))
    return cluster


def test_no_reading_of_a_sharing_node_names_a_pod(cluster: StaticCluster) -> None:
    frame = DemoTelemetry(cluster).poll(0.0, 1.0)
    shared = [reading for reading in frame.memory if cluster.nodes[reading.node].sharing]
    assert shared
    assert {reading.pod for reading in shared} == {""}


def test_a_run_ends_with_a_report_of_its_peak_and_an_out_of_memory_without(cluster: StaticCluster) -> None:
    pods = cluster.records()
    first, second = pods[0], pods[1]
    for pod, oom in ((first, False), (second, True)):
        namespace, _, name = pod.key.partition("/")
        assert kubelet.end(cluster, namespace, name, oom=oom)
    ended = {pod.key: pod for pod in cluster.records()}
    report = ended[first.key].run.report  # type: ignore[union-attr]
    assert report is not None
    assert report == read_report([exit_report(first)])
    assert report.reserved_mib == pytest.approx(peak_mib(first) - 450, abs=1)
    assert ended[second.key].run.report is None  # type: ignore[union-attr]
