"""One version, wherever it stands; and `make dist` packs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vramcast import __version__

REPOSITORY = Path(__file__).parents[1]


def test_the_program_tells_it() -> None:
    done = subprocess.run([sys.executable, "-m", "vramcast", "version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


def test_the_chart_has_it() -> None:
    chart = yaml.safe_load((REPOSITORY / "helm/vramcast/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_image_has_it() -> None:
    assert f"ARG VERSION={__version__}\n" in (REPOSITORY / "Dockerfile").read_text()


def test_the_changelog_begins_with_it() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0].startswith(f"## {__version__}")


def test_the_docs_install_it() -> None:
    for page in ("quick-start", "install"):
        assert f"vramcast:{__version__}" in (REPOSITORY / f"docs/{page}.md").read_text()


@pytest.mark.e2e
def test_make_dist_packs_wheel_and_chart(tmp_path: Path) -> None:
    subprocess.run(["make", "dist", f"DIST={tmp_path}"], cwd=REPOSITORY, check=True, capture_output=True, timeout=200)
    packed = {path.name for path in tmp_path.iterdir()}
    assert packed == {f"vramcast-{__version__}-py3-none-any.whl", f"vramcast-{__version__}.tgz"}
