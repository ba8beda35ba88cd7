"""Work for people waits while a call of the scheduler arrives."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec

from tests.api.client import Client
from tests.controlplane.eventually import PATIENCE_SECONDS
from tests.fakes import new_fake_service, shared_pod, sharing_node
from vramcast.service import RightOfWay


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_slice_waits_until_all_calls_have_arrived() -> None:
    async def run() -> None:
        way = RightOfWay(most_wait_seconds=PATIENCE_SECONDS)
        with way.arriving():
            with way.arriving():
                waiting = asyncio.create_task(way.wait())
                await turns()
            await turns()
            assert not waiting.done()
        await waiting

    asyncio.run(run())


def test_a_call_that_never_arrives_does_not_stop_the_page() -> None:
    async def run() -> None:
        way = RightOfWay(most_wait_seconds=0)
        with way.arriving():
            await way.wait()

    asyncio.run(run())


def test_a_view_waits_for_a_body_that_arrives_in_parts() -> None:
    service = new_fake_service([sharing_node("a")])

    async def run() -> None:
        client = Client(replace(service, right_of_way=RightOfWay(PATIENCE_SECONDS)))
        body = msgspec.json.encode({"Pod": shared_pod("p"), "Nodes": None, "NodeNames": ["a"]})
        order: list[str] = []

        async def scheduler() -> None:
            await client.send("POST", "/filter", chunks=[body[i : i + 1] for i in range(len(body))])
            order.append("filter")

        async def reader() -> None:
            await client.send("GET", "/cluster")
            order.append("cluster")

        await asyncio.gather(scheduler(), reader())
        assert order == ["filter", "cluster"]

    asyncio.run(run())
