"""The head of an answer leaves with its body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from vramcast.api.one_write import HeadWithBody

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """A transport and a loop that write down what is done with them."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False
        self.soon: list[Callable[[], None]] = []

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, parts: Iterable[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def close(self) -> None:
        self.closed = True

    def get_extra_info(self, name: str) -> str:
        return f"the {name}"

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def pass_on(self) -> None:
        for callback in self.soon:
            callback()


def over(wire: Wire) -> HeadWithBody:
    return HeadWithBody(cast(asyncio.Transport, wire), cast(Any, wire))


def test_head_and_body_are_one_write() -> None:
    wire = Wire()
    transport = over(wire)
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"{}")
    wire.pass_on()
    assert wire.writes == [HEAD + b"{}", HEAD + b"{}"]


def test_a_head_without_a_body_leaves_in_the_loops_next_round() -> None:
    wire = Wire()
    over(wire).write(HEAD)
    assert wire.writes == []
    wire.pass_on()
    assert wire.writes == [HEAD]


def test_a_head_leaves_before_the_connection_is_closed() -> None:
    wire = Wire()
    transport = over(wire)
    transport.write(HEAD)
    transport.close()
    assert (wire.writes, wire.closed) == ([HEAD], True)


def test_go_on_is_said_at_once_and_later_pieces_of_a_body_are_not_kept() -> None:
    wire = Wire()
    transport = over(wire)
    transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    transport.write(HEAD)
    transport.write(b"{")
    transport.write(b"}")
    assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n", HEAD + b"{", b"}"]


def test_in_all_else_it_is_the_transport() -> None:
    assert over(Wire()).get_extra_info("peername") == "the peername"
