"""The floor: a bare ASGI app that parses the body and echoes the node names. No Python extender can be faster."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import uvicorn


async def echo(_scope: Any, receive: Any, send: Any) -> None:
    chunks, more = [], True
    while more:
        message = await receive()
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
    names = orjson.loads(b"".join(chunks) or b"{}").get("NodeNames")
    body = orjson.dumps({"NodeNames": names, "FailedNodes": {}, "Error": ""})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        echo, port=int(sys.argv[1]), loop="uvloop", http="httptools", lifespan="off", log_level="error",
        access_log=False, timeout_keep_alive=120,
    )  # fmt: skip
