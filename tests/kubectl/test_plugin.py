"""The kubectl plugin as it is shipped. What it says about a cluster: tests/e2e/test_kubectl_plugin.py."""

from __future__ import annotations

import ast
import hashlib
import json
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.docs.pages import REPOSITORY
from vramcast import __version__
from vramcast.kubectl.main import COMMANDS, plugin_parser
from vramcast.kubectl.service_view import ServicePlace
from vramcast.kubectl.tables import age, size, visible

# What krew's own checks and documentation ask of a manifest (https://krew.sigs.k8s.io/docs/developer-guide).
FILLED = {"type": "string", "minLength": 1}
KREW: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {"type": "object", "required": ["name"], "properties": {"name": {"pattern": r"^[\w-]+$"}}},
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["version", "homepage", "shortDescription", "description", "platforms"],
            "properties": {
                "version": {"type": "string", "pattern": r"^v\d+\.\d+\.\d+(-[\w.]+)?$"},
                "homepage": {"type": "string", "pattern": "^https://"},
                "shortDescription": {"type": "string", "maxLength": 50, "pattern": r"^[^\r\n]*[^.\r\n]$"},
                "description": FILLED,
                "caveats": FILLED,
                "platforms": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["selector", "uri", "sha256", "bin"],
                        "properties": {
                            "selector": {
                                "type": "object",
                                "additionalProperties": False,
                                "required": ["matchExpressions"],
                                "properties": {
                                    "matchExpressions": {
                                        "type": "array",
                                        "minItems": 1,
                                        "items": {
                                            "properties": {
                                                "key": {"enum": ["os", "arch"]},
                                                "operator": {"enum": ["In", "NotIn"]},
                                                "values": {"type": "array", "minItems": 1},
                                            },
                                        },
                                    }
                                },
                            },
                            "uri": {"type": "string", "pattern": r"^https://.*\.(tar\.gz|zip)$"},
                            "sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
                            "bin": FILLED,
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip


def build(directory: Path) -> Path:
    directory.mkdir()
    command = [
        sys.executable,
        "service/build_plugin.py",
        "--out",
        str(directory),
        "--releases",
        "https://example.com/r/",
    ]
    subprocess.run(command, cwd=REPOSITORY, check=True)
    return directory


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("plugin") / "dist")


@pytest.fixture(scope="module")
def program(dist: Path) -> Path:
    with tarfile.open(dist / f"kubectl-vramcast-{__version__}.tar.gz") as tar:
        tar.extractall(dist / "unpacked", filter="data")
    return dist / "unpacked/kubectl-vramcast"


def run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -S and -E: without the packages of this environment.
    command = [sys.executable, "-S", "-E", str(program), *arguments]
    environment = {"COLUMNS": "80", "PATH": "/nowhere"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_krew_manifest_is_what_krew_asks_for_and_names_the_archive(dist: Path) -> None:
    manifest = json.loads((dist / "vramcast.yaml").read_text())  # krew-index names the file after the plugin
    jsonschema.validate(manifest, KREW)
    (platform,) = manifest["spec"]["platforms"]
    name = f"kubectl-vramcast-{__version__}.tar.gz"
    assert platform["uri"] == f"https://example.com/r/v{__version__}/{name}"
    assert platform["sha256"] == hashlib.sha256((dist / name).read_bytes()).hexdigest()
    with tarfile.open(dist / name) as tar:
        assert sorted(tar.getnames()) == sorted(["LICENSE", platform["bin"]])
        assert tar.getmember(platform["bin"]).mode == 0o755


def test_the_same_sources_give_the_same_archive(dist: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again")
    for path in again.iterdir():
        assert path.read_bytes() == (dist / path.name).read_bytes()


def test_the_plugin_runs_without_any_package_and_on_the_python_that_it_promises(program: Path) -> None:
    assert run(program, "--version").stdout.strip() == __version__
    assert program.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    for path in (REPOSITORY / "service/vramcast/kubectl").glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help_fits_a_screen_and_shows_an_example(program: Path, command: tuple[str, ...]) -> None:
    shown = run(program, *command, "--help").stdout.splitlines()
    assert len(shown) <= 26
    assert max(map(len, shown)) <= 80
    assert any(f"kubectl vramcast {' '.join(command)}".strip() in line for line in shown[3:])


@pytest.mark.parametrize("example", [example for _, example in COMMANDS.values()])
def test_the_examples_are_commands(example: str) -> None:
    assert plugin_parser().parse_args(shlex.split(example)).command == example.split(maxsplit=1)[0]


def test_without_kubectl_the_message_names_it(program: Path) -> None:
    done = run(program, "top")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no kubectl on PATH" in done.stderr


def test_the_role_is_named_after_the_service() -> None:
    assert ServicePlace("a", "gpu-vramcast-view").role == "gpu-vramcast-viewer"


def test_sizes_ages_and_names_are_for_people() -> None:
    assert [size(None), size(512), size(30_720)] == ["-", "512 MiB", "30.0 GiB"]
    assert [age(None), age(59), age(180), age(7_300), age(200_000)] == ["-", "59s", "3m", "2h", "2d"]
    assert visible("a\x1b[31mb\n") == "a\ufffd[31mb\ufffd"
