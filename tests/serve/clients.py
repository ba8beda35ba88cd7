"""Clients that misbehave, and one that does not: the scheduler's."""

from __future__ import annotations

import http.client
import json
import selectors
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import httpx

from tests.controlplane import PATIENCE_SECONDS
from tests.serve.running import Serve, filter_body


class Scheduler:
    """One keep-alive connection, like kube-scheduler's. It is never opened again."""

    def __init__(self, service: Serve) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE_SECONDS)
        self._connection.connect()
        self._connection.auto_open = 0

    def __enter__(self) -> Scheduler:
        self.check_answered()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def check_answered(self) -> None:
        self._connection.request("POST", "/filter", json.dumps(filter_body()))
        assert json.loads(self._connection.getresponse().read())["NodeNames"] == ["share"]


def connect(service: Serve, first: bytes = b"") -> socket.socket:
    raw = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS)
    raw.sendall(first)
    return raw


@contextmanager
def connections(service: Serve, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    with ExitStack() as opened:
        yield [opened.enter_context(connect(service, first)) for _ in range(count)]


def drip(sockets: Sequence[socket.socket], byte: bytes) -> None:
    for raw in sockets:
        try:
            raw.send(byte)
        except (BrokenPipeError, ConnectionResetError):
            continue


def closed(sockets: Sequence[socket.socket]) -> set[socket.socket]:
    """Those that the service has closed, with or without an answer."""
    found = set()
    with selectors.DefaultSelector() as selector:
        for raw in sockets:
            selector.register(raw, selectors.EVENT_READ, raw)
        for key, _ in selector.select(timeout=0):
            if _reads_to_the_end(key.data):
                found.add(key.data)
    return found


def _reads_to_the_end(raw: socket.socket) -> bool:
    raw.settimeout(0)
    try:
        while raw.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    return True


def closed_because_of(service: Serve, limit: str) -> float:
    name = f'vramcast_connections_closed_total{{limit="{limit}"}} '
    text = httpx.get(f"{service.url}/metrics", timeout=PATIENCE_SECONDS).text
    (line,) = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))
