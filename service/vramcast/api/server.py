"""uvicorn, as this service runs it: one server per port, with limits on connections and bodies."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from vramcast.api.body_limits import BodyLimits
from vramcast.api.connection_limits import ConnectionLimits, LimitedProtocol, most_connections
from vramcast.api.http import Surface, new_http_app
from vramcast.errors import InvalidInput
from vramcast.service import Service

# Go's client keeps idle connections for 90 s and does not retry a POST. Closing earlier here would lose a call there.
KEEP_ALIVE_SECONDS = 120
_SEND_BUFFER_BYTES = 2 << 20
_PORTS = 4
# The API server refuses objects of more than 3 MiB. A review has an object and, in an update, the old one.
_REVIEW_MIB = 8
_REVIEWS_MIB = 32
_TICKS_PER_SECOND = 10


class AddressInUse(InvalidInput):
    """Another process listens there."""


class Server(uvicorn.Server):
    """The app handles signals: uvicorn would raise them again when it ends, before the watches are stopped."""

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits) -> None:
        super().__init__(config)
        self._limits = limits

    @contextmanager
    def capture_signals(self) -> Any:
        yield

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_SECOND == 0:
            self._limits.sweep(asyncio.get_running_loop().time())
        return await super().on_tick(counter)

    def stop(self) -> None:
        self.should_exit = True


def stop_all(servers: Sequence[Server]) -> None:
    for server in servers:
        server.stop()


def new_app(service: Service, surface: Surface = Surface.ALL) -> BodyLimits:
    """What a port serves, as ASGI."""
    app, settings = new_http_app(service, surface), service.settings
    if surface is Surface.WEBHOOK:
        return BodyLimits(app, body_mib=_REVIEW_MIB, together_mib=_REVIEWS_MIB)
    return BodyLimits(app, body_mib=settings.max_body_mib, together_mib=settings.max_bodies_mib)


def new_server(
    service: Service, surface: Surface = Surface.ALL, *, certificates: ssl.SSLContext | None = None
) -> Server:
    settings = service.settings
    limits = ConnectionLimits(
        most_connections(settings.max_connections, _PORTS),
        settings.request_timeout_seconds,
        KEEP_ALIVE_SECONDS,
        lambda limit: service.metrics.connections_closed.labels(limit).inc(),
    )
    config = uvicorn.Config(
        new_http_app(service, surface) if surface is Surface.PROBES else new_app(service, surface),
        # uvicorn wants a class and calls it as a factory.
        http=cast(type[asyncio.Protocol], partial(LimitedProtocol, limits=limits)),
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        # uvicorn's annotation wants an int; its code takes any number of seconds.
        timeout_graceful_shutdown=cast(int, settings.shutdown_grace_seconds),
    )
    config.load()
    config.ssl = certificates
    return Server(config, limits)


def listen(host: str, port: int, named: str) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted connections inherit this buffer, so an answer for thousands of nodes leaves in one piece.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        return listener
    except (OSError, UnicodeError) as error:  # UnicodeError: a host name that DNS cannot carry
        raise AddressInUse(f"cannot listen on {address_text(host, port)} ({named}): {error}") from None


def address_text(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
