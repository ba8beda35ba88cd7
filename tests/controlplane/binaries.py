"""Builds the control plane's programs from pinned Go modules, once per user and version.

The sources come from the Go module proxy, so the tests need no container registry and no release download.
A cold build takes minutes, so the user's cache keeps every set under its own key: a new version of etcd does
not rebuild Kubernetes, and a new clone finds the programs that an older one built.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

GO_MODULES = Path(__file__).parent / "go"
PROGRESS_SECONDS = 20.0

_KUBERNETES_VERSION = "1.36.3"
_MAJOR, _MINOR, _ = _KUBERNETES_VERSION.split(".")
_COMPONENT_VERSION = "k8s.io/component-base/version"


class BuildError(RuntimeError):
    """A program cannot be built on this machine; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class BinarySet:
    """Programs that are built together from one pinned module."""

    name: str
    module: str  # the module whose version names the set, and whose files may be copied
    programs: tuple[tuple[str, str], ...]  # (file name, main package)
    link_values: tuple[str, ...] = ()  # "-X" values for the linker
    files: tuple[str, ...] = ()  # files of the module that the programs need
    # Go build tags. Not in the repr, which is part of the cache key, so that sets without tags keep their key.
    tags: tuple[str, ...] = field(default=(), repr=False)

    @property
    def directory(self) -> Path:
        return GO_MODULES / self.name


KUBERNETES = BinarySet(
    name="kubernetes",
    module="k8s.io/kubernetes",
    programs=(
        ("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"),
        ("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
    ),
    # Only release scripts set these. Without them the server reports v0.0.0, and no test could check the chart's
    # kubeVersion against it.
    link_values=(
        f"{_COMPONENT_VERSION}.gitVersion=v{_KUBERNETES_VERSION}",
        f"{_COMPONENT_VERSION}.gitMajor={_MAJOR}",
        f"{_COMPONENT_VERSION}.gitMinor={_MINOR}",
    ),
)
ETCD = BinarySet(
    name="etcd",
    module="go.etcd.io/etcd/server/v3",
    programs=(("etcd", "go.etcd.io/etcd/server/v3"),),
)
KWOK = BinarySet(
    name="kwok",
    module="sigs.k8s.io/kwok",
    programs=(("kwok", "sigs.k8s.io/kwok/cmd/kwok"),),
    # KWOK does nothing without stages, and its binary contains none.
    files=(
        "kustomize/stage/node/fast/node-initialize.yaml",
        "kustomize/stage/pod/fast/pod-ready.yaml",
        "kustomize/stage/pod/fast/pod-complete.yaml",
        "kustomize/stage/pod/fast/pod-delete.yaml",
    ),
)
HELM = BinarySet(
    name="helm",
    module="helm.sh/helm/v3",
    programs=(("helm", "helm.sh/helm/v3/cmd/helm"),),
    # Without a cluster, Helm renders for this version. The default is 1.20, which the chart refuses.
    link_values=(
        "helm.sh/helm/v3/internal/version.version=v3.22.0",
        *(
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}={number}"
            for package in ("chartutil", "lint/rules")
            for part, number in (("Major", _MAJOR), ("Minor", _MINOR))
        ),
    ),
)
PROMETHEUS = BinarySet(
    name="prometheus",
    module="github.com/prometheus/prometheus",
    programs=(
        ("prometheus", "github.com/prometheus/prometheus/cmd/prometheus"),
        ("promtool", "github.com/prometheus/prometheus/cmd/promtool"),
    ),
    # Service discovery for clouds is most of the build, and tests on loopback need none of it.
    tags=("remove_all_sd",),
)
ACTIONLINT = BinarySet(
    name="actionlint",
    module="github.com/rhysd/actionlint",
    programs=(("actionlint", "github.com/rhysd/actionlint/cmd/actionlint"),),
)
# What other systems read in a pod, by their own code. Only the packages that parse are built: their schedulers take
# as long as Kubernetes. HAMi is missing, because the module proxy does not have it.
DIALECTS = BinarySet(
    name="dialects",
    module="github.com/NVIDIA/KAI-scheduler",
    programs=(("kai", "./kai"), ("volcano", "./volcano")),
)
CONTROL_PLANE = (KUBERNETES, ETCD, KWOK, HELM, PROMETHEUS)
ALL = (*CONTROL_PLANE, ACTIONLINT, DIALECTS)


def _print(line: str) -> None:
    # Standard output belongs to the program: `python -m tests.controlplane helm template` is piped.
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Binaries:
    """The paths of the built programs."""

    kube_apiserver: Path
    kube_scheduler: Path
    kubectl: Path
    etcd: Path
    kwok: Path
    kwok_stages: tuple[Path, ...]
    helm: Path
    prometheus: Path
    promtool: Path


def built_program(binary_set: BinarySet, name: str, report: Callable[[str], None] = _print) -> Path:
    """One program, which is built if the cache lacks it."""
    return _ensure(_find_go(), binary_set, report) / "bin" / name


def built_binaries(report: Callable[[str], None] = _print) -> Binaries:
    """All programs of the control plane. Those that the cache lacks are built."""
    go = _find_go()
    kubernetes, etcd, kwok, helm, prometheus = (_ensure(go, binary_set, report) / "bin" for binary_set in CONTROL_PLANE)
    return Binaries(
        kube_apiserver=kubernetes / "kube-apiserver",
        kube_scheduler=kubernetes / "kube-scheduler",
        kubectl=kubernetes / "kubectl",
        etcd=etcd / "etcd",
        kwok=kwok / "kwok",
        kwok_stages=tuple(kwok / Path(file).name for file in KWOK.files),
        helm=helm / "helm",
        prometheus=prometheus / "prometheus",
        promtool=prometheus / "promtool",
    )


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vramcast" / "controlplane"


