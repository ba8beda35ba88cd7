"""The program as a shell runs it: exit codes, standard output and `--help`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.kinds import KINDS
from tests.serve.running import run_to_the_end
from vramcast.task.vocabulary import KEYS

SET = ("--set", "parameters=25.6M", "--set", "activations=21.5M", "--set", "batch-size=64")


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(KINDS["Job"][0])
    return str(path)


def test_from_a_job_to_its_largest_batch_in_two_commands(job: str) -> None:
    written = run_to_the_end("annotate", "-f", job, *SET, "--scheduler", "--in-place")
    assert (written.returncode, written.stdout) == (0, "")
    checked = run_to_the_end("annotate", "-f", job, "--check")
    assert (checked.returncode, checked.stdout) == (0, "")
    swept = run_to_the_end("forecast", "-f", job, "--sweep", "batch-size=8..64", "-o", "json", "--artifact", "physics")
    assert swept.returncode == 0, swept.stderr
    assert all(one["value"] > 0 for one in json.loads(swept.stdout)[0]["largest"])


def test_a_check_that_finds_mistakes_exits_with_1(job: str) -> None:
    done = run_to_the_end("annotate", "-f", job, "--check")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {job}: no annotation vramcast.dev/... describes a task")
    assert done.stderr.count("\n") == 1


def test_an_invalid_setting_prints_one_message_and_exits_with_2(job: str) -> None:
    done = run_to_the_end("annotate", "-f", job, "--set", "batch_size=8", "--in-place")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean vramcast.dev/batch-size?" in done.stderr
    assert "Traceback" not in done.stderr
    assert Path(job).read_text() == KINDS["Job"][0]


@pytest.mark.parametrize(
    ("command", "teaches"),
    [
        ((), ("forecast", "annotate", "annotations", "Describe a task")),
        (("forecast",), ("--sweep", "--plot", "batch-size=8..256")),
        (("profile",), ("returns (model, optimizer, step)", "vramcast profile my_train:make", "--plot", "lora_rank")),
        (("annotate",), ("--check", "--move", "--template", "vramcast annotations")),
    ],
)
def test_help_shows_the_options_and_examples(command: tuple[str, ...], teaches: tuple[str, ...]) -> None:
    done = run_to_the_end(*command, "--help", environ={"COLUMNS": "140", "TERM": "dumb"})
    assert done.returncode == 0
    assert all(words in done.stdout for words in teaches), done.stdout


def test_the_annotations_are_listed_as_a_table_and_as_a_schema() -> None:
    table = run_to_the_end("annotations").stdout
    assert all(name in table for name in KEYS)
    schema = json.loads(run_to_the_end("annotations", "-o", "json-schema").stdout)
    assert schema["properties"].keys() == {f"vramcast.dev/{name}" for name in KEYS}
