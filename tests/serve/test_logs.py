"""What the process writes: one line per decision, for machines unless somebody watches."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import httpx

from tests.serve.running import Serve


def bind(service: Serve) -> httpx.Response:
    body = {"PodName": "waits", "PodNamespace": "default", "PodUID": "uid-waits", "Node": "share"}
    return httpx.post(f"{service.url}/bind", json=body)


def log_of(service: Serve) -> str:
    """Once it has written about all that it was asked: it answers first, and by the next answer it has written."""
    httpx.get(f"{service.url}/healthz")
    return service.text()


def lines_of(service: Serve) -> list[dict[str, Any]]:
    log_of(service)
    return service.lines()


def test_every_line_is_json_and_decisions_name_pod_node_decision_and_milliseconds(service: Serve) -> None:
    service.filter()
    assert bind(service).json() == {"Error": ""}
    decisions = {line["event"]: line for line in lines_of(service) if line.get("pod") == "default/waits"}
    assert decisions["filter"]["decision"] == "fits 1 of 2 nodes: 1 node does not share its GPUs"
    assert decisions["bind"]["node"] == "share"
    assert decisions["bind"]["decision"] == "promise of 10.0 GiB on GPU 0"
    assert all(isinstance(line["ms"], float) for line in decisions.values())
    assert all({"event", "level", "timestamp"} <= line.keys() for line in service.lines())


def test_a_bad_body_is_logged_as_a_warning_with_what_was_wrong(service: Serve) -> None:
    httpx.post(f"{service.url}/prioritize", content=b"{")
    line = lines_of(service)[-1]
    assert (line["event"], line["level"]) == ("prioritize", "warning")
    assert "not what kube-scheduler sends" in line["decision"]


def test_what_libraries_say_is_json_too(service: Serve) -> None:
    with socket.create_connection(("127.0.0.1", service.port)) as raw:
        raw.sendall(b"nonsense\r\n\r\n")
        raw.recv(1000)
    assert lines_of(service)[-1]["logger"] == "uvicorn.error"


def test_a_variable_that_looks_like_a_setting_and_is_none_is_told_in_the_log(service: Serve) -> None:
    (line,) = [line for line in service.lines() if "variable" in line]
    assert (line["variable"], line["level"]) == ("VRAMCAST_NO_SETTING", "warning")


def test_looking_is_not_logged_as_deciding(service: Serve) -> None:
    before = len(lines_of(service))
    for path in ("/state", "/metrics", "/healthz", "/readyz"):
        httpx.get(service.url + path).raise_for_status()
    assert len(lines_of(service)) == before


def test_console_format_on_request_without_colours_in_a_file(tmp_path: Path) -> None:
    with Serve(tmp_path, "--log-format", "console") as service:
        service.filter()
        line = log_of(service).splitlines()[-1]
    assert "\x1b" not in line
    assert re.search(r"\[info\s*\] filter .*decision='fits 1 of 2 nodes: .*' ms=\d.* pod=default/waits", line), line
