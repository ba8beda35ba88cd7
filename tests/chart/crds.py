"""The CustomResourceDefinitions of the Prometheus operator and cert-manager, from the Go module proxy."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane import PATIENCE_SECONDS


@dataclass(frozen=True, slots=True)
class Module:
    """`checksum`: as in a go.sum."""

    path: str
    version: str
    checksum: str
    files: tuple[str, ...]


MODULES = (
    Module(
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        tuple(
            f"example/prometheus-operator-crd/monitoring.coreos.com_{kind}.yaml"
            for kind in ("podmonitors", "servicemonitors", "prometheusrules")
        ),
    ),
    Module(
        "github.com/cert-manager/cert-manager",
        "v1.21.2",
        "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        ("deploy/crds/cert-manager.io_certificates.yaml", "deploy/crds/cert-manager.io_issuers.yaml"),
    ),
)


def foreign_crds() -> list[Path]:
    return [path for module in MODULES for path in _download(module)]


def _download(module: Module) -> list[Path]:
    """Downloads into Go's module cache, where the next run finds it."""
    # The checksum below replaces the public checksum database, which may not be reachable.
    environment = {**os.environ, "GONOSUMDB": "*", "GOFLAGS": "-mod=mod", "GO111MODULE": "on"}
    done = subprocess.run(
        ["go", "mod", "download", "-json", f"{module.path}@{module.version}"],
        cwd="/", env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"cannot download {module.path}: {done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    assert found["Sum"] == module.checksum, f"{module.path}: {found['Sum']} is not the pinned checksum"
    return [Path(found["Dir"]) / file for file in module.files]
