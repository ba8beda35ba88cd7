"""Over real sockets, as kube-scheduler comes."""

from __future__ import annotations

import http.client
import json
import socket

import httpx

from tests.fakes import new_fake_service
from tests.serve.running import Serve, filter_body
from vramcast.api.http import HttpApp
from vramcast.app import _server_config
from vramcast.settings import load_settings

# How long Go's http.Transport, and so kube-scheduler, keeps an idle connection.
GO_IDLE_SECONDS = 90


def test_once_it_says_that_it_serves_it_does(service: Serve) -> None:
    assert service.filter(name="early", memory="1Gi") == ["share"]


def test_many_calls_go_over_one_connection(service: Serve) -> None:
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


def test_an_idle_connection_is_kept_for_longer_than_go_keeps_it() -> None:
    # By what uvicorn is told: waiting for two minutes would prove no more.
    settings = load_settings({}, {})
    config = _server_config(settings, HttpApp(new_fake_service(settings=settings)))
    assert config.timeout_keep_alive > GO_IDLE_SECONDS


def test_what_is_not_http_is_refused_and_the_service_goes_on(service: Serve) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(b"\x16\x03\x01 is this TLS?\r\n\r\n")
        assert raw.recv(1000).startswith(b"HTTP/1.1 400 ")
    assert httpx.get(f"{service.url}/healthz").status_code == 200


def test_no_answer_names_the_software(service: Serve) -> None:
    assert "server" not in httpx.get(f"{service.url}/healthz").headers
