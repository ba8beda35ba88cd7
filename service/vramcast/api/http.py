"""HTTP around the verbs: a bare ASGI app, because every call of the scheduler passes through it.

A bad body gets a 4xx with the cause. A defect gets a 500 without details, and a log entry with them. kube-scheduler
treats anything but a 200 as an error of the extender.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import parse_qsl

import msgspec
import structlog

from vramcast.api import inspection
from vramcast.api.bind import bind_pod
from vramcast.api.body_limits import BodyRefused, Receive, Scope, Send
from vramcast.api.filter import filter_nodes
from vramcast.api.preempt import preempt_pods
from vramcast.api.prioritize import prioritize_nodes
from vramcast.api.wire import Reply
from vramcast.errors import InvalidInput, NotSynced
from vramcast.observe.metrics import VERBS
from vramcast.service import Service

Verb = Callable[[Service, bytes], Awaitable[Reply]]
Page = Callable[[Service, bytes, Mapping[str, str]], Awaitable[Reply]]

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
METRICS = b"text/plain; version=0.0.4; charset=utf-8"

log = structlog.get_logger("vramcast")


class HttpApp:
    """`probes_only`: serve only what may be open to the network, because it changes nothing and reveals no secrets."""

    def __init__(self, service: Service, *, probes_only: bool = False) -> None:
        self._service = service
        self._seconds = {verb: service.metrics.request_seconds.labels(verb) for verb in VERBS}
        self._verbs: dict[str, Verb] = {
            "/filter": filter_nodes,
            "/prioritize": prioritize_nodes,
            "/bind": bind_pod,
            "/preempt": preempt_pods,
        }
        self._pages: dict[str, tuple[str, Page]] = {
            "/forecast": ("POST", inspection.show_forecast),
            "/explain": ("POST", inspection.explain_pod),
            "/state": ("GET", inspection.show_state),
            "/records": ("GET", inspection.show_records),
        }
        self._probes: dict[str, Callable[[], tuple[int, bytes, bytes]]] = {
            "/healthz": lambda: (200, TEXT, b"ok\n"),
            "/readyz": self._ready,
            "/metrics": lambda: (200, METRICS, service.metrics.render()),
        }
        if probes_only:
            self._verbs, self._pages = {}, {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path in self._verbs or path in self._pages:
            status, kind, body = await self._call(path, method, scope, receive)
        elif path in self._probes:
            allowed = method in ("GET", "HEAD")
            status, kind, body = self._probes[path]() if allowed else _not_allowed("GET")
        else:
            known = ", ".join([*self._verbs, *self._pages, *self._probes])
            status, kind, body = 404, JSON, _error(f"there is no {path[:100]}; the paths are {known}")
        await _respond(send, status, kind, b"" if method == "HEAD" else body, len(body))

    async def _call(self, path: str, method: str, scope: Scope, receive: Receive) -> tuple[int, bytes, bytes]:
        started = time.perf_counter()
        name = path[1:]
        expected = "POST" if path in self._verbs else self._pages[path][0]
        if method != expected:
            return _not_allowed(expected)
        status, answer = 200, Reply(b"")
        try:
            answer = await self._answer(path, await _read_body(receive), scope)
        except BodyRefused as error:
            status, answer = error.status, _bad(str(error), error.cause)
        except InvalidInput as error:
            status, answer = 400, _bad(str(error), "bad_request")
        except NotSynced as error:
            status, answer = 503, _bad(str(error), "not_synced")
        except Exception:
            log.exception("defect", verb=name)
            status, answer = 500, _bad("internal error of vramcast, see its log", "defect")
        # Metrics, log and holds follow after the answer is sent: the scheduler need not wait for them.
        asyncio.get_running_loop().call_soon(self._afterwards, name, answer, time.perf_counter() - started)
        return status, JSON, answer.body

    async def _answer(self, path: str, body: bytes, scope: Scope) -> Reply:
        verb = self._verbs.get(path)
        if verb is not None:
            return await verb(self._service, body)
        query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1")))
        return await self._pages[path][1](self._service, body, query)

    def _afterwards(self, verb: str, answer: Reply, seconds: float) -> None:
        self._service.state.ledger.enter_pending_hold()
        self._observe(verb, answer, seconds)

    def _observe(self, verb: str, answer: Reply, seconds: float) -> None:
        self._seconds[verb].observe(seconds)
        if answer.cause:
            self._service.metrics.request_errors.labels(verb, answer.cause).inc()
        # Inspection is logged at debug, or polling dashboards would drown the decisions.
        write = log.warning if answer.cause else log.info if f"/{verb}" in self._verbs else log.debug
        write(verb, pod=answer.pod, node=answer.node, decision=answer.decision, ms=round(seconds * 1e3, 2))

    def _ready(self) -> tuple[int, bytes, bytes]:
        try:
            self._service.check_synced()
        except NotSynced as error:
            return 503, TEXT, f"{error}\n".encode()
        return 200, TEXT, b"ready\n"


async def _read_body(receive: Receive) -> bytes:
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


async def _respond(send: Send, status: int, kind: bytes, body: bytes, length: int) -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % length)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(message: str) -> bytes:
    return msgspec.json.encode({"Error": message})


def _bad(message: str, cause: str) -> Reply:
    return Reply(_error(message), decision=message, cause=cause)


def _not_allowed(expected: str) -> tuple[int, bytes, bytes]:
    return 405, JSON, _error(f"expected {expected}")
