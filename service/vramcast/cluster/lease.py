"""The Lease by which kube-schedulers agree who leads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec

from vramcast.cluster.transport import Action, ApiRefused, Transport

_GET: Final = Action("get", "leases")
_DEFAULT_DURATION_SECONDS: Final = 15


@dataclass(frozen=True, slots=True)
class Lease:
    """`holder` is empty when nobody leads. `renewal` changes with every renewal; it is not a time to compare."""

    holder: str
    transitions: int
    duration_seconds: int
    renewal: str


class _Spec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    holder_identity: str | None = None
    lease_transitions: int | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class _Object(msgspec.Struct, frozen=True, gc=False):
    spec: _Spec | None = None


_decoder: Final = msgspec.json.Decoder(_Object)


def read_lease(transport: Transport, namespace: str, name: str, timeout_seconds: float) -> Lease | None:
    """As it is now; None if there is none. Raises ApiUnavailable."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases/{quote(name, safe='')}"
    answer = transport.request(_GET, "GET", path, timeout_seconds=timeout_seconds)
    if answer.status == 404:
        return None
    try:
        spec = _decoder.decode(answer.content()).spec or _Spec()
    except msgspec.MsgspecError as error:
        raise ApiRefused(f"cannot {_GET}: the answer is not a Lease: {error}", answer.status) from error
    return Lease(
        spec.holder_identity or "",
        spec.lease_transitions or 0,
        spec.lease_duration_seconds or _DEFAULT_DURATION_SECONDS,
        spec.renew_time or "",
    )
