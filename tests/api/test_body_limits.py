"""Bodies and answers in memory are limited, one by itself and all together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from vramcast.api.body_limits import LARGE_ANSWER_BYTES, BodyLimits, BodyRefused, Message, Receive, Scope, Send

MIB = 1 << 20
POST: Scope = {"type": "http", "method": "POST", "headers": []}


class Wire:
    """A client that sends what the test puts, and an app that reads the body and answers with `answer`."""

    def __init__(self, limits: BodyLimits, answer: bytes = b"{}") -> None:
        self._parts: asyncio.Queue[Message] = asyncio.Queue()
        self._limits = limits
        self.answer = answer
        self.sent: list[Message] = []
        self.may_send = asyncio.Event()
        self.may_send.set()

    def put(self, size_bytes: int, *, last: bool = False) -> None:
        self._parts.put_nowait({"type": "http.request", "body": b"x" * size_bytes, "more_body": not last})

    def leave(self) -> None:
        self._parts.put_nowait({"type": "http.disconnect"})

    async def exchange(self) -> None:
        await self._limits({**POST, "wire": self}, self._parts.get, self._send)

    async def _send(self, message: Message) -> None:
        await self.may_send.wait()
        self.sent.append(message)


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.body", "body": scope["wire"].answer})


def limits() -> BodyLimits:
    return BodyLimits(app, body_mib=4, together_mib=6)


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_the_largest_body_that_is_still_arriving_is_refused() -> None:
    async def play() -> tuple[Any, Any, Any]:
        together = limits()
        large, small, complete = Wire(together), Wire(together), Wire(together)
        tasks = [asyncio.create_task(wire.exchange()) for wire in (large, small, complete)]
        large.put(3 * MIB)
        small.put(MIB)
        await settle()
        complete.put(3 * MIB, last=True)
        await settle()
        small.put(1, last=True)
        return tuple(await asyncio.gather(*tasks, return_exceptions=True))

    refused, small, complete = asyncio.run(play())
    assert isinstance(refused, BodyRefused)
    assert (refused.status, refused.cause) == (503, "overloaded")
    assert "max_bodies_mib" in str(refused)
    assert (small, complete) == (None, None)


def test_what_is_answered_or_refused_makes_room_again() -> None:
    async def play() -> None:
        together = limits()
        for size in (5, 4, 5, 4):
            wire = Wire(together)
            wire.put(size * MIB, last=True)
            if size <= 4:
                await wire.exchange()
            else:
                with pytest.raises(BodyRefused, match="max_body_mib"):
                    await wire.exchange()

    asyncio.run(play())


def test_a_body_that_ends_early_is_not_taken_for_a_complete_one() -> None:
    async def play() -> None:
        wire = Wire(limits())
        wire.put(10)
        wire.leave()
        with pytest.raises(BodyRefused, match="before its body was complete"):
            await wire.exchange()

    asyncio.run(play())


def test_a_large_answer_counts_until_it_is_read() -> None:
    async def play() -> None:
        together = limits()
        unread, later = Wire(together, b"x" * 5 * MIB), Wire(together)
        unread.put(1, last=True)
        unread.may_send.clear()
        sending = asyncio.create_task(unread.exchange())
        await settle()
        later.put(2 * MIB)
        with pytest.raises(BodyRefused, match="max_bodies_mib"):
            await later.exchange()
        unread.may_send.set()
        await sending
        assert b"".join(message["body"] for message in unread.sent) == unread.answer
        assert [message.get("more_body", False) for message in unread.sent] == [True, False]
        again = Wire(together)
        again.put(2 * MIB)
        again.put(2 * MIB, last=True)
        await again.exchange()

    asyncio.run(play())


def test_a_small_answer_is_one_message() -> None:
    async def play() -> None:
        wire = Wire(limits(), b"x" * LARGE_ANSWER_BYTES)
        wire.put(1, last=True)
        await wire.exchange()
        assert len(wire.sent) == 1

    asyncio.run(play())


def test_the_limit_for_all_is_at_least_the_limit_for_one() -> None:
    assert BodyLimits(app, body_mib=64, together_mib=10).together_mib == 64
