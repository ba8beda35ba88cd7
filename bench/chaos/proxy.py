"""The path between vramcast and the API server, with troubles: errors, late and lost requests, broken watches."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import uvloop
from tests.controlplane.proxy import End, Proxy, first_of

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
# A late or lost request counts only if the API server has processed it.
_ANSWER_SECONDS = 10.0
_BINDING_PATH = re.compile(rb"^POST \S*/binding[ ?]")


class Treatment(Enum):
    TOO_MANY = "429, not forwarded"
    FAILED = "500, not forwarded"
    FAILED_AFTERWARDS = "500 although it took effect"
    LATE = "forwarded late, even if the client has given up"
    LOST = "took effect, connection closed without an answer"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What happens to a share of the requests. One of the treatments is drawn for each."""

    treatments: tuple[Treatment, ...]
    share: float
    longest_delay_seconds: float = 0.0


class TroubledProxy(Proxy):
    """`trouble` may be set from any thread at any time."""

    def __init__(self, url: str, certificate: Path, key: Path, seed: int) -> None:
        super().__init__(url, certificate, key, uvloop.new_event_loop)
        self.trouble: Trouble | None = None
        # The API server's status codes for Bindings.
        self.bindings: Counter[int] = Counter()
        self._draw = random.Random(seed)
        self._watching: dict[_Exchange, asyncio.Task[None]] = {}
        self._flowing = asyncio.Event()
        self._flowing.set()

    def cut_watches(self) -> None:
        self.loop.call_soon_threadsafe(self._cut_watches)

    def silence_watches(self) -> None:
        """Open connections on which nothing arrives."""
        self.loop.call_soon_threadsafe(self._flowing.clear)

    def resume_watches(self) -> None:
        self.loop.call_soon_threadsafe(self._flowing.set)

    def _cut_watches(self) -> None:
        for task in self._watching.values():
            task.cancel()

    async def _exchange(self, client: End, server: End) -> None:
        exchange = _Exchange(self, client, server)
        try:
            await first_of(asyncio.ensure_future(exchange.ask()), asyncio.ensure_future(exchange.answer()))
        finally:
            self.watch_ended(exchange)

    def watch_began(self, exchange: _Exchange, pump: asyncio.Task[None]) -> None:
        self._watching[exchange] = pump

    def watch_ended(self, exchange: _Exchange) -> None:
        self._watching.pop(exchange, None)

    async def flow(self) -> None:
        await self._flowing.wait()

    def treatment(self) -> tuple[Treatment | None, float]:
        """For one request: what to do to it, and how long to delay it."""
        trouble = self.trouble
        if trouble is None or self._draw.random() >= trouble.share:
            return None, 0.0
        return self._draw.choice(trouble.treatments), self._draw.uniform(0.0, trouble.longest_delay_seconds)


class _Exchange:
    """One connection: requests and answers take turns, because the client does not pipeline."""

    def __init__(self, proxy: TroubledProxy, client: End, server: End) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._answered = asyncio.Event()
        self._binds = False
        self._watches = False
        self._swallow = False

    async def ask(self) -> None:
        while (request := await self._read_request()) is not None:
            self._begin(request)
            treatment, delay_seconds = self._proxy.treatment()
            match treatment:
                case Treatment.TOO_MANY:
                    await self._refuse(b"429 Too Many Requests", b"Retry-After: 1\r\n")
                case Treatment.FAILED:
                    await self._refuse(b"500 Internal Server Error")
                case Treatment.FAILED_AFTERWARDS:
                    await self._swallow_answer(request)
                    await self._refuse(b"500 Internal Server Error", b"Connection: close\r\n")
                    return
                case Treatment.LOST:
                    await self._swallow_answer(request)
                    return
                case Treatment.LATE:
                    await asyncio.sleep(delay_seconds)
                    await self._forward(request)
                    await self._await_answer()
                case None:
                    await self._forward(request)

    async def answer(self) -> None:
        while data := await self._server.reader.read(1 << 16):
            if self._binds:
                self._binds = False
                self._proxy.bindings[int(data[9:12])] += 1
            self._answered.set()
            if self._swallow:
                continue
            if self._watches:
                await self._proxy.flow()
            self._client.writer.write(data)
            await self._client.writer.drain()

    async def _read_request(self) -> bytes | None:
        try:
            head = await self._client.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        length = _LENGTH.search(head)
        return head + await self._client.reader.readexactly(int(length[1])) if length else head

    def _begin(self, request: bytes) -> None:
        self._answered.clear()
        self._binds = _BINDING_PATH.match(request) is not None
        self._watches = b"watch=true" in request.partition(b"\r\n")[0]
        task = asyncio.current_task()
        if self._watches and task is not None:
            self._proxy.watch_began(self, task)  # the end of this pump ends the connection
        else:
            self._proxy.watch_ended(self)

    async def _forward(self, request: bytes) -> None:
        self._server.writer.write(request)
        await self._server.writer.drain()

    async def _swallow_answer(self, request: bytes) -> None:
        self._swallow = True
        await self._forward(request)
        await self._await_answer()

    async def _await_answer(self) -> None:
        await asyncio.wait_for(self._answered.wait(), _ANSWER_SECONDS)

    async def _refuse(self, status: bytes, header: bytes = b"") -> None:
        code = status[:3]
        body = b'{"kind":"Status","apiVersion":"v1","status":"Failure","message":"chaos","code":' + code + b"}"
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
        self._client.writer.write(head % (status, len(body), header) + body)
        await self._client.writer.drain()
