"""Events are posted once, in the background, and block nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.fake_apiserver import Behaviour, Exchange, FakeApiServer, answers, resets
from tests.cluster.watching import STEADY, Pauses
from tests.controlplane import PATIENCE_SECONDS, eventually
from vramcast.cluster.event_poster import EventPoster, PosterStats, PosterTiming
from vramcast.cluster.seam import PodEvent
from vramcast.names import PodUid


class Posting:
    def __init__(self, server: FakeApiServer, clock: Callable[[], float], queue_events: int) -> None:
        self.pauses = Pauses()
        self.stop = threading.Event()
        timing = PosterTiming(backoff=STEADY, clock=clock)
        self.poster = EventPoster(server.transport(), self.stop, timing, queue_events, self.pauses)

    def wait_stats(self, **expected: int) -> None:
        wanted = PosterStats(**{"posted": 0, "repeated": 0, "dropped": 0, "failed": 0, **expected})
        eventually(lambda: self.poster.stats() == wanted, what=f"{wanted}, not {self.poster.stats()}")


@contextmanager
def posting(
    server: FakeApiServer, clock: Callable[[], float] = lambda: 0.0, queue_events: int = 100
) -> Iterator[Posting]:
    running = Posting(server, clock, queue_events)
    running.poster.start()
    try:
        yield running
    finally:
        running.stop.set()
        running.poster.interrupt()
        running.poster.join(PATIENCE_SECONDS)


def event(message: str = "no such key", pod: str = "task", warning: bool = True) -> PodEvent:
    return PodEvent(PodUid(f"uid-{pod}"), "team-a", pod, warning, "InvalidAnnotations", message)


def test_an_event_is_about_the_pod(server: FakeApiServer) -> None:
    with posting(server) as run:
        run.poster.post(event())
        run.wait_stats(posted=1)
    request = server.received("event")[0]
    assert request.path == "/api/v1/namespaces/team-a/events"
    assert request.body["involvedObject"]["uid"] == "uid-task"
    assert request.body["type"] == "Warning"
    assert (request.body["reason"], request.body["message"]) == ("InvalidAnnotations", "no such key")


@pytest.mark.parametrize("pod", ["a" * 253, "a" * 229 + "-.b" + "c" * 20])
def test_the_longest_pod_name_and_message_make_a_valid_event(server: FakeApiServer, pod: str) -> None:
    with posting(server) as run:
        run.poster.post(event("x" * 5000, pod))
        run.wait_stats(posted=1)
    body = server.received("event")[0].body
    assert len(body["metadata"]["name"]) <= 253
    assert not any(joint in body["metadata"]["name"] for joint in ("-.", ".."))
    assert len(body["message"]) == 1024


def test_an_identical_event_is_posted_again_only_after_a_while(server: FakeApiServer) -> None:
    now = [0.0]
    with posting(server, lambda: now[0]) as run:
        run.poster.post(event())
        run.poster.post(event())
        run.poster.post(event("another message"))
        run.poster.post(event(pod="another"))
        run.wait_stats(posted=3, repeated=1)
        now[0] = 601.0
        run.poster.post(event())
        run.wait_stats(posted=4, repeated=1)


def test_a_full_queue_drops_and_counts(server: FakeApiServer) -> None:
    hold = threading.Event()

    def waits(_: FakeApiServer, exchange: Exchange) -> None:
        hold.wait()
        exchange.answer(201, {})

    server.script("event", waits)
    with posting(server, queue_events=2) as run:
        run.poster.post(event("0"))
        eventually(lambda: server.received("event"))
        for i in range(1, 6):
            run.poster.post(event(str(i)))
        assert run.poster.stats().dropped == 3
        hold.set()
        run.wait_stats(posted=3, dropped=3)
        # A dropped event may be posted again.
        run.poster.post(event("5"))
        run.wait_stats(posted=4, dropped=3)


@pytest.mark.parametrize(
    ("script", "posted", "tries"),
    [
        ([answers(500)], True, 2),
        ([answers(429, Retry_After="1")], True, 2),
        ([resets, resets], True, 3),
        ([resets, answers(409)], True, 2),
        ([answers(409)], False, 1),
        ([answers(403)], False, 1),
        ([answers(404)], False, 1),
        ([answers(500)] * 3, False, 3),
    ],
)
def test_transient_failures_are_retried(
    server: FakeApiServer, script: list[Behaviour], posted: bool, tries: int
) -> None:
    server.script("event", *script)
    with posting(server) as run:
        run.poster.post(event())
        run.wait_stats(**({"posted": 1} if posted else {"failed": 1}))
        assert len(server.received("event")) == tries
        run.poster.post(event())
        run.wait_stats(**({"posted": 1, "repeated": 1} if posted else {"failed": 1, "posted": 1}))
