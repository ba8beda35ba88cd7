"""A real Prometheus with a history that was never scraped: promtool writes it as blocks."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.controlplane import PATIENCE_SECONDS
from tests.controlplane.binaries import PROMETHEUS, built_program
from tests.e2e.observing.prometheus import Prometheus


def write_blocks(openmetrics: Path, directory: Path) -> None:
    """promtool reads the file once per block, so blocks are as long as they may be."""
    command = [
        str(built_program(PROMETHEUS, "promtool")), "tsdb", "create-blocks-from", "openmetrics", "--quiet",
        "--max-block-duration=486h", str(openmetrics), str(directory),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def prometheus(directory: Path, options: Sequence[str] = ()) -> Prometheus:
    """Not started. Its blocks are in `directory`/data."""
    program = built_program(PROMETHEUS, "prometheus")
    return Prometheus(program, directory, [], options=["--storage.tsdb.retention.time=10y", *options])
