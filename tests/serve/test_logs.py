"""The log: one line per decision, as JSON unless it goes to a terminal."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import httpx

from tests.controlplane import PATIENCE_SECONDS
from tests.serve.running import Serve


def bind(service: Serve) -> httpx.Response:
    body = {"PodName": "waits", "PodNamespace": "default", "PodUID": "uid-waits", "Node": "share"}
    return httpx.post(f"{service.url}/bind", json=body, timeout=PATIENCE_SECONDS)


def log_of(service: Serve) -> str:
    """The complete log. The service logs a request after its response, but before the next response."""
    httpx.get(f"{service.url}/healthz", timeout=PATIENCE_SECONDS)
    return service.text()


def lines_of(service: Serve) -> list[dict[str, Any]]:
    log_of(service)
    return service.lines()


def test_every_line_is_json_and_decisions_have_pod_node_decision_and_milliseconds(service: Serve) -> None:
    service.filter()
    assert bind(service).json() == {"Error": ""}
    decisions = {line["event"]: line for line in lines_of(service) if line.get("pod") == "default/waits"}
    assert decisions["filter"]["decision"] == "fits 1 of 2 nodes: 1 node does not share its GPUs"
    assert decisions["bind"]["node"] == "share"
    assert decisions["bind"]["decision"] == "promise of 10.0 GiB on GPU 0"
    assert all(isinstance(line["ms"], float) for line in decisions.values())
    assert all({"event", "level", "timestamp"} <= line.keys() for line in service.lines())


def test_a_bad_body_is_logged_as_a_warning_with_the_mistake(service: Serve) -> None:
    httpx.post(f"{service.url}/prioritize", content=b"{", timeout=PATIENCE_SECONDS)
    line = lines_of(service)[-1]
    assert (line["event"], line["level"]) == ("prioritize", "warning")
    assert "not what kube-scheduler sends" in line["decision"]


def test_the_log_lines_of_libraries_are_json_too(service: Serve) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        raw.recv(1000)
    assert lines_of(service)[-1]["logger"] == "uvicorn.error"


def test_an_unknown_vramcast_variable_is_logged_as_a_warning(service: Serve) -> None:
    (line,) = [line for line in service.lines() if "variable" in line]
    assert (line["variable"], line["level"]) == ("VRAMCAST_NO_SETTING", "warning")


def test_inspection_is_not_logged(service: Serve) -> None:
    before = len(lines_of(service))
    for path in ("/state", "/metrics", "/healthz", "/readyz"):
        httpx.get(service.url + path, timeout=PATIENCE_SECONDS).raise_for_status()
    assert len(lines_of(service)) == before


def test_the_console_format_has_no_colours_in_a_file(tmp_path: Path) -> None:
    with Serve(tmp_path, "--log-format", "console") as service:
        service.filter()
        line = log_of(service).splitlines()[-1]
    assert "\x1b" not in line
    assert re.search(r"\[info\s*\] filter .*decision='fits 1 of 2 nodes: .*' ms=\d.* pod=default/waits", line), line
