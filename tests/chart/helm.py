"""Helm, as a user runs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane import PATIENCE_SECONDS
from tests.controlplane.binaries import built_binaries

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "helm/vramcast"

Json = dict[str, Any]


class HelmError(RuntimeError):
    """Helm failed; the message is its output."""


@dataclass(frozen=True, slots=True)
class Helm:
    program: Path
    kubeconfig: Path | None = None

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        command = [str(self.program), *arguments]
        if self.kubeconfig is not None:
            command.append(f"--kubeconfig={self.kubeconfig}")
        if values is not None:
            command.append("--values=-")
        done = subprocess.run(
            command,
            input=json.dumps(values or {}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        if done.returncode:
            raise HelmError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def template(
        self,
        values: Mapping[str, Any],
        kube_version: str = "v1.36.3",
        release: str = "vramcast",
        namespace: str = "gpu",
    ) -> list[Json]:
        text = _rendered(self, json.dumps(values), kube_version, release, namespace)
        return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def _rendered(helm: Helm, values: str, kube_version: str, release: str, namespace: str) -> str:
    """Many tests look at the same cases, and each rendering starts a process."""
    version = f"--kube-version={kube_version}"
    return helm.run("template", release, str(CHART), f"--namespace={namespace}", version, values=json.loads(values))


@cache
def offline_helm() -> Helm:
    return Helm(built_binaries().helm)


def named(documents: list[Json], kind: str, name: str | None = None) -> Json:
    found = [d for d in documents if d["kind"] == kind and (name is None or d["metadata"]["name"] == name)]
    assert len(found) == 1, f"{len(found)} of {kind} {name or ''}"
    return found[0]
