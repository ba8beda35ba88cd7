"""A graceful shutdown finishes the requests in flight and accepts no new ones."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane import PATIENCE_SECONDS, eventually
from tests.serve.running import Serve, filter_body

BODY = json.dumps(filter_body()).encode()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serve]:
    with Serve(tmp_path, environ={"VRAMCAST_SHUTDOWN_GRACE_SECONDS": "240"}) as running:
        yield running


def begin_request(service: Serve) -> socket.socket:
    """A request whose body is half sent. The 100 response shows that the service is reading it."""
    raw = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS)
    head = f"POST /filter HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(BODY)}\r\n\r\n"
    raw.sendall(head.encode() + BODY[:50])
    assert raw.recv(1000).startswith(b"HTTP/1.1 100 ")
    return raw


def idle_connection(service: Serve) -> socket.socket:
    idle = socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS)
    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    answer = b""
    while not answer.endswith(b"ok\n"):
        answer += idle.recv(1000)
    return idle


def read_to_the_end(raw: socket.socket) -> bytes:
    pieces = []
    while piece := raw.recv(65536):
        pieces.append(piece)
    return b"".join(pieces)


def port_is_closed(service: Serve) -> bool:
    try:
        socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE_SECONDS).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_request_in_flight_is_finished_after_the_port_is_closed(service: Serve) -> None:
    with idle_connection(service) as idle, begin_request(service) as raw:
        service.send_signal(signal.SIGTERM)
        eventually(lambda: port_is_closed(service), what="the port to be closed")
        assert idle.recv(1) == b"", "the service waits for an idle connection"
        # Longer than the 0.1 s that uvicorn takes anyway, so that only the grace period explains the wait.
        enough = time.monotonic() + 0.5
        eventually(lambda: time.monotonic() > enough, what="part of the grace period")
        assert service.alive
        raw.sendall(BODY[50:])
        answer = read_to_the_end(raw)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    # Otherwise Go would send its next request on a connection that is about to close.
    assert b"connection: close" in head.lower()
    assert json.loads(body)["NodeNames"] == ["share"]
    assert service.wait() == 0
    assert "Traceback" not in service.text()
    assert service.lines()[-1]["event"] == "stopping"


@pytest.mark.parametrize(
    "signals",
    [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM, signal.SIGINT)],
    ids=["SIGINT", "repeated"],
)
def test_any_number_of_signals_is_a_graceful_shutdown(service: Serve, signals: tuple[signal.Signals, ...]) -> None:
    with begin_request(service) as raw:
        for number in signals:
            service.send_signal(number)
        eventually(lambda: port_is_closed(service), what="the port to be closed")
        raw.sendall(BODY[50:])
        assert read_to_the_end(raw).startswith(b"HTTP/1.1 200 ")
    assert service.wait() == 0
    assert "Traceback" not in service.text()


def test_an_unfinished_request_is_dropped_after_the_grace_period(tmp_path: Path) -> None:
    with (
        Serve(tmp_path, environ={"VRAMCAST_SHUTDOWN_GRACE_SECONDS": "0.4"}) as service,
        begin_request(service) as raw,
    ):
        service.send_signal(signal.SIGTERM)
        assert service.wait() == 0
        read_to_the_end(raw)
        assert "Traceback" not in service.text()
        service.lines()
