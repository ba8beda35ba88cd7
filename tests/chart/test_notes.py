"""NOTES.txt, which Helm prints after an install."""

from __future__ import annotations

import pytest

from tests.chart.conftest import NAMESPACE
from tests.chart.extender import snippet_in
from tests.chart.helm import CHART, Helm
from tests.chart.matrix import Values

pytestmark = pytest.mark.e2e


def notes_of(helm: Helm, values: Values, release: str = "vramcast") -> str:
    text = helm.run("install", release, str(CHART), f"--namespace={NAMESPACE}", "--dry-run=server", values=values)
    return text.partition("\nNOTES:\n")[2]


@pytest.mark.parametrize("mode", ["scheduler", "extender", "observe"])
def test_the_notes_name_the_next_three_commands_with_the_releases_names(helm: Helm, mode: str) -> None:
    notes = notes_of(helm, {"mode": mode}, release="gpus")
    assert [step for step in ("1. ", "2. ", "3. ") if step in notes] == ["1. ", "2. ", "3. "]
    assert "deployment/gpus-vramcast" in notes
    assert f"--namespace {NAMESPACE}" in notes


def test_the_notes_carry_the_configuration_for_the_clusters_own_scheduler(helm: Helm) -> None:
    notes = notes_of(helm, {"mode": "extender", "extender": {"service": {"clusterIP": "10.96.0.77"}}})
    entry = snippet_in(notes)
    assert entry["urlPrefix"] == "https://10.96.0.77:8888"
    assert entry["enableHTTPS"] is True
    assert entry["tlsConfig"]["serverName"] == f"vramcast.{NAMESPACE}.svc"
    assert entry["bindVerb"] == "bind"
    assert entry["managedResources"] == [{"name": "vramcast.dev/task", "ignoredByScheduler": True}]
    assert 'limits: {"vramcast.dev/task": 1}' in notes


def test_other_resources_are_added_to_that_of_described_pods(helm: Helm) -> None:
    notes = notes_of(helm, {"mode": "extender", "extender": {"managedResources": ["nvidia.com/gpu"]}})
    assert snippet_in(notes)["managedResources"] == [
        {"name": "vramcast.dev/task", "ignoredByScheduler": True},
        {"name": "nvidia.com/gpu", "ignoredByScheduler": False},
    ]
    assert "but those that request nvidia.com/gpu" in notes


@pytest.mark.parametrize("mode", ["scheduler", "extender", "observe"])
def test_the_notes_name_the_label_by_which_a_namespace_opts_in(helm: Helm, mode: str) -> None:
    label = "kubectl label namespace NAMESPACE vramcast.dev/managed=true"
    assert label in notes_of(helm, {"mode": mode, "webhook": {"enabled": True}})
    assert label not in notes_of(helm, {"mode": mode})
