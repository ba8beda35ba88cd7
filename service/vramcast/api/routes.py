"""The routes of the service. Both kinds count, time and log every request; a defect gets a 500 without details.

A `VerbRoute` is declared like any FastAPI route, so that it is documented, and is answered without FastAPI: no
pydantic, no Request, no Response. It costs 9 µs more than a bare ASGI app, and an ordinary endpoint 57 µs more
(`bench/routes.py`). kube-scheduler makes three such calls for every pod.

kube-scheduler treats anything but a 200 as an error of the extender.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import msgspec
import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.routing import Match

from vramcast.api.body_limits import BodyRefused, Receive, Scope, Send
from vramcast.api.models import ErrorAnswer
from vramcast.api.wire import Reply
from vramcast.errors import InvalidInput, NotSynced
from vramcast.service import Service

Verb = Callable[[Service, bytes], Awaitable[Reply]]

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorAnswer, "description": "The request is not valid"},
    413: {"model": ErrorAnswer, "description": "The body is larger than the setting max_body_mib"},
    500: {"model": ErrorAnswer, "description": "A defect of vramcast; its log has the details"},
    503: {"model": ErrorAnswer, "description": "The state of the cluster is not known, or all bodies are too large"},
}
VERB_ERRORS = {403: {"model": ErrorAnswer, "description": "The request comes from a browser"}, **ERRORS}
_JSON = b"application/json"

log = structlog.get_logger("vramcast")


class ReplyResponse(Response):
    media_type = "application/json"

    def __init__(self, reply: Reply, status_code: int = 200) -> None:
        super().__init__(reply.body, status_code)
        self.reply = reply


class VerbRoute(APIRoute):
    def __init__(
        self, service: Service, path: str, verb: Verb, *, takes: type[BaseModel], gives: type[BaseModel], summary: str
    ) -> None:
        declared: Any = partial(verb)
        declared.__signature__ = inspect.Signature(
            [inspect.Parameter("body", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=takes)]
        )
        super().__init__(
            path, declared, methods=["POST"], name=path[1:], response_model=gives, responses=VERB_ERRORS,
            summary=summary, description=inspect.getdoc(verb) or "", operation_id=path[1:], tags=["kube-scheduler"],
        )  # fmt: skip
        self._verb, self._service, self._name = verb, service, path[1:]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL, {}) if scope["type"] == "http" and scope["path"] == self.path else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
        if any(name == b"origin" for name, _ in scope["headers"]):
            # A page of any site may send a POST to a port that its reader has forwarded. Browsers say so; Go does not.
            raise HTTPException(403, "the verbs are for kube-scheduler, not for browsers")
        started, status = time.perf_counter(), 200
        try:
            with self._service.right_of_way.arriving():
                body = await read_body(receive)
            reply = await self._verb(self._service, body)
        except Exception as error:
            status, reply = error_reply(self._name, error)
        # Metrics, log and holds follow after the answer is sent: the scheduler need not wait for them.
        asyncio.get_running_loop().call_soon(self._afterwards, reply, time.perf_counter() - started)
        await send_reply(send, status, reply)

    def _afterwards(self, reply: Reply, seconds: float) -> None:
        self._service.state.ledger.enter_pending_hold()
        count(self._service, self._name, reply, seconds, log.info)


class InspectionRoute(APIRoute):
    """For people and the page. Its requests are logged at debug, or polling would drown the decisions."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            started, service = time.perf_counter(), request.app.state.service
            try:
                response = await handler(request)
            except Exception as error:
                status, reply = error_reply(self.name, error)
                response = ReplyResponse(reply, status)
            reply = response.reply if isinstance(response, ReplyResponse) else Reply(b"")
            count(service, self.name, reply, time.perf_counter() - started, log.debug)
            return response

        return handle


async def send_reply(send: Send, status: int, reply: Reply) -> None:
    headers = [(b"content-type", _JSON), (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


async def read_body(receive: Receive) -> bytes:
    """Raises BodyRefused."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    chunks = [body]
    while message.get("more_body"):
        message = await receive()
        chunks.append(message.get("body", b""))
    return b"".join(chunks)


def error_reply(name: str, error: Exception) -> tuple[int, Reply]:
    """The status and the answer, from the first that matches."""
    match error:
        case BodyRefused():
            return error.status, _bad(str(error), error.cause)
        case HTTPException():
            return error.status_code, _bad(error.detail, "not_found")
        case InvalidInput():
            return 400, _bad(str(error), "bad_request")
        case RequestValidationError():
            return 400, _bad("; ".join(_mistake(each) for each in error.errors()), "bad_request")
        case NotSynced():
            return 503, _bad(str(error), "not_synced")
        case _:
            log.error("defect", verb=name, exc_info=error)
            return 500, _bad("internal error of vramcast, see its log", "defect")


def count(service: Service, name: str, reply: Reply, seconds: float, write: Callable[..., Any]) -> None:
    service.metrics.request_seconds.labels(name).observe(seconds)
    if reply.cause:
        service.metrics.request_errors.labels(name, reply.cause).inc()
        write = log.warning
    write(name, pod=reply.pod, node=reply.node, decision=reply.decision, ms=round(seconds * 1e3, 2))


def error_body(message: str) -> bytes:
    return msgspec.json.encode({"Error": message})


def _bad(message: str, cause: str) -> Reply:
    return Reply(error_body(message), decision=message, cause=cause)


def _mistake(error: Any) -> str:
    where = ".".join(map(str, error["loc"]))
    return f"{where}: {str(error.get('input'))[:60]!r} is not valid: {error['msg']}"
