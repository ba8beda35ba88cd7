"""One version number in every file that states it, and in the artifacts of `make dist`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from requirements.sbom import locked_versions

from vramcast import __version__

REPOSITORY = Path(__file__).parents[1]


def test_the_program_prints_it() -> None:
    done = subprocess.run([sys.executable, "-m", "vramcast", "version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


def test_the_chart_has_it() -> None:
    chart = yaml.safe_load((REPOSITORY / "helm/vramcast/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_the_image_is_labelled_with_it() -> None:
    assert f"ARG VERSION={__version__}\n" in (REPOSITORY / "Dockerfile").read_text()


def test_the_changelog_starts_with_it() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[0].startswith(f"## {__version__}")


def test_the_docs_install_it() -> None:
    for page in ("quick-start", "install"):
        assert f"vramcast:{__version__}" in (REPOSITORY / f"docs/{page}.md").read_text()


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    subprocess.run(["make", "dist", f"DIST={target}"], cwd=REPOSITORY, check=True, capture_output=True)
    return target


@pytest.mark.e2e
def test_make_dist_builds_the_wheel_its_sbom_the_chart_and_the_plugin(dist: Path) -> None:
    # The wheel has a compiled loop where there is a C compiler.
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_") if shutil.which("cc") else "any"
    assert {path.name for path in dist.iterdir()} == {
        f"vramcast-{__version__}-py3-none-{platform}.whl",
        f"vramcast-{__version__}.cdx.json",
        f"vramcast-{__version__}.tgz",
        f"vramcast_report-{__version__}-py3-none-any.whl",
        f"kubectl-vramcast-{__version__}.tar.gz",
        "vramcast.yaml",
    }


@pytest.mark.e2e
def test_the_report_wheel_runs_alone(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("vramcast_report-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    (tmp_path / "train.py").write_text("import sys, vramcast; print(vramcast.__path__)")
    # -S: without the packages of this environment, vramcast among them.
    command = [sys.executable, "-S", "-m", "vramcast.report", "train.py"]
    environment = {"PYTHONPATH": str(tmp_path), "VRAMCAST_REPORT_FILE": str(tmp_path / "message")}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert str(tmp_path / "vramcast") in ended.stdout
    assert json.loads((tmp_path / "message").read_text())["vramcast"] == 1


@pytest.mark.e2e
def test_the_sbom_is_valid_and_lists_every_locked_package(dist: Path) -> None:
    text = (dist / f"vramcast-{__version__}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    sbom = json.loads(text)
    root = sbom["metadata"]["component"]
    assert (root["name"], root["version"]) == ("vramcast", __version__)
    listed = {canonicalize_name(one["name"]): one["version"] for one in sbom["components"]}
    assert listed == locked_versions(REPOSITORY / "requirements/serve.txt")


@pytest.mark.e2e
def test_the_sbom_names_the_direct_dependencies_and_reaches_every_package(dist: Path) -> None:
    sbom = json.loads((dist / f"vramcast-{__version__}.cdx.json").read_text())
    edges = {one["ref"]: one["dependsOn"] for one in sbom["dependencies"]}
    root = sbom["metadata"]["component"]["bom-ref"]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    direct = {canonicalize_name(ref.partition("==")[0]) for ref in edges[root]}
    # The image has the agent too.
    wanted = [*project["dependencies"], *project["optional-dependencies"]["agent"]]
    assert direct == {canonicalize_name(Requirement(line).name) for line in wanted}
    reached, frontier = {root}, [root]
    while frontier:
        new = set(edges[frontier.pop()]) - reached
        reached |= new
        frontier += new
    assert reached == {root, *(one["bom-ref"] for one in sbom["components"])}
