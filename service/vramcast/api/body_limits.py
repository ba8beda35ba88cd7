"""Limits the memory that request bodies and their answers take: one body by itself, and all of them together.

An ASGI layer around the app. It raises BodyRefused from `receive`, and the app answers with its status. Bodies are
counted as they arrive. When all together are too large, the largest that is still arriving is refused, so that the
scheduler's small calls pass while others send large bodies slowly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from vramcast.errors import InvalidRequest

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Smaller answers fit into the socket's send buffer.
LARGE_ANSWER_BYTES = 1 << 20


class BodyRefused(InvalidRequest):
    """`cause` is a label of vramcast_request_errors_total."""

    def __init__(self, status: int, cause: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.cause = cause


class BodyLimits:
    def __init__(self, app: App, *, body_mib: int, together_mib: int) -> None:
        self._app = app
        self.body_mib = body_mib
        self.together_mib = max(body_mib, together_mib)
        self._together_bytes = self.together_mib << 20
        self._held_bytes = 0
        self._arriving: set[_Exchange] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] == "GET":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(self, scope, receive, send)
        try:
            await self._app(scope, exchange.receive, exchange.send)
        finally:
            self.arrived(exchange)
            self._held_bytes -= exchange.held_bytes

    def take(self, exchange: _Exchange, size_bytes: int) -> None:
        exchange.held_bytes += size_bytes
        self._held_bytes += size_bytes
        while self._held_bytes > self._together_bytes and self._arriving:
            largest = max(self._arriving, key=lambda each: each.held_bytes)
            self._arriving.remove(largest)
            self._held_bytes -= largest.held_bytes
            largest.held_bytes = 0
            largest.refuse()

    def arriving(self, exchange: _Exchange) -> None:
        self._arriving.add(exchange)

    def arrived(self, exchange: _Exchange) -> None:
        self._arriving.discard(exchange)


class _Exchange:
    """One request and its answer."""

    def __init__(self, limits: BodyLimits, scope: Scope, receive: Receive, send: Send) -> None:
        self._limits = limits
        self._scope = scope
        self._receive = receive
        self._send = send
        self._body_bytes = 0
        self._complete = False
        self._refused = False
        self._waiting: asyncio.Timeout | None = None
        self.held_bytes = 0

    def refuse(self) -> None:
        self._refused = True
        if self._waiting is not None:
            self._waiting.reschedule(asyncio.get_running_loop().time())

    async def receive(self) -> Message:
        """Raises BodyRefused."""
        if self._complete:
            return await self._receive()
        if self._body_bytes == 0:
            self._check_size(_announced_bytes(self._scope))
            message = await self._receive()
        else:
            message = await self._receive_unless_refused()
        if message["type"] != "http.request":
            raise BodyRefused(400, "incomplete", "the client left before its body was complete")
        size_bytes = len(message.get("body", b""))
        self._body_bytes += size_bytes
        self._check_size(self._body_bytes)
        self._complete = not message.get("more_body", False)
        if self._complete:
            self._limits.arrived(self)
        else:
            self._limits.arriving(self)
        self._limits.take(self, size_bytes)
        self._check_refused()
        return message

    async def _receive_unless_refused(self) -> Message:
        self._check_refused()
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._receive()
        except TimeoutError:
            self._check_refused()
            raise
        finally:
            self._waiting = None

    def _check_size(self, size_bytes: int) -> None:
        limit = self._limits.body_mib
        if size_bytes > limit << 20:
            raise BodyRefused(413, "too_large", f"the body is larger than {limit} MiB (setting max_body_mib)")

    def _check_refused(self) -> None:
        if self._refused:
            limit = self._limits.together_mib
            text = f"the bodies in memory are larger than {limit} MiB together (setting max_bodies_mib); retry"
            raise BodyRefused(503, "overloaded", text)

    async def send(self, message: Message) -> None:
        """A large answer counts until the client has read most of it: an empty last part waits for that."""
        body = message.get("body", b"")
        if len(body) <= LARGE_ANSWER_BYTES or message.get("more_body"):
            await self._send(message)
            return
        self._limits.take(self, len(body))
        await self._send({**message, "more_body": True})
        await self._send({"type": "http.response.body", "body": b""})


def _announced_bytes(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
