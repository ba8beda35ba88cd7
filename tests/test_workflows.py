"""The GitHub workflows keep to what they may do and to what the repository contains. `make lint` runs actionlint."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github/workflows").glob("*.yml"))
RELEASE = (REPOSITORY / ".github/workflows/release.yml").read_text()


def load(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded


def uses(workflow: dict[str, Any]) -> Iterator[str]:
    for job in workflow["jobs"].values():
        yield from [job["uses"]] if "uses" in job else [step["uses"] for step in job["steps"] if "uses" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_every_action_is_pinned(path: Path) -> None:
    actions = [name for name in uses(load(path)) if not name.startswith("./")]
    assert actions
    assert [name for name in actions if not re.search(r"@(v\d+(\.\d+)*|[0-9a-f]{40})$", name)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: str(path.name))
def test_a_workflow_starts_with_no_right_to_write(path: Path) -> None:
    assert set(load(path)["permissions"].values()) <= {"read"}


def test_pull_requests_get_no_right_to_write() -> None:
    jobs = load(REPOSITORY / ".github/workflows/test.yml")["jobs"].values()
    assert all(set(job.get("permissions", {}).values()) <= {"read"} for job in jobs)


def test_ci_runs_what_developers_run() -> None:
    steps = load(REPOSITORY / ".github/workflows/test.yml")["jobs"]["everything"]["steps"]
    assert ".ci/run" in [step.get("run") for step in steps]
    assert (REPOSITORY / ".ci/run").read_text().endswith("exec make test\n")


def test_a_release_is_tested_before_it_is_published() -> None:
    jobs = load(REPOSITORY / ".github/workflows/release.yml")["jobs"]
    assert "test" in jobs["image"]["needs"]
    assert "image" in jobs["publish"]["needs"]


def test_a_release_finds_the_lines_that_it_reads_and_edits() -> None:
    assert r"""sed -n 's/^__version__ = "\(.*\)"$/\1/p' service/vramcast/__init__.py""" in RELEASE
    assert re.search(r'^__version__ = ".*"$', (REPOSITORY / "service/vramcast/__init__.py").read_text(), re.MULTILINE)
    assert "s|^  repository: vramcast$|" in RELEASE
    values = (REPOSITORY / "helm/vramcast/values.yaml").read_text()
    assert len(re.findall(r"^  repository: vramcast$", values, re.MULTILINE)) == 1


def test_the_commit_hooks_run_programs_of_the_locked_environment() -> None:
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repository in config["repos"] for hook in repository["hooks"]]
    assert all(repository["repo"] == "local" for repository in config["repos"])
    assert all((REPOSITORY / hook["entry"].split()[0]).exists() for hook in hooks)
