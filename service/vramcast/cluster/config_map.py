"""One ConfigMap, read and replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from vramcast.cluster.transport import MERGE_PATCH, Action, ApiRefused, ApiUnavailable, Transport

_GET: Final = Action("get", "configmaps")
_PATCH: Final = Action("patch", "configmaps")
_CREATE: Final = Action("create", "configmaps")
MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "vramcast"}


class Conflict(ApiUnavailable):
    """It is not (any more) as the writer knew it."""


@dataclass(frozen=True, slots=True)
class StoredConfigMap:
    data: Mapping[str, str]
    version: str


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct, frozen=True):
    metadata: _Metadata
    data: dict[str, str] | None = None


_decoder: Final = msgspec.json.Decoder(_Object)


def read_config_map(transport: Transport, namespace: str, name: str, timeout_seconds: float) -> StoredConfigMap | None:
    """As it is now; None if there is none. Raises ApiUnavailable."""
    answer = transport.request(_GET, "GET", _path(namespace, name), timeout_seconds=timeout_seconds)
    if answer.status == 404:
        return None
    found = _parse(answer.content(), answer.status)
    return StoredConfigMap(found.data or {}, found.metadata.resource_version)


def write_config_map(
    transport: Transport, namespace: str, name: str, data: Mapping[str, str], version: str, timeout_seconds: float
) -> str:
    """Its new version. Raises Conflict where the present one is not `version`, ApiUnavailable otherwise."""
    if version:
        # A patch: labels and annotations are others' business. The version in it is a precondition.
        patch = {"metadata": {"resourceVersion": version}, "data": data}
        answer = transport.request(
            _PATCH, "PATCH", _path(namespace, name), body=patch, content_type=MERGE_PATCH,
            timeout_seconds=timeout_seconds,
        )  # fmt: skip
    else:
        metadata = {"name": name, "namespace": namespace, "labels": MANAGED_BY}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        answer = transport.request(_CREATE, "POST", _path(namespace), body=document, timeout_seconds=timeout_seconds)
    if answer.status in (404, 409):
        raise Conflict(str(answer.refusal()))
    return _parse(answer.content(), answer.status).metadata.resource_version


def _parse(body: bytes, status: int) -> _Object:
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise ApiRefused(f"cannot {_GET}: the answer is not a ConfigMap: {error}", status) from error


def _path(namespace: str, name: str | None = None) -> str:
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
    return path if name is None else f"{path}/{quote(name, safe='')}"
