"""`--help` of every command fits a terminal window, and its examples work."""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.docs.test_commands import parse
from vramcast.cli.main import app

EXAMPLES = Path(__file__).parents[2] / "examples"
# A window of today. The classic 24 lines of 80 columns do not even hold the options.
LINES, COLUMNS = 40, 100
# They need no cluster, torch, measured runs or port, so they are run here. The others are parsed here, and run where
# there is such a thing: tests/serve, tests/demo, tests/agent, tests/profiling, tests/train and tests/cli.
RUN_HERE = frozenset({"forecast", "advise", "annotate", "annotations", "catalog", "version"})
MAKES_THE_CATALOG = re.compile(r"--build|--record")


def commands() -> dict[str, Any]:
    return dict(get_command(app).commands)  # type: ignore[attr-defined]


def examples(name: str) -> list[str]:
    """As typed: without what the shell would do with the output."""
    found = re.findall(r"\[dim\](.*?)\[/dim\]", commands()[name].help, re.DOTALL)
    typed = [re.split(r" [>&|]", " ".join(text.split()))[0] for text in found]
    return [text for each in typed if (text := re.sub(r"^\w+=\S+ ", "", each)).startswith("vramcast ")]


CASES = [(name, example) for name in commands() for example in examples(name)]


@pytest.mark.parametrize("name", ["", *commands()])
def test_help_fits_a_window(name: str) -> None:
    done = CliRunner().invoke(app, [*([name] if name else []), "--help"], env={"COLUMNS": str(COLUMNS)})
    assert done.exit_code == 0, done.output
    shown = done.output.rstrip().splitlines()
    assert len(shown) <= LINES, f"{len(shown)} lines"
    assert max(len(line.rstrip()) for line in shown) <= COLUMNS


@pytest.mark.parametrize("name", commands())
def test_every_command_shows_an_example(name: str) -> None:
    assert examples(name)


@pytest.mark.parametrize(("name", "example"), CASES, ids=[example for _, example in CASES])
def test_the_examples_work(name: str, example: str, tmp_path: Path) -> None:
    if name not in RUN_HERE or MAKES_THE_CATALOG.search(example):
        return parse(example)
    shutil.copy(EXAMPLES / "job.yaml", tmp_path)
    shutil.copy(EXAMPLES / "rayjob.yaml", tmp_path)
    with chdir(tmp_path):
        done = CliRunner().invoke(app, shlex.split(example)[1:])
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return None


def test_the_examples_of_the_program_itself_work(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "job.yaml", tmp_path)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    typed = re.findall(r"^ (vramcast (?:forecast|advise|annotate) .*?)\s*$", shown, re.MULTILINE)
    assert len(typed) >= 3
    with chdir(tmp_path):
        for example in typed:
            assert CliRunner().invoke(app, shlex.split(example)[1:]).exit_code == 0, example
