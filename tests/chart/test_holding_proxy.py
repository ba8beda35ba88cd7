"""A delayed request is held as a whole, so that its client may be paused from then on."""

from __future__ import annotations

import asyncio

import pytest

from tests.chart.proxy import rest_of_request

REQUEST = b"POST /pods/late/binding HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"


@pytest.mark.parametrize("cut", range(1, len(REQUEST) + 1))
def test_the_rest_of_a_request_is_awaited_wherever_it_was_cut(cut: int) -> None:
    async def read() -> bytes:
        reader = asyncio.StreamReader()
        waiting = asyncio.ensure_future(rest_of_request(REQUEST[:cut], reader))
        await asyncio.sleep(0)
        assert waiting.done() == (cut == len(REQUEST))
        reader.feed_data(REQUEST[cut:])
        return await waiting

    assert REQUEST[:cut] + asyncio.run(read()) == REQUEST
