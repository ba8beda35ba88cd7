"""The demo's script: pods that are submitted and finish in the course of a day."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from vramcast.task.vocabulary import PREFIX

_FILES = files(__package__)
CLUSTER_FILE = Path(str(_FILES / "cluster.yaml"))
EXAMPLE_POD_FILE = Path(str(_FILES / "pod.yaml"))


@dataclass(frozen=True, slots=True)
class Submit:
    """A pod is created."""

    at: str
    namespace: str
    name: str
    note: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)

    def manifest(self, round_: str = "") -> dict[str, Any]:
        """`round_` distinguishes pods of one name: every pod has its own UID."""
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "namespace": self.namespace,
                "uid": f"{self.namespace}-{self.name}{round_ and f'-{round_}'}",
                "annotations": dict(self.annotations),
            },
            "spec": {"containers": [{"name": "train", "resources": {"limits": dict(self.limits)}}]},
        }


@dataclass(frozen=True, slots=True)
class Finish:
    """A pod succeeds."""

    at: str
    namespace: str
    name: str
    note: str


Step = Submit | Finish


def read_day() -> list[Step]:
    return list(_steps(yaml.safe_load((_FILES / "day.yaml").read_text())))


def _steps(entries: list[dict[str, Any]]) -> Iterator[Step]:
    for entry in entries:
        namespace, _, name = str(entry.get("submit") or entry["finish"]).partition("/")
        if "finish" in entry:
            yield Finish(entry["at"], namespace, name, entry["note"])
            continue
        annotations = full_annotations(entry.get("annotations", {}))
        limits = {key: _text(value) for key, value in entry.get("limits", {}).items()}
        yield Submit(entry["at"], namespace, name, entry["note"], annotations, limits)


def full_annotations(short: Mapping[str, Any]) -> dict[str, str]:
    return {_full(key): _text(value) for key, value in short.items()}


def _full(key: str) -> str:
    return key if "/" in key else PREFIX + key


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
