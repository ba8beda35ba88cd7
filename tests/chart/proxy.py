"""A proxy in front of the API server that can delay a request, so that a Binding arrives late."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

from tests.controlplane.proxy import End, Proxy, first_of


class _Late:
    """Whether the last delayed request of a connection was answered."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.answered.set()


class HoldingProxy(Proxy):
    """After `hold(part)`, a request whose head contains `part` waits until `release`.

    `held` is set once one waits, and `answers` collects the status lines of the delayed requests.
    """

    def __init__(self, url: str, certificate: Path, key: Path) -> None:
        super().__init__(url, certificate, key)
        self.held = threading.Event()
        self.answers: list[str] = []
        self._part: bytes | None = None
        self._released = asyncio.Event()

    def hold(self, part: str) -> None:
        self._part = part.encode()

    def release(self) -> None:
        self._part = None
        self.loop.call_soon_threadsafe(self._released.set)

    async def _exchange(self, client: End, server: End) -> None:
        late = _Late()
        await first_of(
            asyncio.ensure_future(self._ask(client.reader, server.writer, late)),
            asyncio.ensure_future(self._answer(server.reader, client.writer, late)),
        )

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: _Late) -> None:
        while data := await reader.read(1 << 16):
            if self._part is not None and self._part in data:
                # A client sends head and body apart, and may be paused as soon as `held` is set.
                data += await rest_of_request(data, reader)
                self.held.set()
                await self._released.wait()
                late.answered.clear()
            writer.write(data)
            await writer.drain()
        # The client may have disconnected, but the server still answers.
        await late.answered.wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: _Late) -> None:
        while data := await reader.read(1 << 16):
            if not late.answered.is_set():
                self.answers.append(data.partition(b"\r\n")[0].decode())
                late.answered.set()
            writer.write(data)
            await writer.drain()


async def rest_of_request(begin: bytes, reader: asyncio.StreamReader) -> bytes:
    """What is missing of the request whose begin was read."""
    rest = b""
    while b"\r\n\r\n" not in begin + rest and (more := await reader.read(1 << 16)):
        rest += more
    head, _, body = (begin + rest).partition(b"\r\n\r\n")
    length = re.search(rb"content-length: *([0-9]+)", head, re.IGNORECASE)
    missing = int(length[1]) - len(body) if length else 0
    return rest + (await reader.readexactly(missing) if missing > 0 else b"")
