"""Parses manifests of pods and of what makes pods, YAML or JSON, from HTTP requests."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
import yaml

from vramcast.admission.change import apply
from vramcast.admission.context import Context
from vramcast.admission.inject import share
from vramcast.errors import InvalidRequest
from vramcast.settings import load_settings
from vramcast.task.pod import Pod, PodRecord, to_record
from vramcast.task.task import describes
from vramcast.task.workloads import Template, find_misplaced, find_templates

# Room for a profile, the longest annotation.
MAX_YAML_BYTES = 256 * 1024
_MAX_DEPTH = 64
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: bytes) -> Any:
    """Raises InvalidRequest."""
    if len(text) > MAX_YAML_BYTES:
        raise InvalidRequest(f"the manifest is larger than {MAX_YAML_BYTES // 1024} KiB")
    try:
        _check_shape(text)
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise InvalidRequest(f"neither JSON nor YAML: {' '.join(str(error).split())[:200]}") from None


def _check_shape(text: bytes) -> None:
    """Rejects aliases, which can expand to gigabytes, and deep nesting, which takes quadratic time to parse."""
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases (*name) are not read here")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ValueError(f"nested more than {_MAX_DEPTH} deep")


def manifest_record(document: Any, template: str | None = None) -> PodRecord:
    """The pod in a parsed manifest, or the pod that a Job or another workload makes. Raises InvalidRequest.

    `template`: the role of the pod template, where a workload has several that describe a task.
    """
    if not isinstance(document, dict):
        raise InvalidRequest("expected a manifest of a Pod, Job, Deployment, PyTorchJob or another workload")
    if document.get("kind", "Pod") == "Pod":
        return _record(document)
    return _record(_chosen(document, template).pod())


def _chosen(document: dict[str, Any], wanted: str | None) -> Template:
    kind = str(document["kind"])[:60]
    templates = find_templates(document)
    if not templates:
        raise InvalidRequest(
            f"kind: {kind!r} has no pod template: expected a Pod, Job, Deployment, PyTorchJob, RayJob, ..."
        )
    described = [each for each in templates if any(describes(str(name)) for name in each.annotations)]
    if not described and (misplaced := find_misplaced(document)):
        place, belongs = misplaced[0].place, misplaced[0].templates[0].annotations_place
        raise InvalidRequest(
            f"{'.'.join(map(str, place))}: {misplaced[0].name}: no pod gets annotations from here: move them to "
            f"{'.'.join(map(str, belongs))}"
        )
    fitting = [each for each in described or templates if wanted is None or each.role.lower() == wanted.lower()]
    if len(fitting) != 1:
        roles = ", ".join(each.role for each in described or templates)
        raise InvalidRequest(f"the {kind} has several pod templates: choose one with ?template=ROLE, of {roles}")
    return fitting[0]


def _record(pod: dict[str, Any]) -> PodRecord:
    try:
        return shared_record(pod)[0]
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidRequest(f"the manifest is not a Pod: {error}") from None


def shared_record(pod: dict[str, Any]) -> tuple[PodRecord, bool]:
    """As the webhook would admit it: a described pod that asks for no GPU shares one; True if that was filled in.

    Raises msgspec.ValidationError.
    """
    shares = share(pod, _context()) if isinstance(pod.get("metadata"), dict) else []
    return to_record(msgspec.convert(apply(pod, shares)[0], Pod, strict=False)), bool(shares)


@lru_cache(maxsize=1)
def _context() -> Context:
    return Context(load_settings({}, {}))
