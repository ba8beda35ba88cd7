"""Closes connections that occupy a place or memory and make no progress.

uvicorn limits none of this: how many connections there are, how long and how large a request's head may be, how long a
body takes, and how long a client leaves its answer unread. An idle connection that has been served keeps its place for
`idle_seconds`, because Go's client does not retry a POST on a connection that was closed under it.
"""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable
from typing import Any

import structlog

from vramcast.api.one_write import OneWriteProtocol
from vramcast.observe.metrics import Limit

# For everything but clients: the API server's connections, Prometheus, files, the listeners.
_OTHER_FILES = 256
# kube-scheduler's heads have 200 bytes. What is not body may also be the framing of chunks: one byte in eight.
_MOST_HEAD_BYTES = 64 << 10
_FRAMING_SHARE = 8

log = structlog.get_logger("vramcast")


class ConnectionLimits:
    """All connections of one port.

    When there are more than `most`, the oldest that was never served is closed. The newest was never served either, so
    there always is one, and a client that has been served keeps its place.
    """

    def __init__(
        self, most: int, request_seconds: float, idle_seconds: float, closed: Callable[[Limit], None] = lambda _: None
    ) -> None:
        self.most = most
        self.request_seconds = request_seconds
        self.idle_seconds = idle_seconds
        self._closed = closed
        self._open: set[LimitedProtocol] = set()
        self._never_served: dict[LimitedProtocol, None] = {}
        self._unreported: Counter[str] = Counter()

    def admit(self, connection: LimitedProtocol) -> None:
        self._open.add(connection)
        self._never_served[connection] = None
        if len(self._open) > self.most:
            self.close(next(iter(self._never_served)), Limit.CONNECTIONS)

    def served(self, connection: LimitedProtocol) -> None:
        self._never_served.pop(connection, None)

    def forget(self, connection: LimitedProtocol) -> None:
        self._open.discard(connection)
        self._never_served.pop(connection, None)

    def close(self, connection: LimitedProtocol, limit: Limit) -> None:
        """At once: a client that does not read would keep a graceful close waiting."""
        self.forget(connection)
        connection.transport.abort()
        self._unreported[limit] += 1
        self._closed(limit)

    def sweep(self, now: float) -> None:
        """Close what is overdue. Called about once a second, with the event loop's time."""
        for connection in list(self._open):
            if connection.overdue(now):
                self.close(connection, Limit.TIME)
        if self._unreported:
            # One line for all of them: a flood of connections must not become a flood of lines.
            log.warning("closed connections", open=len(self._open), most=self.most, **self._unreported)
            self._unreported.clear()


class LimitedProtocol(OneWriteProtocol):
    def __init__(self, *arguments: Any, limits: ConnectionLimits, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._in_request = False
        self._since = self.loop.time()  # of the request or answer under way, or of the idleness
        self._framing_bytes = 0
        self._body_bytes = 0

    def overdue(self, now: float) -> bool:
        """Whether the client has been silent, or slow, for too long. Time that the service takes does not count."""
        if self._in_request or self.transport.get_write_buffer_size():
            return now - self._since > self._limits.request_seconds
        answering = self.cycle is not None and not self.cycle.response_complete
        return not answering and now - self._since > self._limits.idle_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own does
        super().connection_made(transport)
        self._limits.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._limits.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._framing_bytes += len(data)
        super().data_received(data)
        if self._framing_bytes > _MOST_HEAD_BYTES + self._body_bytes // _FRAMING_SHARE:
            self._limits.close(self, Limit.HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_request = True
        self._since = self.loop.time()

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_request = False
        self._framing_bytes = self._body_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        self._limits.served(self)
        super().on_response_complete()


def most_connections(wanted: int, ports: int) -> int:
    """For each of the ports, as many as wanted if the process may open so many files. Raises its soft limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return wanted
    possible = max(1, (hard - _OTHER_FILES) // ports)
    if possible < wanted:
        log.warning("too few file descriptors for max_connections", max_connections=wanted, possible=possible)
    return min(wanted, possible)
