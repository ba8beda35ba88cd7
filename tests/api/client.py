"""Calls the ASGI app directly: the whole service in one process, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.fakes import FakeCluster
from vramcast.api.body_limits import App
from vramcast.api.server import new_app
from vramcast.service import Service


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass(slots=True)
class Client:
    """Use the `async` methods for concurrent requests. Each of the others runs its own event loop."""

    service: Service
    app: App = field(init=False)

    def __post_init__(self) -> None:
        self.app = new_app(self.service)

    @property
    def cluster(self) -> FakeCluster:
        assert isinstance(self.service.cluster, FakeCluster)
        return self.service.cluster

    async def send(self, method: str, path: str, body: bytes = b"", *, chunks: Sequence[bytes | None] = ()) -> Response:
        """`chunks`: a body in parts. After None the client leaves."""
        path, _, query = path.partition("?")
        parts: list[bytes | None] = [*chunks] or [body]
        messages: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            await asyncio.sleep(0)
            part = parts.pop(0)
            if part is None:
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": part, "more_body": bool(parts)}

        async def send(message: Any) -> None:
            messages.append(message)

        scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": []}
        await self.app(scope, receive, send)
        return Response(messages[0]["status"], messages[1]["body"])

    async def verb(self, name: str, body: Any) -> Any:
        response = await self.send("POST", f"/{name}", msgspec.json.encode(body))
        assert response.status == 200, response
        return response.json()

    async def filter(self, pod: Any, nodes: Sequence[str]) -> Any:
        return await self.verb("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})

    async def bind(self, pod: Any, node: str) -> str:
        metadata = pod["metadata"]
        answer = await self.verb("bind", {
            "PodName": metadata["name"], "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"], "Node": node,
        })  # fmt: skip
        error: str = answer["Error"]
        return error

    # --- one request at a time

    def request(self, method: str, path: str, body: bytes = b"", **more: Any) -> Response:
        return asyncio.run(self.send(method, path, body, **more))

    def feasible(self, pod: Any, nodes: Sequence[str]) -> list[str]:
        names: list[str] = asyncio.run(self.filter(pod, nodes))["NodeNames"]
        return names

    def reasons(self, pod: Any, nodes: Sequence[str]) -> dict[str, str]:
        failed: dict[str, str] = asyncio.run(self.filter(pod, nodes))["FailedAndUnresolvableNodes"]
        return failed

    def place(self, pod: Any, node: str) -> str:
        return asyncio.run(self.bind(pod, node))

    def metric(self, sample: str) -> float:
        """The value of a sample such as `vramcast_binds_total{fate="bound"}`, or 0 if it does not exist."""
        for line in self.request("GET", "/metrics").body.decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == sample:
                return float(value)
        return 0.0
