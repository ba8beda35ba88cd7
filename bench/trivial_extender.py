"""The fastest extender one can reasonably write in Python: it accepts every node and binds.

Its cost is that of the extender protocol itself, with HTTP and JSON. The difference to vramcast is the cost of
deciding.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from tests.controlplane.api import Api

Json = dict[str, Any]
Receive = Callable[[], Awaitable[Json]]
Send = Callable[[Json], Awaitable[None]]

CONNECTIONS = 16


class TrivialExtender:
    """An ASGI application with the three verbs, `/readyz`, and the time per verb in `/metrics`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._binders = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="bind")
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._calls: defaultdict[str, int] = defaultdict(int)

    async def __call__(self, scope: Json, receive: Receive, send: Send) -> None:
        verb = str(scope["path"]).strip("/")
        if scope["method"] == "GET":
            await _answer(send, self._metrics() if verb == "metrics" else b"ok")
            return
        body = await _body(receive)
        started = time.perf_counter()
        answer = await self._decide(verb, orjson.loads(body))
        self._seconds[verb] += time.perf_counter() - started
        self._calls[verb] += 1
        await _answer(send, orjson.dumps(answer))

    async def _decide(self, verb: str, arguments: Json) -> object:
        if verb == "filter":
            return {"NodeNames": arguments["NodeNames"]}
        if verb == "prioritize":
            return [{"Host": name, "Score": 5} for name in arguments["NodeNames"]]
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._binders, self._bind, arguments)
        return {"Error": ""}

    def _bind(self, arguments: Json) -> None:
        self._api.bind(arguments["PodName"], arguments["Node"], namespace=arguments["PodNamespace"])

    def _metrics(self) -> bytes:
        lines = [f'trivial_request_seconds_sum{{verb="{v}"}} {s}' for v, s in self._seconds.items()]
        lines += [f'trivial_request_seconds_count{{verb="{v}"}} {n}' for v, n in self._calls.items()]
        return "\n".join(lines).encode()


async def _body(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _answer(send: Send, body: bytes) -> None:
    length = str(len(body)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", length)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    port: int = parser.parse_args().port
    with Api.from_kubeconfig(Path(os.environ["KUBECONFIG"]), CONNECTIONS) as api:
        # Go keeps idle connections for 90 s. A server that closes them earlier causes sporadic errors.
        uvicorn.run(
            TrivialExtender(api),
            host="127.0.0.1",
            port=port,
            lifespan="off",
            access_log=False,
            log_level="warning",
            timeout_keep_alive=120,
        )


if __name__ == "__main__":
    main()