def _find_go() -> str:
    go = shutil.which("go")
    if go is None:
        raise BuildError(
            f"building the control plane needs Go {_required_go()} or newer, but there is no 'go' on PATH: "
            "install it from https://go.dev/dl/"
        )
    return go


def _required_go() -> str:
    return max((_go_line(binary_set) for binary_set in ALL), key=_version_tuple)


def _go_line(binary_set: BinarySet) -> str:
    found = re.search(r"^go (\S+)$", (binary_set.directory / "go.mod").read_text(), re.MULTILINE)
    if found is None:
        raise BuildError(f"{binary_set.directory / 'go.mod'} has no 'go' line")
    return found[1]


def _version_tuple(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _go_version(go: str, binary_set: BinarySet) -> str:
    """The version that compiles this module, which is a newer one if Go may download toolchains."""
    # "go env GOVERSION" fails in a module that requires a newer Go. "go version" does not.
    found = subprocess.run([go, "version"], cwd=binary_set.directory, capture_output=True, text=True, check=False)
    version = re.search(r"go(\d+\.\d+\S*)", found.stdout)
    required = _go_line(binary_set)
    if found.returncode or version is None or _version_tuple(version[1]) < _version_tuple(required):
        have = version[1] if version else (found.stderr.strip() or "unknown")
        raise BuildError(
            f"building {binary_set.name} needs Go {required} or newer, found {have} ({go}): install it from "
            "https://go.dev/dl/, or unset GOTOOLCHAIN=local to let Go download it"
        )
    return version[1]


def module_version(binary_set: BinarySet) -> str:
    """The pinned version, as Go writes it: v1.2.3."""
    text = (binary_set.directory / "go.mod").read_text()
    found = re.search(rf"^(?:require )?\s*{re.escape(binary_set.module)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"{binary_set.directory / 'go.mod'} does not require {binary_set.module}")
    return found[1]


def _cache_key(binary_set: BinarySet, go_version: str) -> str:
    digest = hashlib.sha256()
    own = sorted(binary_set.directory.glob("*/*.go"))  # programs of ours, where the module has none that fits
    for path in (binary_set.directory / "go.mod", binary_set.directory / "go.sum", *own):
        digest.update(path.read_bytes())
    digest.update(repr((go_version, binary_set, *binary_set.tags)).encode())
    return f"{binary_set.name}-{module_version(binary_set)}-{digest.hexdigest()[:12]}"


def _ensure(go: str, binary_set: BinarySet, report: Callable[[str], None]) -> Path:
    home = cache_root() / _cache_key(binary_set, _go_version(go, binary_set))
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with _lock(home.with_name(home.name + ".lock"), binary_set.name, report):
        if not home.is_dir():  # another process may have built it while this one waited
            report(f"control plane: {home.name} is not in {home.parent}; building everything takes ~15 min on 2 cores")
            _build_atomically(go, binary_set, home, report)
    return home


@contextmanager
def _lock(path: Path, name: str, report: Callable[[str], None]) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"control plane: waiting for another process to build {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build_atomically(go: str, binary_set: BinarySet, home: Path, report: Callable[[str], None]) -> None:
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=f".{binary_set.name}-") as temporary:
        target = Path(temporary) / "set"
        (target / "bin").mkdir(parents=True)
        label = f"{binary_set.name} {module_version(binary_set)}"
        for program, package in binary_set.programs:
            command = _build_command(go, binary_set, package, target / "bin" / program)
            _run_build(command, binary_set.directory, f"{program} ({label})", report)
        _copy_files(go, binary_set, target / "bin")
        target.rename(home)


def _build_command(go: str, binary_set: BinarySet, package: str, output: Path) -> list[str]:
    link = " ".join(("-s", "-w", *(f"-X {value}" for value in binary_set.link_values)))
    tags = ["-tags", ",".join(binary_set.tags)] if binary_set.tags else []
    options = ["-mod=readonly", "-trimpath", *tags, "-ldflags", link, "-o", str(output)]
    return ["nice", "-n", "10", go, "build", *options, package]


def _run_build(command: list[str], directory: Path, label: str, report: Callable[[str], None]) -> None:
    # Without cgo the build needs no C compiler and the result does not depend on the machine's libc.
    environment = {**os.environ, "CGO_ENABLED": "0"}
    started = time.monotonic()
    report(f"control plane: building {label}")
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log)
        try:
            while (code := _wait(process, PROGRESS_SECONDS)) is None:
                report(f"control plane: building {label}: {time.monotonic() - started:.0f} s")
        finally:
            process.kill()
            process.wait()
        if code:
            log.seek(0)
            raise BuildError(f"{' '.join(command)} failed in {directory}:\n{log.read()[-4000:]}")
    report(f"control plane: built {label} in {time.monotonic() - started:.0f} s")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _copy_files(go: str, binary_set: BinarySet, target: Path) -> None:
    if not binary_set.files:
        return
    listed = subprocess.run(
        [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", binary_set.module],
        cwd=binary_set.directory, capture_output=True, text=True, check=True,
    )  # fmt: skip
    module = Path(listed.stdout.strip())
    for file in binary_set.files:
        # Not copy2: it would copy the module cache's read-only mode.
        (target / Path(file).name).write_bytes((module / file).read_bytes())
