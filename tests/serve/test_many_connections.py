"""Connections that are many, slow or silent: memory stays bounded, and the scheduler's calls are answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane import eventually
from tests.serve.clients import Scheduler, closed, closed_because_of, connect, connections, drip
from tests.serve.running import Serve

IDLE = 1000
SLOW = 200
MIB = 1 << 20
MOST = 50
FLOOD = 200


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with Serve(tmp_path_factory.mktemp("serve"), environ={"VRAMCAST_REQUEST_TIMEOUT_SECONDS": "1"}) as running:
        yield running


def test_a_thousand_idle_connections_cost_little_and_delay_nobody(tmp_path: Path) -> None:
    with Serve(tmp_path) as service, Scheduler(service) as scheduler:
        before = service.resident_bytes()
        with connections(service, IDLE) as idle:
            scheduler.check_answered()
            assert service.filter(name="on-a-new-connection") == ["share"]
            assert service.resident_bytes() - before < 30 * MIB
            assert not closed(idle)


def test_beyond_max_connections_the_oldest_that_sent_no_request_is_closed(tmp_path: Path) -> None:
    with (
        Serve(tmp_path, environ={"VRAMCAST_MAX_CONNECTIONS": str(MOST)}) as service,
        Scheduler(service) as scheduler,
        connections(service, FLOOD, b"POST /filter HTTP/1.1\r\n") as idle,
    ):
        # The scheduler's connection is the oldest of all, and keeps its place.
        surplus = FLOOD - (MOST - 1)
        eventually(lambda: len(closed(idle)) == surplus, what="the surplus connections to be closed")
        assert closed(idle) == set(idle[:surplus])
        scheduler.check_answered()
        # A new client takes the place of the next one.
        assert service.filter(name="on-a-new-connection") == ["share"]
        assert closed_because_of(service, "max_connections") >= surplus + 1
        lines = eventually(lambda: warnings(service, surplus), what="the log to count them")
        assert len(lines) < surplus, "one line per second, not per connection"


def warnings(service: Serve, closed_connections: int) -> list[dict[str, Any]]:
    lines = [line for line in service.lines() if line["event"] == "closed connections"]
    assert sum(line["max_connections"] for line in lines) >= closed_connections
    return lines


@pytest.mark.parametrize(
    ("first", "rest"),
    [
        pytest.param(b"POST /", b"x", id="request line"),
        pytest.param(b"POST /filter HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"x", id="header"),
        pytest.param(b"POST /filter HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b" ", id="body"),
        pytest.param(b"POST /filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"0", id="chunk"),
        pytest.param(b"POST /state HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", b" ", id="after the answer"),
    ],
)
def test_requests_that_arrive_byte_by_byte_are_dropped_after_a_while(
    impatient: Serve, first: bytes, rest: bytes
) -> None:
    before, closed_before = impatient.resident_bytes(), closed_because_of(impatient, "request_timeout_seconds")
    with Scheduler(impatient) as scheduler, connections(impatient, SLOW, first) as slow:

        def all_closed() -> bool:
            drip(slow, rest)
            scheduler.check_answered()
            return len(closed(slow)) == SLOW

        eventually(all_closed, what="every slow connection to be closed", interval_seconds=0.05)
    assert closed_because_of(impatient, "request_timeout_seconds") - closed_before == SLOW
    assert impatient.resident_bytes() - before < 30 * MIB
    assert "Traceback" not in impatient.text()


def test_an_idle_connection_outlives_the_time_limit_of_requests(impatient: Serve) -> None:
    with (
        Scheduler(impatient) as scheduler,
        connections(impatient, 1) as fresh,
        connections(impatient, 1, b"P") as slow,
    ):
        eventually(lambda: closed(slow), what="the slow connection to be closed")
        assert not closed(fresh)
        scheduler.check_answered()


def test_a_head_without_end_is_dropped(tmp_path: Path) -> None:
    with Serve(tmp_path) as service, connect(service, b"POST /filter HTTP/1.1\r\nX-Long: ") as raw:
        before = service.resident_bytes()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            raw.sendall(b"x" * (300 * MIB))
        assert service.resident_bytes() - before < 20 * MIB
        assert closed_because_of(service, "head_size") == 1
        assert service.filter() == ["share"]
