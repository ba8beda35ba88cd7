"""The head and body of a response leave in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from vramcast.api.one_write import HeadWithBody

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """A fake transport and event loop that record their calls."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False
        self.scheduled: list[Callable[[], None]] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.scheduled.append(callback)

    def run_scheduled(self) -> None:
        for callback in self.scheduled:
            callback()


def delaying_transport(wire: Wire) -> HeadWithBody:
    return HeadWithBody(cast(asyncio.Transport, wire), cast(Any, wire))


def test_head_and_body_are_one_write() -> None:
    wire = Wire()
    transport = delaying_transport(wire)
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"{}")
    wire.run_scheduled()
    assert wire.writes == [HEAD + b"{}", HEAD + b"{}"]


def test_a_head_without_a_body_is_sent_in_the_next_loop_iteration() -> None:
    wire = Wire()
    delaying_transport(wire).write(HEAD)
    assert wire.writes == []
    wire.run_scheduled()
    assert wire.writes == [HEAD]


def test_a_delayed_head_is_sent_before_the_connection_closes() -> None:
    wire = Wire()
    transport = delaying_transport(wire)
    transport.write(HEAD)
    transport.close()
    assert (wire.writes, wire.closed) == ([HEAD], True)


def test_100_continue_and_later_body_chunks_are_sent_at_once() -> None:
    wire = Wire()
    transport = delaying_transport(wire)
    transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    transport.write(HEAD)
    transport.write(b"{")
    transport.write(b"}")
    assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"{", b"}"]


def test_everything_else_is_passed_to_the_transport() -> None:
    assert delaying_transport(Wire()).get_extra_info("peername") == "the peername"
