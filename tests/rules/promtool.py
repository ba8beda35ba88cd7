"""promtool, as the tests of rules and metrics run it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.controlplane import PATIENCE_SECONDS
from tests.controlplane.binaries import built_binaries

ALERTS = Path(__file__).parents[2] / "helm/vramcast/files/alerts.yaml"


def promtool(*arguments: str, directory: Path, text: str = "") -> str:
    """Its output. Fails if promtool does."""
    command = [str(built_binaries().promtool), *arguments]
    done = subprocess.run(
        command, cwd=directory, input=text, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
