"""docs/compatibility.md states the versions that the tests use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from requirements.sbom import locked_versions

from tests.controlplane.binaries import ETCD, HELM, KUBERNETES, PROMETHEUS, BinarySet, module_version

REPOSITORY = Path(__file__).parents[1]


def rows() -> dict[str, tuple[str, str]]:
    """Per subject, what is tested and what is expected to work."""
    text = (REPOSITORY / "docs/compatibility.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: (row[1], row[2]) for row in cells}


@pytest.mark.parametrize(
    ("subject", "binary_set"),
    [("Kubernetes", KUBERNETES), ("etcd", ETCD), ("Helm", HELM)],
    ids=lambda one: str(one)[:9],
)
def test_a_program_is_documented_with_the_version_that_is_built(subject: str, binary_set: BinarySet) -> None:
    assert f"v{rows()[subject][0]}" == module_version(binary_set)


def test_prometheus_is_documented_with_the_version_that_is_built() -> None:
    # Prometheus 3.13.5 is v0.313.5 as a Go module.
    major, minor, patch = rows()["Prometheus"][0].split(".")
    assert f"v0.{major}{int(minor):02}.{patch}" == module_version(PROMETHEUS)


def test_the_oldest_kubernetes_is_the_one_that_the_chart_accepts() -> None:
    chart = yaml.safe_load((REPOSITORY / "helm/vramcast/Chart.yaml").read_text())
    oldest = re.match(r"[\d.]+", rows()["Kubernetes"][1])
    assert oldest is not None
    assert chart["kubeVersion"] == f">={oldest[0]}.0-0"


def test_python_is_documented_with_the_pinned_version() -> None:
    assert rows()["Python"][0] == (REPOSITORY / ".python-version").read_text().strip()


def test_the_other_pythons_are_those_of_the_workflow() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github/workflows/test.yml").read_text())
    matrix = workflow["jobs"]["other-pythons"]["strategy"]["matrix"]["python"]
    assert f"on {' and '.join(matrix)} |" in (REPOSITORY / "docs/compatibility.md").read_text()


def test_torch_is_documented_with_the_locked_version() -> None:
    assert rows()["PyTorch"][0] == locked_versions(REPOSITORY / "requirements/train.txt")["torch"]
