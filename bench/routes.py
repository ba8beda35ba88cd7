"""What FastAPI costs a call: a verb's route and an ordinary endpoint, compared with a bare ASGI app, without sockets.

    python bench/routes.py [--calls 4000]

All three read the body and answer with its size. They are called in turn, so that other load affects all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from typing import Any

from fastapi import Request, Response

from vramcast.api.http import new_http_app
from vramcast.api.models import BindAnswer, BindArgs
from vramcast.api.routes import VerbRoute
from vramcast.api.wire import Reply
from vramcast.observe.metrics import VERBS
from vramcast.service import Service

BODY = b"x" * 4000


async def verb(_service: Service, body: bytes) -> Reply:
    return Reply(b"%d" % len(body))


async def ordinary(request: Request) -> Response:
    return Response(b"%d" % len(await request.body()), media_type="application/json")


async def bare(_scope: Any, receive: Any, send: Any) -> None:
    body = b"%d" % len((await receive())["body"])
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def call(app: Any, path: str) -> float:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(_message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": [], "root_path": ""}
    started = time.perf_counter()
    await app(scope, receive, send)
    return (time.perf_counter() - started) * 1e6


async def measure(service: Service, calls: int) -> dict[str, float]:
    app = new_http_app(service)
    route = VerbRoute(service, f"/{VERBS[0]}", verb, takes=BindArgs, gives=BindAnswer, summary="")
    app.router.routes.insert(0, route)
    app.post("/ordinary")(ordinary)
    timed: dict[str, list[float]] = {"bare": [], "verb": [], "ordinary": []}
    for _ in range(calls):
        for name, (asgi, path) in {
            "bare": (bare, "/"), "verb": (app, route.path), "ordinary": (app, "/ordinary")
        }.items():  # fmt: skip
            timed[name].append(await call(asgi, path))
    return {name: sorted(each)[calls // 2] for name, each in timed.items()}


if __name__ == "__main__":
    import structlog
    from tests.fakes import new_fake_service

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=4000)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    for kind, micros in asyncio.run(measure(new_fake_service(), parser.parse_args().calls)).items():
        print(f"{kind:9} {micros:6.1f} µs")
