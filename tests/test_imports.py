"""Imports: each command loads only what it needs, and the server never loads the heavy libraries."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.serve.running import Serve, run_to_the_end
from vramcast import __version__

HEAVY = {"torch", "onnx", "kubernetes"}
# Commands that only print must not load these: they would double the start-up time.
FOR_SERVING = {"uvicorn", "uvloop", "numpy", "prometheus_client", "vramcast.app", "vramcast.demo"}


def loaded(text: str) -> set[str]:
    return set(re.findall(r"^import time:.*\| +([\w.]+)$", text, re.MULTILINE))


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment with stubs of the heavy libraries, so that even a guarded import shows."""
    for name in ("torch", "onnx"):
        (tmp_path / f"{name}.py").touch()
    # With PYTHONPROFILEIMPORTTIME the interpreter logs every module that it loads.
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "PYTHONPROFILEIMPORTTIME": "1"}


def test_serving_a_static_cluster_never_loads_the_heavy_libraries(tmp_path: Path, installed: dict[str, str]) -> None:
    with Serve(tmp_path, environ=installed) as service:
        assert service.filter() == ["share"]
        service.send_signal(signal.SIGTERM)
        assert service.wait() == 0
        names = loaded(service.text())
    assert {"vramcast.app", "uvicorn", "numpy"} <= names, "the list is not what it seems"
    assert names & HEAVY == set()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("--help",), "serve"), (("serve", "--help"), "--cluster"), (("version",), f"{__version__}\n")],
)
def test_commands_that_only_print_do_not_load_the_server(
    installed: dict[str, str], arguments: tuple[str, ...], words: str
) -> None:
    done = run_to_the_end(*arguments, environ=installed)
    assert done.returncode == 0, done
    assert words in done.stdout
    assert loaded(done.stderr) & (HEAVY | FOR_SERVING) == set()
    assert "vramcast.cli.main" in loaded(done.stderr)
