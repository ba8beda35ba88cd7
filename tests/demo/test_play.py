"""The whole demo over real HTTP, without its pauses."""

from __future__ import annotations

import io
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests.controlplane import PATIENCE_SECONDS

from vramcast.cluster.static import StaticCluster
from vramcast.demo.play import commands, run_demo

_RUN = """
import sys
from functools import partial
from vramcast.app import run
from vramcast.demo.day import CLUSTER_FILE
from vramcast.demo.play import DEMO_SETTINGS, run_demo
from vramcast.observe.logs import configure_logs
from vramcast.settings import load_settings
settings = load_settings({**DEMO_SETTINGS, "port": int(sys.argv[1]), "cluster": CLUSTER_FILE}, {})
configure_logs(settings.log_format, settings.log_level)
sys.exit(run_demo(partial(run, settings), speed=0, once=True))
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def played() -> str:
    """In its own process, because the demo ends with a signal."""
    result = subprocess.run(
        [sys.executable, "-c", _RUN, str(free_port())],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    return result.stdout


def step(played: str, pod: str) -> str:
    """The output about a pod, in one line."""
    found = re.search(rf"\d\d:\d\d . {pod} .*?(?=\n\n)", played, re.DOTALL)
    assert found, pod
    return " ".join(found[0].split())


def test_in_a_pipe_there_are_no_control_codes_and_no_line_over_100_columns(played: str) -> None:
    assert "\x1b" not in played
    assert "\r" not in played
    assert all(len(line) <= 100 and line == line.rstrip() for line in played.splitlines())


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        ("ml/resnet50-a", "→ l40s-share GPU 0 reserves"),
        ("team-x/notebook", "a device, nothing forecast"),
        ("llm/mistral-qlora", "→ a100-40 reserves"),
        ("llm/mistral-full", "waits"),
        ("llm/mistral-full", "GPU too small for"),
        ("vision/segmenter", "did you mean vramcast.dev/batch-size?"),
        ("llm/gpt2-medium", "→ a100-80-share GPU 0 and 1 reserves 52.0 of"),
        ("rec/two-tower", "→ a100-mig reserves 4.0 of"),
        ("rec/deep-fm", "not a100-mig: GPU too small for 7.0 GiB"),
        ("nlp/bert-base", "→ a10-slices reserves 9.0 of"),
        ("bio/protein-embed", "not a100-80-share: GPU memory promised to other pods"),
        ("ml/vit-large", "→ l40s-share GPU 2"),
        ("ml/vit-giant", "taken by processes outside of Kubernetes"),
    ],
)
def test_every_kind_of_decision_is_shown(played: str, pod: str, expected: str) -> None:
    assert expected in step(played, pod)


def test_a_pod_that_waited_is_placed_when_another_finishes(played: str) -> None:
    _, _, afterwards = played.partition("llm/gpt2-medium      finishes")
    assert "→ a100-80-share GPU 0" in step(afterwards, "bio/protein-embed")


def test_the_day_ends_with_a_summary(played: str) -> None:
    assert "after the day" in played
    assert played.splitlines()[-1].strip() == (
        "14 pods placed, no GPU promised more than it has; 2 wait: llm/mistral-full, rec/deep-fm"
    )


def test_a_service_that_does_not_answer_is_a_failure() -> None:
    shown = io.StringIO()
    stopped: list[int] = []

    def serve(cluster: StaticCluster, ready: Callable[[str], None], telemetry: object) -> None:
        cluster.start(lambda _changes: None)
        ready(f"http://127.0.0.1:{free_port()}")

    console = Console(file=shown, width=100)
    assert run_demo(serve, speed=0, console=console, stop=lambda: stopped.append(1)) == 1
    assert "the service does not answer" in shown.getvalue()
    assert stopped == [1]


def test_the_suggested_commands_name_an_existing_file() -> None:
    for command, _ in commands("http://127.0.0.1:8888")[:2]:
        assert Path(command.partition("@")[2].partition(" ")[0]).exists(), os.getcwd()
