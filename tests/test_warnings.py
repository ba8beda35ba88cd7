"""Which warnings the suite forgives: only sockets that Python itself forgets to close."""

import gc
import socket
import ssl
import struct
import sys
from contextlib import closing

import pytest

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[BaseException | None]:
    """What finalizers raised during the test."""
    seen: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda event: seen.append(event.exc_value))
    return seen


def connected() -> tuple[socket.socket, socket.socket]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def test_a_server_that_dies_before_the_handshake_fails_no_test(
    unraisable: list[BaseException | None],
) -> None:
    client, server = connected()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    server.close()
    with pytest.raises(ConnectionResetError):
        ssl.create_default_context().wrap_socket(client, server_hostname="localhost")
    gc.collect()
    assert unraisable == []


def test_a_forgotten_connection_fails_its_test(unraisable: list[BaseException | None]) -> None:
    client, server = connected()
    wrapped = ssl.create_default_context().wrap_socket(
        client, server_hostname="localhost", do_handshake_on_connect=False
    )
    del wrapped
    gc.collect()
    server.close()
    assert [type(error) for error in unraisable] == [ResourceWarning]
