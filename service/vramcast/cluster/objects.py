"""Requests for single objects: pods, the scheduler's Lease, and the ConfigMap that stores learned state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from vramcast.cluster.transport import (
    ANSWER_SECONDS,
    JSON,
    MERGE_PATCH,
    Action,
    ApiRefused,
    ApiResponse,
    ApiUnavailable,
    Transport,
)
from vramcast.task.pod import Pod

MANAGED_BY: Final = {"app.kubernetes.io/managed-by": "vramcast"}
UNFINISHED: Final = "status.phase!=Succeeded,status.phase!=Failed"
_PAGE_PODS: Final = 500
_DEFAULT_LEASE_SECONDS: Final = 15
_T = TypeVar("_T")


def object_path(namespace: str, resource: str, name: str | None = None, api: str = "/api/v1") -> str:
    # Quoted because names arrive over HTTP: a slash must not lead to another resource.
    path = f"{api}/namespaces/{quote(namespace, safe='')}/{resource}"
    return path if name is None else f"{path}/{quote(name, safe='')}"


def decode(answer: ApiResponse, kind: type[_T]) -> _T:
    """Raises ApiRefused."""
    try:
        return msgspec.json.decode(answer.content(), type=kind)
    except msgspec.MsgspecError as error:
        message = f"cannot {answer.action}: unexpected answer from the API server: {error}"
        raise ApiRefused(message, answer.status) from error


class ListMetadata(msgspec.Struct, frozen=True, gc=False):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str | None = msgspec.field(default=None, name="continue")


class Page(msgspec.Struct, Generic[_T], frozen=True, gc=False):
    """One page of a list; `metadata.token` is set if there are more."""

    metadata: ListMetadata
    items: list[_T] | None = None


# --- pods


def get_pod(transport: Transport, namespace: str, name: str, timeout_seconds: float = ANSWER_SECONDS) -> Pod | None:
    """Reads the pod from etcd, not from a cache. None if it does not exist. Raises ApiUnavailable."""
    path = object_path(namespace, "pods", name)
    answer = transport.request(Action("get", "pods"), "GET", path, timeout_seconds=timeout_seconds)
    return None if answer.status == 404 else decode(answer, Pod)


def list_unfinished_pods(transport: Transport) -> Iterator[Pod]:
    """Reads from etcd: no older than the call. Raises ApiUnavailable."""
    yield from _list_pods(transport, UNFINISHED)


def list_finished_pods(transport: Transport) -> Iterator[Pod]:
    """Most pods of a cluster can be old Jobs: call this once, at startup. Raises ApiUnavailable."""
    for phase in ("Succeeded", "Failed"):
        yield from _list_pods(transport, f"status.phase={phase}")


def _list_pods(transport: Transport, selector: str) -> Iterator[Pod]:
    query: dict[str, str | int] = {"fieldSelector": selector, "limit": _PAGE_PODS}
    while True:
        page = decode(transport.request(Action("list", "pods"), "GET", "/api/v1/pods", query=query), Page[Pod])
        yield from page.items or ()
        if not page.metadata.token:
            return
        query["continue"] = page.metadata.token


# --- the Lease by which kube-schedulers elect a leader


@dataclass(frozen=True, slots=True)
class Lease:
    """`holder` is empty without a leader. `renewal` changes on every renewal; compare it only for equality."""

    holder: str
    transitions: int
    duration_seconds: int
    renewal: str


class _LeaseSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class _LeaseObject(msgspec.Struct, frozen=True, gc=False):
    spec: _LeaseSpec | None = None


def read_lease(transport: Transport, namespace: str, name: str, timeout_seconds: float) -> Lease | None:
    """None if it does not exist. Raises ApiUnavailable."""
    path = object_path(namespace, "leases", name, "/apis/coordination.k8s.io/v1")
    answer = transport.request(Action("get", "leases"), "GET", path, timeout_seconds=timeout_seconds)
    if answer.status == 404:
        return None
    spec = decode(answer, _LeaseObject).spec or _LeaseSpec()
    return Lease(
        spec.holder_identity or "",
        spec.lease_transitions or 0,
        spec.lease_duration_seconds or _DEFAULT_LEASE_SECONDS,
        spec.renew_time or "",
    )


# --- the ConfigMap


class Conflict(ApiUnavailable):
    """The ConfigMap is not at the version that the writer read."""


@dataclass(frozen=True, slots=True)
class StoredConfigMap:
    data: Mapping[str, str]
    version: str


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""


class _ConfigMapObject(msgspec.Struct, frozen=True):
    metadata: _Version
    data: dict[str, str] | None = None


def read_config_map(transport: Transport, namespace: str, name: str, timeout_seconds: float) -> StoredConfigMap | None:
    """None if it does not exist. Raises ApiUnavailable."""
    path = object_path(namespace, "configmaps", name)
    answer = transport.request(Action("get", "configmaps"), "GET", path, timeout_seconds=timeout_seconds)
    if answer.status == 404:
        return None
    found = decode(answer, _ConfigMapObject)
    return StoredConfigMap(found.data or {}, found.metadata.resource_version)


def write_config_map(
    transport: Transport, namespace: str, name: str, data: Mapping[str, str], version: str, timeout_seconds: float
) -> str:
    """Replaces `version` (creates if empty); returns the new version. Raises Conflict and ApiUnavailable."""
    if version:
        # A patch leaves other people's labels and annotations alone. The version in it is a precondition.
        action, method, content_type = Action("patch", "configmaps"), "PATCH", MERGE_PATCH
        path = object_path(namespace, "configmaps", name)
        body: object = {"metadata": {"resourceVersion": version}, "data": data}
    else:
        action, method, content_type = Action("create", "configmaps"), "POST", JSON
        path = object_path(namespace, "configmaps")
        metadata = {"name": name, "namespace": namespace, "labels": MANAGED_BY}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
    answer = transport.request(
        action, method, path, body=body, content_type=content_type, timeout_seconds=timeout_seconds
    )
    if answer.status in (404, 409):
        raise Conflict(str(answer.refusal()))
    return decode(answer, _ConfigMapObject).metadata.resource_version
