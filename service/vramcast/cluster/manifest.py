"""Parses pod manifests, YAML or JSON, from HTTP requests."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from vramcast.errors import InvalidRequest
from vramcast.task.pod import Pod, PodRecord, to_record

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


def manifest_record(document: Any) -> PodRecord:
    """The pod in a parsed manifest. Raises InvalidRequest."""
    if not isinstance(document, dict):
        raise InvalidRequest("expected a Pod manifest")
    kind = document.get("kind", "Pod")
    if kind != "Pod":
        raise InvalidRequest(f"kind: {str(kind)[:60]!r} is not valid: expected Pod (of others, send the pod template)")
    try:
        return to_record(msgspec.convert(document, Pod, strict=False))
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidRequest(f"the manifest is not a Pod: {error}") from None
