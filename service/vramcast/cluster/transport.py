"""HTTP to the API server: raw bytes in and out over pooled connections, with a deadline on everything.

This is the one place where urllib3's errors and HTTP's codes become ours:

    WorldUnavailable
    └── ApiUnavailable
        ├── ApiUnreachable   no answer; `maybe_applied` says whether the request can have had an effect
        └── ApiRefused       an answer, and it is no; `status` is data for whoever can do something about it
"""

from __future__ import annotations

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
    """The API server did not do what was asked."""


class ApiUnreachable(ApiUnavailable):
    """No answer came. `quiet`: not because the connection broke, but because nothing arrived in time."""

    def __init__(self, message: str, *, maybe_applied: bool, quiet: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied
        self.quiet = quiet


class ApiRefused(ApiUnavailable):
    """The answer is an error."""

    def __init__(self, message: str, status: int, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def gone(self) -> bool:
        """The history that was asked for is not kept any more: only a new list helps."""
        return self.status == 410


class Status(msgspec.Struct, frozen=True, gc=False):
    """What the API server says when it says no; also the object of an ERROR in a watch."""

    code: int | None = None
    message: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """What a request does, in the words of RBAC: the words in which a missing permission is reported and granted."""

    verb: str
    resource: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """A status and a body; codes from 400 up are data until somebody calls `refusal` or `content`."""

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
        """The body; raises ApiRefused."""
        if not self.ok:
            raise self.refusal()
        return self.body


class Transport:
    """Safe to share between threads. `headers` is asked for every request: tokens rotate."""

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
        """Raises ApiUnreachable; any answer, good or bad, is returned."""
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
        """A GET whose body keeps coming. Raises ApiUnreachable and ApiRefused.

        The answer's head comes at once or something is wrong; its body may pause for as long as `quiet_seconds`.
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
            # Who may try again, and how often, is decided where the meaning of the request is known.
            retries=False,
            preload_content=preload,
        )


class Stream:
    """The body of a watch, as it arrives. Read by one thread; `interrupt` may be called from any."""

    def __init__(self, action: Action, response: urllib3.BaseHTTPResponse, quiet_seconds: float) -> None:
        self._action = action
        self._response = response
        if (socket := self._socket()) is not None:
            socket.settimeout(quiet_seconds)

    def read(self) -> bytes:
        """What has arrived, at least one byte; nothing at the orderly end. Raises ApiUnreachable."""
        with _translated(self._action):
            return self._response.read1() or b""

    def interrupt(self) -> None:
        """Wakes the reader: its read ends or fails."""
        with suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        self._response.close()

    def _socket(self) -> Any:  # socket.socket or ssl.SSLSocket, or None once the body has ended
        return getattr(self._response.connection, "sock", None)


def refusal(action: Action, status: int, said: Status, retry_after_seconds: float | None = None) -> ApiRefused:
    """The error for a bad answer: what was tried, what the server said, and what would help."""
    message = f"cannot {action}: the API server answered {status}"
    if said.message:
        message += f": {said.message[:500]}"
    if status == 403:
        verb, resource = action.verb, action.resource
        message += f"; allow verb {verb!r} on {resource!r} in ClusterRole vramcast-extender ({RULES_FILE})"
    if status == 401:
        message += "; the credentials are missing, wrong or expired"
    return ApiRefused(message, status, retry_after_seconds)


def read_status(body: bytes) -> Status:
    """Anything between here and the API server may answer too, and not in its words."""
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:
        return Status(message=body[:200].decode(errors="replace").strip())


@contextmanager
def _translated(action: Action) -> Iterator[None]:
    """urllib3's errors, as ours."""
    try:
        yield
    except HTTPError as error:
        cause = error.original_error if isinstance(error, ProxyError) else error
        # Refused, unresolved or timed out while connecting: no byte of the request has left.
        unsent = isinstance(cause, ConnectTimeoutError)
        quiet = isinstance(error, ReadTimeoutError)
        raise ApiUnreachable(f"cannot {action}: {_in_words(error)}", maybe_applied=not unsent, quiet=quiet) from error


def _in_words(error: HTTPError) -> str:
    if isinstance(error, ReadTimeoutError):
        return "the API server did not answer in time"
    return f"no connection to the API server: {error}"


def _retry_after_seconds(response: urllib3.BaseHTTPResponse) -> float | None:
    """The API server sends whole seconds; the other form that HTTP allows, a date, is passed over."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), _MOST_RETRY_AFTER_SECONDS) if text.isascii() and text.isdecimal() else None
