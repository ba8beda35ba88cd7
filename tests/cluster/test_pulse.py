"""Staleness: zero while a stream is open, and counted from the last proof of life after that."""

from __future__ import annotations

import pytest

from vramcast.cluster.pulse import Pulse, StreamEnd
from vramcast.cluster.transport import Backoff


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_any_contact_it_is_stale_since_the_start(clock: Clock) -> None:
    pulse = Pulse("pods", clock)
    clock.now += 5
    assert pulse.stale_seconds == 5
    assert not pulse.synced


def test_an_open_stream_is_never_stale(clock: Clock) -> None:
    pulse = Pulse("pods", clock)
    pulse.connect()
    clock.now += 70
    assert pulse.stale_seconds == 0


@pytest.mark.parametrize(
    ("ending", "stale_seconds"),
    [(StreamEnd.ENDED, 3), (StreamEnd.BROKEN, 3), (StreamEnd.GONE, 3), (StreamEnd.QUIET, 73)],
)
def test_only_a_quiet_stream_was_stale_before_it_ended(clock: Clock, ending: StreamEnd, stale_seconds: int) -> None:
    pulse = Pulse("pods", clock)
    pulse.connect()
    clock.now += 70
    pulse.end(ending, "why")
    clock.now += 3
    assert pulse.stale_seconds == stale_seconds
    assert pulse.stats().last_error == "why"


def test_failed_reconnects_do_not_reset_staleness(clock: Clock) -> None:
    pulse = Pulse("pods", clock)
    pulse.connect()
    pulse.end(StreamEnd.BROKEN, "reset")
    for _ in range(10):
        clock.now += 1
        pulse.end(StreamEnd.BROKEN, "refused")
    assert pulse.stale_seconds == 10
    assert pulse.stats().reconnects[StreamEnd.BROKEN] == 11


def test_a_connection_clears_the_last_error(clock: Clock) -> None:
    pulse = Pulse("pods", clock)
    pulse.end(StreamEnd.REFUSED, "403")
    pulse.connect()
    assert pulse.stats().last_error == ""


def test_backoff_doubles_to_its_limit_and_jitter_only_shortens() -> None:
    steady = Backoff(jitter=lambda: 0.0)
    assert [steady.delay_seconds(n) for n in range(10)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert steady.delay_seconds(10_000_000) == 10
    assert Backoff(jitter=lambda: 1.0).delay_seconds(3) == pytest.approx(0.2)
