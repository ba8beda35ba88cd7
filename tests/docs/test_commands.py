"""Every command of the documentation is run, here or by the test that follows its page.

What needs more than a test has (torch, measured runs, a release in trouble) is at least parsed by the program that it
calls, so an option that does not exist fails.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from tests.controlplane import PATIENCE_SECONDS, built_binaries
from tests.docs.pages import DOCUMENTS, README, REPOSITORY, commands
from vramcast.cli.main import app
from vramcast.kubectl.main import plugin_parser

# These pages are followed from the first command to the last, on a real control plane.
FOLLOWED = {
    REPOSITORY / "docs/quick-start.md",  # tests/chart/test_quick_start.py
    REPOSITORY / "docs/install-without-helm.md",  # test_install_without_helm.py
}
PROGRAMS = ("vramcast", "make", "python", "kubectl", "helm", "curl", "docker", "export")
TYPED = [(page, command) for page in DOCUMENTS if page not in FOLLOWED for command in commands(page)]
# They need torch, measured runs, a running service or a Prometheus: tests/profiling, train, cli and e2e run them.
PARSED_ONLY = ("profile", "train", "train-speed", "evaluate", "export-records", "recommend")


def typed(*programs: str) -> pytest.MarkDecorator:
    """Runs the test once for each command that starts with one of the programs, on however many pages it is."""
    found = {command: page for page, command in TYPED if command.split()[0] in programs}
    return pytest.mark.parametrize(("command", "page"), found.items(), ids=names)


def names(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def parse(command: str) -> None:
    _, name, *arguments = shlex.split(command.partition(" > ")[0])
    group = get_command(app)
    with group.make_context("vramcast", [name, "--help"], resilient_parsing=True) as context:
        found = group.get_command(context, name)  # type: ignore[attr-defined]
        assert found is not None, f"there is no command {name}"
        found.make_context(name, arguments, parent=context)


def vramcast(arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "vramcast", *shlex.split(arguments)], directory)


def run(command: Sequence[str | Path], directory: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "120", "TERM": "dumb"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def test_every_command_is_one_that_the_tests_know_how_to_run() -> None:
    assert [command for _, command in TYPED if command.split()[0] not in PROGRAMS] == []


@typed("vramcast")
def test_the_commands_of_vramcast_work(page: Path, command: str, tmp_path: Path) -> None:
    if command.split()[1] in PARSED_ONLY:
        return parse(command)
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    shutil.copy(REPOSITORY / "examples/job.yaml", tmp_path / "job.yaml")
    done = vramcast(command.removeprefix("vramcast "), tmp_path)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return None


@typed("make")
def test_the_targets_of_make_exist(page: Path, command: str) -> None:
    _, *arguments = shlex.split(command)
    done = run(["make", "--dry-run", *arguments], REPOSITORY)
    assert done.returncode == 0, done.stderr


@typed("python")
def test_the_programs_of_the_repository_exist(page: Path, command: str) -> None:
    words = shlex.split(command)
    module = words[words.index("-m") + 1].replace(".", "/") if "-m" in words else words[1].removesuffix(".py")
    package = (REPOSITORY / module).is_dir()
    program = f"{module}/__main__.py" if package else f"{module}.py"
    text = (REPOSITORY / program).read_text()
    for option in re.findall(r"--[a-z-]+", command):
        assert f'"{option}"' in text, f"{program} has no {option}"


@pytest.mark.e2e
@typed("kubectl")
def test_kubectl_knows_the_commands_and_their_options(page: Path, command: str) -> None:
    """With --help kubectl still rejects unknown options, and asks no cluster."""
    words = shlex.split(re.split(r" [|>&]", command)[0])
    if words[1] == "vramcast":
        plugin_parser().parse_args(words[2:])  # tests/e2e/test_kubectl_plugin.py runs it
        return
    done = run([built_binaries().kubectl, *words[1:], "--help"], REPOSITORY)
    assert done.returncode == 0, done.stderr


@pytest.mark.e2e
@typed("helm")
def test_the_chart_renders_with_the_values_of_the_commands(page: Path, command: str) -> None:
    """`helm install` and `helm upgrade` take the options of `helm template`, which asks no cluster."""
    words = shlex.split(command.replace("$REGISTRY", "registry.example.com"))
    if words[1] in ("install", "upgrade"):
        words = ["helm", "template", *(word for word in words[2:] if word not in ("--install", "--reuse-values"))]
    else:
        words.append("--help")
    done = run([built_binaries().helm, *words[1:]], REPOSITORY)
    assert done.returncode == 0, done.stderr


def test_the_readme_installs_as_the_quick_start_does() -> None:
    """The quick start's commands are run, so the README's are too if they are the same."""
    followed = commands(REPOSITORY / "docs/quick-start.md")
    installing = [command for command in commands(README) if command.startswith(("helm ", "kubectl label"))]
    assert installing
    assert set(installing) <= set(followed)


def test_the_readme_shows_what_the_forecast_prints() -> None:
    """Numbers within 2 %: CPUs round differently."""
    ((arguments, shown),) = re.findall(
        r"^\$ vramcast (forecast Llama.*?)\n(.*?)^ \.\.\.$", README.read_text(), re.MULTILINE | re.DOTALL
    )
    printed = vramcast(arguments, REPOSITORY).stdout
    words, expected = shown.split(), printed.split()[: len(shown.split())]
    assert [word for word in words if not _number(word)] == [word for word in expected if not _number(word)]
    assert [float(w) for w in words if _number(w)] == pytest.approx(
        [float(w) for w in expected if _number(w)], rel=0.02
    )


def _number(word: str) -> bool:
    return bool(re.fullmatch(r"[\d.]+", word))


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 160
