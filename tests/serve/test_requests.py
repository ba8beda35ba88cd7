"""Requests over real sockets, like those of kube-scheduler."""

from __future__ import annotations

import http.client
import json
import socket

import httpx

from tests.controlplane import PATIENCE_SECONDS
from tests.fakes import new_fake_service
from tests.serve.running import Serve, filter_body
from vramcast.api.server import new_server
from vramcast.settings import load_settings

# Go's http.Transport, and so kube-scheduler, keeps an idle connection this long.
GO_IDLE_SECONDS = 90


def test_it_answers_as_soon_as_it_logs_that_it_is_synced(service: Serve) -> None:
    assert service.filter(name="early", memory="1Gi") == ["share"]


def test_one_connection_serves_many_calls(service: Serve) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    connection.connect()
    first = connection.sock
    for number in range(20):
        body = json.dumps(filter_body(f"pod-{number}", "1Gi"))
        connection.request("POST", "/filter", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert json.loads(answer.read())["NodeNames"] == ["share"]
        assert connection.sock is first, "the service closed the connection"
    connection.close()


def test_the_service_keeps_idle_connections_longer_than_go() -> None:
    # Checks uvicorn's setting: waiting for two minutes would prove no more.
    settings = load_settings({}, {})
    server = new_server(new_fake_service(settings=settings))
    assert server.config.timeout_keep_alive > GO_IDLE_SECONDS


def test_the_service_rejects_what_is_not_http_and_keeps_serving(service: Serve) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(b"\x16\x03\x01 is this TLS?\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(f"{service.url}/healthz", timeout=PATIENCE_SECONDS).status_code == 200


def test_a_probe_answers_head_without_a_body(service: Serve) -> None:
    answer = httpx.head(f"{service.url}/readyz")
    assert (answer.status_code, answer.content) == (200, b"")


def test_responses_do_not_name_the_server_software(service: Serve) -> None:
    assert "server" not in httpx.get(f"{service.url}/healthz", timeout=PATIENCE_SECONDS).headers
