"""How old the view of the cluster is, whatever the connections do. The clock moves only by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.cluster.fake_apiserver import Exchange, FakeApiServer, answers, breaks_after, falls_silent, resets
from tests.cluster.manifests import shared_pod
from tests.cluster.watching import STEADY, Clock, Watching, watching
from tests.controlplane import eventually
from vramcast.cluster.pulse import StreamEnd
from vramcast.cluster.transport import CONNECT_SECONDS, Backoff
from vramcast.cluster.watch import PROBE_SECONDS, Timing

LIMIT_SECONDS = 60.0
WATCHES = ("watch nodes", "watch pods")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timing(clock: Clock) -> Timing:
    return Timing(backoff=STEADY, clock=clock)


def age(watch: Watching) -> float:
    return watch.cluster.health().stale_seconds


def wait_reopened(server: FakeApiServer, watch: Watching, times: int) -> None:
    eventually(lambda: all(len(server.received(kind)) == 1 + times for kind in WATCHES), what="new watches")
    watch.wait_connected()


def test_an_open_connection_that_is_silent_for_too_long_is_stale(
    server: FakeApiServer, clock: Clock, timing: Timing
) -> None:
    with watching(server, timing=timing) as watch:
        assert age(watch) == 0
        clock.now += 61
        assert age(watch) == 61
        assert watch.cluster.health().detail == "watching nodes, silent for 61 s; watching pods, silent for 61 s"
        for resource in ("nodes", "pods"):
            server.bookmark(resource)
        eventually(lambda: age(watch) == 0, what="bookmarks on both watches")


def test_the_view_is_as_old_as_its_older_watch(server: FakeApiServer, clock: Clock, timing: Timing) -> None:
    with watching(server, timing=timing) as watch:
        clock.now += 61
        server.put("pods", shared_pod("a"))
        watch.seen.until(lambda seen: "uid-a" in seen.pods)
        assert age(watch) == 61


@pytest.mark.parametrize("finish", [Exchange.close, Exchange.reset])
def test_the_end_of_a_silent_connection_does_not_reset_the_age(
    server: FakeApiServer, clock: Clock, timing: Timing, finish: Callable[[Exchange], None]
) -> None:
    """Not even if it can be reopened: the connection before could be opened, too, and delivered nothing."""
    with watching(server, timing=timing) as watch:
        clock.now += 149
        server.end_streams(finish)
        wait_reopened(server, watch, 1)
        assert all(stats.reconnects[StreamEnd.BROKEN] == 1 for stats in watch.cluster.watch_stats())
        clock.now += 59
        assert age(watch) == 208


def test_error_answers_keep_the_age(server: FakeApiServer, clock: Clock, timing: Timing) -> None:
    release = threading.Event()

    def waits(_: FakeApiServer, exchange: Exchange) -> None:
        release.wait()
        exchange.reset()

    server.script("watch pods", breaks_after(1), answers(500), resets, answers(410))
    server.script("list pods", lambda fake, exchange: fake._list(exchange, "pods"), answers(503), waits)
    with watching(server, timing=timing) as watch:
        clock.now += 61
        # The first watch delivers this and breaks. What follows are errors, until a list is not answered at all.
        server.put("pods", shared_pod("a"))
        eventually(lambda: len(server.received("list pods")) == 3)
        clock.now += 61
        pods = watch.cluster.watch_stats()[1]
        assert pods.stale_seconds == 61
        assert {ending: n for ending, n in pods.reconnects.items() if n} == {
            StreamEnd.BROKEN: 2, StreamEnd.REFUSED: 2, StreamEnd.GONE: 1,
        }  # fmt: skip
        release.set()
        eventually(lambda: watch.cluster.watch_stats()[1].stale_seconds == 0, what="a list")


def test_a_quiet_connection_is_given_up_and_keeps_the_age(server: FakeApiServer, clock: Clock) -> None:
    server.script("watch pods", falls_silent)
    short = Timing(watch_seconds=0.5, grace_seconds=0.1, backoff=STEADY, clock=clock)
    with watching(server, timing=short) as watch:
        clock.now += 61
        eventually(lambda: len(server.received("watch pods")) > 1, what="a new watch")
        watch.wait_connected()
        pods = watch.cluster.watch_stats()[1]
        assert pods.reconnects[StreamEnd.QUIET] > 0
        assert pods.stale_seconds == 61


def test_after_a_silent_connection_a_short_watch_tests_the_next_one(
    server: FakeApiServer, clock: Clock, timing: Timing
) -> None:
    with watching(server, timing=timing) as watch:
        clock.now += 61
        server.end_streams(Exchange.reset)
        wait_reopened(server, watch, 1)
        clock.now += PROBE_SECONDS
        server.end_streams()
        wait_reopened(server, watch, 2)
        assert age(watch) == 0
        asked = [int(request.query["timeoutSeconds"]) for request in server.received("watch pods")]
        assert asked == [16, PROBE_SECONDS, 16]


def test_a_watch_that_delivered_may_break_and_is_fresh_once_it_is_open_again(
    server: FakeApiServer, clock: Clock, timing: Timing
) -> None:
    with watching(server, timing=timing) as watch:
        for resource in ("nodes", "pods"):
            server.bookmark(resource)
        eventually(lambda: all(stats.events == 1 for stats in watch.cluster.watch_stats()))
        clock.now += 61
        server.end_streams(Exchange.reset)
        wait_reopened(server, watch, 1)
        assert age(watch) == 0


def test_an_idle_cluster_stays_fresh_without_a_reconnect(server: FakeApiServer, clock: Clock) -> None:
    longest = Timing(backoff=Backoff(jitter=lambda: 1.0), clock=clock)
    with watching(server, timing=longest) as watch:
        for times in range(1, 9):
            clock.now += int(server.received("watch pods")[-1].query["timeoutSeconds"])
            assert 0 < age(watch) < LIMIT_SECONDS / 2
            server.end_streams()
            wait_reopened(server, watch, times)
            assert age(watch) == 0
        assert clock.now - 100 > 3 * LIMIT_SECONDS
        assert watch.cluster.stats().reconnects == 0
        assert all(stats.renewals == 8 for stats in watch.cluster.watch_stats())
        assert watch.cluster.stats().lists == 2


@pytest.mark.parametrize("limit_seconds", [5.0, 15.0, 60.0, 3600.0])
def test_the_timing_follows_from_the_limit(limit_seconds: float) -> None:
    timing = Timing.for_limit(limit_seconds)
    longest = replace(timing, backoff=Backoff(jitter=lambda: 1.0)).next_watch_seconds()
    assert longest <= limit_seconds / 2
    assert longest <= 24
    assert longest + timing.grace_seconds < limit_seconds
    if limit_seconds >= 60:
        repaired = longest + timing.grace_seconds + CONNECT_SECONDS + timing.answer_seconds + PROBE_SECONDS
        assert repaired < limit_seconds


def test_the_default_timing_is_that_of_the_default_limit() -> None:
    assert Timing() == Timing.for_limit(LIMIT_SECONDS)


def test_after_an_outage_the_view_is_fresh_within_five_seconds() -> None:
    assert Timing().backoff.longest_seconds + PROBE_SECONDS < 5
