"""The image, built without a container engine: its steps run in an empty directory, and the result must serve."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx
import pytest
import yaml
from packaging.utils import canonicalize_name
from requirements.sbom import locked_versions

import vramcast
from tests.controlplane import PATIENCE_SECONDS, Process, eventually, free_port

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "Dockerfile").read_text()
NOBODY = 65532


def instructions(name: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", "", DOCKERFILE)
    return [line.removeprefix(f"{name} ") for line in joined.splitlines() if line.startswith(f"{name} ")]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, REPOSITORY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_it_runs_unprivileged_and_declares_its_version_and_health_check() -> None:
    assert instructions("USER") == [f"{NOBODY}:{NOBODY}"]
    assert f"VERSION={vramcast.__version__}" in instructions("ARG")
    assert len(instructions("HEALTHCHECK")) == 1


def test_the_build_context_contains_exactly_what_is_copied() -> None:
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {source for line in instructions("COPY") if "--from" not in line for source in shlex.split(line)[:-1]}
    assert copied == allowed
    assert all((REPOSITORY / source).exists() for source in copied)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """/opt/vramcast, as the Dockerfile's COPY and RUN steps create it, with a minimal PATH."""
    root = tmp_path_factory.mktemp("image")
    for line in instructions("COPY"):
        if "--from" not in line:
            *sources, target = shlex.split(line)
            for source in sources:
                _copy(REPOSITORY / source, root / target.lstrip("/"), into=target.endswith("/"))
    tools = root / "bin"
    tools.mkdir()
    for tool in ("sh", "rm", "find", "mktemp", "cc", "as", "ld"):
        (tools / tool).symlink_to(shutil.which(tool) or pytest.fail(f"no {tool}"))
    # The base interpreter, because the packages of the tests' venv must not be importable.
    (tools / "python3").symlink_to(Path(sys.base_prefix) / "bin/python3")
    (command,) = instructions("RUN")
    program, *arguments = shlex.split(command)
    environment = {"PATH": str(tools), "HOME": str(root), "TMPDIR": str(root), **_index_settings()}
    subprocess.run(
        ["sh", str(root / program.lstrip("/")), *(str(root / argument.lstrip("/")) for argument in arguments)],
        env=environment, check=True,
    )  # fmt: skip
    target = root / "opt/vramcast"
    yield target
    shutil.rmtree(root)


def _copy(source: Path, target: Path, *, into: bool) -> None:
    place = target / source.name if into else target
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, place, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
    else:
        shutil.copy(source, place)


def _index_settings() -> dict[str, str]:
    """The machine's package index: pip reads it from the environment or from its configuration file."""
    config = Path.home() / ".config/pip/pip.conf"
    settings = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    settings |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    settings.setdefault("PIP_CACHE_DIR", str(Path.home() / ".cache/pip"))
    return (
        settings
        if "PIP_CONFIG_FILE" in settings or not config.exists()
        else {**settings, "PIP_CONFIG_FILE": str(config)}
    )


def packages(target: Path) -> dict[str, str]:
    """Package to version."""
    (site_packages,) = target.glob("lib/python*/site-packages")
    found = metadata.distributions(path=[str(site_packages)])
    return {canonicalize_name(one.name): one.version for one in found}


def test_it_contains_vramcast_and_the_locked_packages_and_nothing_else(installed: Path) -> None:
    locked = locked_versions(REPOSITORY / "requirements/serve.txt")
    assert packages(installed) == {**locked, "vramcast": vramcast.__version__}


def test_its_replay_loop_is_compiled(installed: Path) -> None:
    check = "from vramcast.forecast.compiled import compiled_loops; assert compiled_loops() is not None"
    subprocess.run([installed / "bin/python", "-c", check], check=True)


def test_the_docs_state_its_size(installed: Path) -> None:
    mib = sum(path.lstat().st_size for path in installed.rglob("*") if path.is_file()) / (1 << 20)
    documented = re.search(r"about (\d+) MiB on top of", (REPOSITORY / "docs/install.md").read_text())
    assert documented is not None
    assert mib == pytest.approx(int(documented[1]), rel=0.15)


def test_the_program_runs_and_prints_its_version(installed: Path) -> None:
    done = subprocess.run(
        [installed / "bin/vramcast", "version"],
        env={},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stdout.strip() == vramcast.__version__


def test_the_service_runs_unprivileged_from_read_only_files(installed: Path, tmp_path: Path) -> None:
    port = free_port()
    cluster = tmp_path / "cluster.yaml"
    shutil.copy(REPOSITORY / "service/vramcast/demo/cluster.yaml", cluster)
    before = set(installed.rglob("*"))
    for path in (installed, *before):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o222)
    # Without capabilities even root is bound by file modes.
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"] if os.geteuid() == 0 else []
    serve = [str(installed / "bin/vramcast"), "serve", f"--cluster={cluster}", f"--port={port}"]
    environment = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "", "HOME": "/nonexistent"}
    process = Process("vramcast", [*bare, *serve], tmp_path / "log", environment)
    process.start()

    def ready() -> bool:
        process.check_alive()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    try:
        eventually(ready, what="the service to be ready")
        health = httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=PATIENCE_SECONDS)
        assert health.status_code == 200
        task = yaml.safe_load((REPOSITORY / "examples/job.yaml").read_text())["spec"]["template"]
        # From its recorded steps, and in plain fp32 by the network: both need files of the image.
        for precision, source in (("amp-fp16", "recording"), ("fp32", "model")):
            task["metadata"]["annotations"]["vramcast.dev/precision"] = precision
            forecast = httpx.post(
                f"http://127.0.0.1:{port}/forecast", json={"kind": "Pod", **task}, timeout=PATIENCE_SECONDS
            )
            assert forecast.status_code == 200, forecast.text
            assert forecast.json()["forecasts"][0]["source"] == source
    finally:
        process.terminate()
        for path in (installed, *before):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
    assert set(installed.rglob("*")) == before
