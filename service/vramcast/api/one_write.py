"""An answer in one write: its head waits for its body, so that the scheduler is woken once.

uvicorn writes the two apart. On a small answer that is half of the cost of writing it, and a second wake-up of who
reads it; on the path of every pod there are three such answers.
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
    """A transport in all but `write` and `close`."""

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
            # Should no body follow at once, as after HEAD.
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
