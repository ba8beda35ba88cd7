"""Single pods: where they are on the API server, and what they look like right now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import msgspec

from vramcast.cluster.transport import ANSWER_SECONDS, Action, ApiRefused, ApiResponse, Transport
from vramcast.task.pod import Pod

_GET: Final = Action("get", "pods")
_LIST: Final = Action("list", "pods")
_PAGE_PODS: Final = 500
_decoder: Final = msgspec.json.Decoder(Pod)


class _ListMetadata(msgspec.Struct, frozen=True, gc=False):
    token: str | None = msgspec.field(default=None, name="continue")


class _Page(msgspec.Struct, frozen=True, gc=False):
    metadata: _ListMetadata
    items: list[Pod] | None = None


_page_decoder: Final = msgspec.json.Decoder(_Page)


def pod_path(namespace: str, name: str) -> str:
    # Quoted, because the names come in over HTTP: a slash must not lead to another resource.
    return f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"


def get_pod(transport: Transport, namespace: str, name: str, timeout_seconds: float = ANSWER_SECONDS) -> Pod | None:
    """As the API server has it now, not as some cache remembers it; None if there is none. Raises ApiUnavailable."""
    answer = transport.request(_GET, "GET", pod_path(namespace, name), timeout_seconds=timeout_seconds)
    return None if answer.status == 404 else read_answer(answer)


def read_answer(answer: ApiResponse) -> Pod:
    """Raises ApiRefused."""
    try:
        return _decoder.decode(answer.content())
    except msgspec.MsgspecError as error:
        raise ApiRefused(f"cannot {answer.action}: the answer is not a pod: {error}", answer.status) from error


def list_unfinished_pods(transport: Transport, timeout_seconds: float = ANSWER_SECONDS) -> Iterator[Pod]:
    """All of them, at least as new as the call: no cache of the API server answers. Raises ApiUnavailable."""
    yield from _list(transport, "status.phase!=Succeeded,status.phase!=Failed", timeout_seconds)


def list_finished_pods(transport: Transport, timeout_seconds: float = ANSWER_SECONDS) -> Iterator[Pod]:
    """Old Jobs can be most of a cluster: for once, not for ever again. Raises ApiUnavailable."""
    for phase in ("Succeeded", "Failed"):
        yield from _list(transport, f"status.phase={phase}", timeout_seconds)


def _list(transport: Transport, selector: str, timeout_seconds: float) -> Iterator[Pod]:
    query: dict[str, str | int] = {"fieldSelector": selector, "limit": _PAGE_PODS}
    while True:
        answer = transport.request(_LIST, "GET", "/api/v1/pods", query=query, timeout_seconds=timeout_seconds)
        try:
            page = _page_decoder.decode(answer.content())
        except msgspec.MsgspecError as error:
            raise ApiRefused(f"cannot {_LIST}: the answer is not a list: {error}", answer.status) from error
        yield from page.items or ()
        if not page.metadata.token:
            return
        query["continue"] = page.metadata.token
