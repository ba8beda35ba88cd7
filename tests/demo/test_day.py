"""The demo's script is valid and consistent."""

from __future__ import annotations

import msgspec

from vramcast.cluster.static_file import read_cluster_file
from vramcast.demo.day import CLUSTER_FILE, EXAMPLE_POD_FILE, Finish, Submit, read_day
from vramcast.task.pod import Pod, to_record


def submits() -> list[Submit]:
    return [step for step in read_day() if isinstance(step, Submit)]


def test_the_demo_cluster_is_six_nodes_of_every_kind() -> None:
    found = read_cluster_file(CLUSTER_FILE)
    assert len(found.nodes) == 6
    assert found.unmanaged_mib
    assert found.pods


def test_the_day_goes_forward_in_time() -> None:
    times = [step.at for step in read_day()]
    assert times == sorted(times)


def test_only_pods_that_were_submitted_finish() -> None:
    names = {(step.namespace, step.name) for step in submits()}
    assert len(names) == len(submits())
    assert all((step.namespace, step.name) in names for step in read_day() if isinstance(step, Finish))


def test_the_only_mistake_of_the_day_is_the_one_it_shows() -> None:
    records = [to_record(msgspec.convert(step.manifest(), Pod)) for step in submits()]
    assert [record.key for record in records if record.invalid] == ["vision/segmenter"]


def test_the_example_pod_exists() -> None:
    assert "vramcast.dev/batch-size" in EXAMPLE_POD_FILE.read_text()
