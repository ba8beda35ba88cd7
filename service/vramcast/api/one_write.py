"""Sends a response's head and body in one write, so that the scheduler wakes up once.

uvicorn writes them separately. For a small response that doubles the cost of writing and wakes the reader twice, and
there are three such responses for every pod.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "
_CONTINUE = b"HTTP/1.1 100"


class OneWriteProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's own does
        super().connection_made(cast(asyncio.Transport, HeadWithBody(transport, self.loop)))


class HeadWithBody:
    """A transport that delays the head until the body follows."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def write(self, data: bytes) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.writelines([head, data])
        elif data.startswith(_HEAD) and not data.startswith(_CONTINUE):
            self._head = data
            # In case no body follows at once, as after HEAD.
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
