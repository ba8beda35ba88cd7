"""HTTP to the API server: pooled connections, and a timeout on every request.

The only place that translates urllib3's errors and HTTP status codes into ours:

    WorldUnavailable
    └── ApiUnavailable
        ├── ApiUnreachable   no answer; `maybe_applied` tells whether the request may have taken effect
        └── ApiRefused       an error answer; callers that can recover check `status`
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import msgspec
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, ProxyError, ReadTimeoutError

from vramcast.errors import WorldUnavailable

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 30.0
JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
RULES_FILE: Final = "helm/vramcast/files/rules.yaml"
_MOST_RETRY_AFTER_SECONDS = 60.0
_NO_HEADERS: Final[Mapping[str, str]] = {}


class ApiUnavailable(WorldUnavailable):
    """A request to the API server failed."""


class ApiUnreachable(ApiUnavailable):
    """No answer. `quiet`: the connection is up, but nothing arrived before the timeout."""

    def __init__(self, message: str, *, maybe_applied: bool, quiet: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied
        self.quiet = quiet


class ApiRefused(ApiUnavailable):
    """The API server answered with an error."""

    def __init__(self, message: str, status: int, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def gone(self) -> bool:
        """The requested resource version has been compacted: list again."""
        return self.status == 410


class Status(msgspec.Struct, frozen=True, gc=False):
    """The body of an error answer, and the object of an ERROR event in a watch."""

    code: int | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """A request as RBAC names it, so that an error can name the permission that is missing."""

    verb: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A status and a body. Error codes raise only in `content`."""

    action: Action
    status: int
    body: bytes
    retry_after_seconds: float | None = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def refusal(self) -> ApiRefused:
        return refusal(self.action, self.status, read_status(self.body), self.retry_after_seconds)

    def content(self) -> bytes:
        """The body. Raises ApiRefused."""
        if not self.ok:
            raise self.refusal()
        return self.body


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay doubles from `first_seconds` to `longest_seconds`; `jitter` (0 to 1) shortens it by up to half."""

    first_seconds: float = 0.1
    longest_seconds: float = 10.0
    jitter: Callable[[], float] = random.random

    def delay_seconds(self, failures: int) -> float:
        """How long to wait after this many failures in a row."""
        if failures <= 0:
            return 0.0
        # The exponent is bounded because an outage of days would overflow a float.
        ceiling = min(self.longest_seconds, self.first_seconds * 2.0 ** min(failures - 1, 32))
        return ceiling * (1.0 - self.jitter() / 2)


class Transport:
    """Thread-safe. `headers` is called for every request, because tokens rotate."""

    def __init__(self, pool: urllib3.PoolManager, url: str, headers: Callable[[], Mapping[str, str]]) -> None:
        self._pool = pool
        self._url = url.rstrip("/")
        self._headers = headers

    def request(
        self,
        action: Action,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: object = None,
        content_type: str = JSON,
        timeout_seconds: float = ANSWER_SECONDS,
    ) -> ApiResponse:
        """Returns any answer, errors included. Raises ApiUnreachable."""
        timeout = urllib3.Timeout(connect=min(CONNECT_SECONDS, timeout_seconds), total=timeout_seconds)
        payload = None if body is None else msgspec.json.encode(body)
        extra = {"Content-Type": content_type} if payload is not None else _NO_HEADERS
        with _translated(action):
            response = self._send(method, path, query, payload, extra, timeout, preload=True)
            return ApiResponse(action, response.status, response.data, _retry_after_seconds(response))

    def stream(
        self,
        action: Action,
        path: str,
        query: Mapping[str, str | int],
        quiet_seconds: float,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> Stream:
        """A GET with an endless body. Raises ApiUnreachable and ApiRefused.

        The headers must arrive within `answer_seconds`; after that the body may pause for up to `quiet_seconds`.
        """
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=answer_seconds)
        with _translated(action):
            response = self._send("GET", path, query, None, _NO_HEADERS, timeout, preload=False)
            if not 200 <= response.status < 300:
                raise ApiResponse(action, response.status, response.data, _retry_after_seconds(response)).refusal()
        return Stream(action, response, quiet_seconds)

    def close(self) -> None:
        self._pool.clear()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str | int] | None,
        payload: bytes | None,
        extra: Mapping[str, str],
        timeout: urllib3.Timeout,
        *,
        preload: bool,
    ) -> urllib3.BaseHTTPResponse:
        target = f"{self._url}{path}" + (f"?{urlencode(query)}" if query else "")
        return self._pool.request(
            method,
            target,
            body=payload,
            headers={"Accept": JSON, **self._headers(), **extra},
            timeout=timeout,
            # The callers retry: only they know whether a request is safe to repeat.
            retries=False,
            preload_content=preload,
        )


class Stream:
    """The body of a watch. One thread reads it; any thread may call `interrupt`."""

    def __init__(self, action: Action, response: urllib3.BaseHTTPResponse, quiet_seconds: float) -> None:
        self._action = action
        self._response = response
        if (socket := self._socket()) is not None:
            socket.settimeout(quiet_seconds)

    def read(self) -> bytes:
        """Blocks until bytes arrive; returns b"" at the end of the stream. Raises ApiUnreachable."""
        with _translated(self._action):
            return self._response.read1() or b""

    def interrupt(self) -> None:
        """Wakes the reader: its `read` returns or raises."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        self._response.close()

    def _socket(self) -> Any:  # socket.socket, ssl.SSLSocket, or None after the end of the body
        return getattr(self._response.connection, "sock", None)


def refusal(action: Action, status: int, body: Status, retry_after_seconds: float | None = None) -> ApiRefused:
    """An error that names the action, the server's message and, where there is one, the fix."""
    message = f"cannot {action}: the API server answered {status}"
    if body.message:
        message += f": {body.message[:500]}"
    if status == 403:
        verb, resource = action.verb, action.resource
        message += f"; allow verb {verb!r} on {resource!r} in ClusterRole vramcast-extender ({RULES_FILE})"
    if status == 401:
        message += "; the credentials are missing, wrong or expired"
    return ApiRefused(message, status, retry_after_seconds)


def read_status(body: bytes) -> Status:
    """Proxies answer too, and not with a Status: then the message is the start of the body."""
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        return Status(message=body[:200].decode(errors="replace").strip())


@contextmanager
def _translated(action: Action) -> Iterator[None]:
    try:
        yield
    except HTTPError as error:
        cause = error.original_error if isinstance(error, ProxyError) else error
        # The connection was never established, so no byte of the request was sent.
        unsent = isinstance(cause, ConnectTimeoutError)
        quiet = isinstance(error, ReadTimeoutError)
        raise ApiUnreachable(f"cannot {action}: {_in_words(error)}", maybe_applied=not unsent, quiet=quiet) from error


def _in_words(error: HTTPError) -> str:
    if isinstance(error, ReadTimeoutError):
        return "the API server did not answer in time"
    return f"no connection to the API server: {error}"


def _retry_after_seconds(response: urllib3.BaseHTTPResponse) -> float | None:
    """The API server sends whole seconds. HTTP also allows a date, which is ignored."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _MOST_RETRY_AFTER_SECONDS) if text.isascii() and text.isdecimal() else None
