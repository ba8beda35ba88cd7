"""The image runs the Python and the package versions that the tests run."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from requirements.sbom import locked_versions

REPOSITORY = Path(__file__).parents[2]
PINNED = (REPOSITORY / ".python-version").read_text().strip()
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
LOCKS = sorted((REPOSITORY / "requirements").glob("*.txt"))


def test_the_tests_run_on_the_pinned_python() -> None:
    assert f"{sys.version_info.major}.{sys.version_info.minor}" == PINNED


def test_the_image_has_the_pinned_python() -> None:
    assert re.findall(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE) == [PINNED]
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert bases == ["python:${PYTHON}-bookworm", "python:${PYTHON}-slim-bookworm"]  # the first has a compiler
    assert f"`python:{PINNED}-slim-bookworm`" in (REPOSITORY / "docs/install.md").read_text()


def test_the_linters_check_for_the_pinned_python() -> None:
    tools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]
    assert tools["mypy"]["python_version"] == PINNED
    assert tools["ruff"]["target-version"] == f"py{PINNED.replace('.', '')}"


def test_the_tests_run_on_the_package_versions_of_the_image() -> None:
    locked = locked_versions(REPOSITORY / "requirements/serve.txt")
    assert len(locked) > 20
    assert {name: metadata.version(name) for name in locked} == locked


def test_the_image_gets_one_version_of_a_package_on_every_python() -> None:
    lock = (REPOSITORY / "requirements/serve.txt").read_text()
    names = re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)
    assert len(names) == len(set(names))
    assert "python_" not in "".join(line for line in lock.splitlines() if ";" in line)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: str(path.name))
def test_no_lock_contradicts_the_lock_of_the_image(lock: Path) -> None:
    serving, other = locked_versions(REPOSITORY / "requirements/serve.txt"), locked_versions(lock)
    shared = serving.keys() & other.keys()
    assert {name: other[name] for name in shared} == {name: serving[name] for name in shared}
