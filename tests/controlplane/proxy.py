"""A proxy in front of the API server that terminates TLS, so that a test can read and spoil the requests."""

from __future__ import annotations

import asyncio
import ssl
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from .eventually import PATIENCE_SECONDS
from .processes import free_port

_LONGEST_HEAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def abort(self) -> None:
        self.writer.transport.abort()
        with suppress(OSError):
            await self.writer.wait_closed()


class Proxy(ABC):
    """Serves with the API server's own certificate, in its own thread. Subclasses say what happens in between."""

    def __init__(
        self,
        url: str,
        certificate: Path,
        key: Path,
        new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop,
    ) -> None:
        self._upstream = urlsplit(url)
        self._serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._serving.load_cert_chain(certificate, key)
        self._trusting = ssl.create_default_context(cafile=certificate)
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.listen()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self.loop).result(PATIENCE_SECONDS)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def listen(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(), self.loop).result(PATIENCE_SECONDS)

    def stop_listening(self) -> None:
        """New connections are refused, as without an API server."""
        asyncio.run_coroutine_threadsafe(self._stop_listening(), self.loop).result(PATIENCE_SECONDS)

    @abstractmethod
    async def _exchange(self, client: End, server: End) -> None:
        """Until the connection ends."""

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", self.port, ssl=self._serving, limit=_LONGEST_HEAD_BYTES
        )

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _close(self) -> None:
        await self._stop_listening()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._connect(End(reader, writer)))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _connect(self, client: End) -> None:
        host, port = self._upstream.hostname, self._upstream.port
        try:
            server = End(*await asyncio.open_connection(host, port, ssl=self._trusting))
        except OSError:
            await client.abort()
            return
        try:
            await self._exchange(client, server)
        finally:
            await client.abort()
            await server.abort()


async def first_of(*pumps: asyncio.Task[None]) -> None:
    """Waits until one of them ends, then ends the others."""
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
