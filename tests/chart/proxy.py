"""A proxy in front of the API server that can delay a request, so that a Binding arrives late."""

from __future__ import annotations

import asyncio
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.controlplane import PATIENCE_SECONDS, free_port


class _Late:
    """Whether the last delayed request of a connection was answered."""

    def __init__(self) -> None:
        self.answered = asyncio.Event()
        self.answered.set()


class HoldingProxy:
    """Terminates TLS with the API server's own certificate, so that it can read the requests.

    After `hold(part)`, a request whose head contains `part` waits until `release`. `held` is set once one waits, and
    `answers` collects the status lines of the delayed requests.
    """

    def __init__(self, url: str, certificate: Path, key: Path) -> None:
        self._upstream = urlsplit(url)
        self._certificate, self._key = certificate, key
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.held = threading.Event()
        self.answers: list[str] = []
        self._part: bytes | None = None
        self._loop = asyncio.new_event_loop()
        self._released = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> HoldingProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hold(self, part: str) -> None:
        self._part = part.encode()

    def release(self) -> None:
        self._part = None
        self._loop.call_soon_threadsafe(self._released.set)

    async def _listen(self) -> None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self._certificate, self._key)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=tls)

    async def _close(self) -> None:
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connect(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tls = ssl.create_default_context(cafile=self._certificate)
        host, port = self._upstream.hostname, self._upstream.port
        up_reader, up_writer = await asyncio.open_connection(host, port, ssl=tls)
        late = _Late()
        pumps = [
            asyncio.ensure_future(self._ask(reader, up_writer, late)),
            asyncio.ensure_future(self._answer(up_reader, writer, late)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, up_writer):
                end.transport.abort()
                with suppress(OSError):
                    await end.wait_closed()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: _Late) -> None:
        while data := await reader.read(1 << 16):
            if self._part is not None and self._part in data:
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
