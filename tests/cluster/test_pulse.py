"""Staleness counts from the last sign of life. An open connection is none."""

from __future__ import annotations

import pytest

from tests.cluster.watching import Clock
from vramcast.cluster.pulse import Pulse, StreamEnd
from vramcast.cluster.transport import Backoff

FAILURES = [ending for ending in StreamEnd if ending is not StreamEnd.ENDED]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pulse(clock: Clock) -> Pulse:
    return Pulse("pods", clock)


def test_without_any_contact_it_is_stale_since_the_start(pulse: Pulse, clock: Clock) -> None:
    clock.now += 5
    assert pulse.stale_seconds == 5
    assert not pulse.synced


def test_an_open_but_silent_stream_ages(pulse: Pulse, clock: Clock) -> None:
    clock.now += 5
    pulse.connect()
    assert pulse.stale_seconds == 0
    clock.now += 70
    assert pulse.connected
    assert pulse.stale_seconds == 70


def test_data_is_a_sign_of_life(pulse: Pulse, clock: Clock) -> None:
    pulse.connect()
    clock.now += 70
    pulse.beat(1)
    assert pulse.stale_seconds == 0


def test_an_orderly_end_is_a_sign_of_life_and_no_reconnect(pulse: Pulse, clock: Clock) -> None:
    pulse.connect()
    clock.now += 20
    pulse.end(StreamEnd.ENDED)
    assert pulse.stale_seconds == 0
    stats = pulse.stats()
    assert stats.renewals == 1
    assert sum(stats.reconnects.values()) == 0


@pytest.mark.parametrize("ending", FAILURES)
def test_any_other_end_keeps_the_age(pulse: Pulse, clock: Clock, ending: StreamEnd) -> None:
    pulse.connect()
    clock.now += 70
    pulse.end(ending, "why")
    clock.now += 3
    assert pulse.stale_seconds == 73
    stats = pulse.stats()
    assert stats.last_error == "why"
    assert stats.reconnects == {**dict.fromkeys(FAILURES, 0), ending: 1}
    assert stats.renewals == 0


def test_a_reopened_stream_counts_if_the_one_before_delivered(pulse: Pulse, clock: Clock) -> None:
    pulse.connect()
    pulse.beat(1)
    clock.now += 70
    pulse.end(StreamEnd.BROKEN, "reset")
    pulse.connect()
    assert pulse.stale_seconds == 0


@pytest.mark.parametrize("ending", [StreamEnd.QUIET, StreamEnd.BROKEN])
def test_a_server_that_opens_streams_and_delivers_nothing_becomes_stale(
    pulse: Pulse, clock: Clock, ending: StreamEnd
) -> None:
    for _ in range(3):
        pulse.connect()
        clock.now += 30
        pulse.end(ending, "nothing arrived")
    pulse.connect()
    assert pulse.in_doubt
    assert pulse.stale_seconds == 90
    pulse.beat(1)
    assert not pulse.in_doubt
    assert pulse.stale_seconds == 0


def test_failed_reconnects_do_not_reset_staleness(pulse: Pulse, clock: Clock) -> None:
    pulse.connect()
    pulse.end(StreamEnd.BROKEN, "reset")
    for _ in range(10):
        clock.now += 1
        pulse.end(StreamEnd.BROKEN, "refused")
    assert pulse.stale_seconds == 10
    assert pulse.stats().reconnects[StreamEnd.BROKEN] == 11


def test_a_connection_clears_the_last_error(pulse: Pulse) -> None:
    pulse.end(StreamEnd.REFUSED, "403")
    pulse.connect()
    assert pulse.stats().last_error == ""


def test_backoff_doubles_to_its_limit_and_jitter_only_shortens() -> None:
    steady = Backoff(jitter=lambda: 0.0)
    assert [steady.delay_seconds(n) for n in range(10)] == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]
    assert steady.delay_seconds(10_000_000) == 10
    assert Backoff(jitter=lambda: 1.0).delay_seconds(3) == pytest.approx(0.2)
