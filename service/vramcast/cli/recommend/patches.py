"""`--patch`: the annotations of each workload, as a file for `kubectl patch --patch-file`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from vramcast.errors import InvalidInput
from vramcast.recommend.advice import Recommendation, RecommendedAction
from vramcast.recommend.report import Report, is_gone
from vramcast.task.quantity import format_mib, human_mib
from vramcast.task.vocabulary import PREFIX

_TEMPLATE: Final = ("spec", "template")
# Where these kinds have their pod template. Kubernetes merges their lists of containers by name.
_PLACES: Final[dict[str, tuple[str, ...]]] = {
    "Deployment": _TEMPLATE, "StatefulSet": _TEMPLATE, "DaemonSet": _TEMPLATE, "ReplicaSet": _TEMPLATE,
    "Job": _TEMPLATE, "CronJob": ("spec", "jobTemplate", "spec", "template"), "Pod": (),
}  # fmt: skip
# The API server lets nobody change these once they exist: the patch is for their manifest.
_IMMUTABLE: Final = frozenset({"Job", "Pod"})


def annotations_of(one: Recommendation) -> dict[str, str]:
    """What the pod template should say; nothing where nothing certain is known."""
    if one.verdict is RecommendedAction.UNCLEAR or one.profile:
        return {}
    told = {f"{PREFIX}gpu-memory": format_mib(min(one.need.mib, one.usable_mib))}
    return {**told, f"{PREFIX}share": "true"} if shares(one) else told


def shares(one: Recommendation) -> bool:
    """A pod that shares asks for no device, so the patch has to take the device away: it must know the container."""
    return one.verdict is RecommendedAction.SHARE and bool(one.containers and one.devices)


def patch_of(one: Recommendation) -> dict[str, Any] | None:
    place = _PLACES.get(one.workload.kind)
    annotations = annotations_of(one)
    if place is None or not annotations or one.workload.guessed:
        return None
    pod: dict[str, Any] = {"metadata": {"annotations": annotations}}
    if shares(one):
        without = dict.fromkeys(one.devices)
        resources = {"limits": without, "requests": dict(without)}
        pod["spec"] = {"containers": [{"name": name, "resources": resources} for name in one.containers]}
    for key in reversed(place):
        pod = {key: pod}
    return pod


def write_patches(report: Report, directory: Path) -> tuple[int, int]:
    """How many files were written, and how many workloads have none."""
    present = [one for one in report.recommendations if not is_gone(one, report.history)]
    written = 0
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for one in present:
            patch = patch_of(one)
            if patch is not None:
                path = directory / file_name(one)
                path.write_text(_comment(one, path, report.risk) + _yaml(patch), encoding="utf-8")
                written += 1
    except OSError as error:
        raise InvalidInput(f"--patch {directory}: cannot be written: {error}") from None
    return written, len(report.recommendations) - written


def file_name(one: Recommendation) -> str:
    """A workload may run on several products: each has its own file."""
    parts = (one.workload.namespace, one.workload.kind.lower(), one.workload.name, one.product)
    return ".".join(re.sub(r"[^\w-]+", "-", part) for part in parts) + ".yaml"


def _comment(one: Recommendation, path: Path, risk: float) -> str:
    kind, name, namespace = one.workload.kind.lower(), one.workload.name, one.workload.namespace
    if one.workload.kind in _IMMUTABLE:
        command = f"kubectl patch --local --filename {kind}.yaml --patch-file {path} --output yaml"
    else:
        command = f"kubectl --namespace {namespace} patch {kind} {name} --patch-file {path}"
    runs = f"{one.runs} run{'s' * (one.runs != 1)}"
    return (
        f"# {one.workload.kind} {one.workload.label} on {one.product}: at most {human_mib(one.peak_mib)} in {runs}, "
        f"needs {human_mib(one.need.mib)} at risk {risk:g}\n# {command}\n"
    )


def _yaml(patch: dict[str, Any]) -> str:
    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - a patch is read by people
            return True

    return yaml.dump(patch, Dumper=Plain, sort_keys=False)
