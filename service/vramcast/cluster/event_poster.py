"""Events on pods, posted by one thread in the background: where a pod's owner looks, and nobody's reason to wait."""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote

import structlog

from vramcast.cluster.seam import PodEvent
from vramcast.cluster.transport import Action, ApiRefused, ApiUnavailable, Backoff, Transport

COMPONENT: Final = "vramcast"
QUEUE_EVENTS: Final = 1000
_MESSAGE_CHARACTERS: Final = 1024  # the API's own limit for an event's note
_REMEMBERED: Final = 10_000
_TRIES: Final = 3
_CREATE: Final = Action("create", "events")
_log = structlog.get_logger("vramcast.cluster.events")

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PosterTiming:
    """`repeat_seconds`: the same said of the same pod within this time is said once."""

    repeat_seconds: float = 600.0
    # In a burst of binds the stories about them wait, or they would cost the API server as much as the binds do.
    events_per_second: float = 10.0
    burst_events: int = 25
    answer_seconds: float = 5.0
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class PosterStats:
    """`dropped`: the queue was full. `failed`: the API server would not have it. `repeated`: said before."""

    posted: int
    repeated: int
    dropped: int
    failed: int


class EventPoster:
    """`post` may be called from any thread and never waits."""

    def __init__(
        self,
        transport: Transport,
        stop: threading.Event,
        timing: PosterTiming | None = None,
        queue_events: int = QUEUE_EVENTS,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._transport = transport
        self._stop = stop
        self._timing = timing or PosterTiming()
        self._pause = pause or stop.wait
        # Warnings first, then the newest: who looks, looks at what has just happened. None wakes the thread so that
        # it sees `stop`.
        self._queue: queue.PriorityQueue[tuple[bool, int, PodEvent | None]] = queue.PriorityQueue(queue_events)
        self._order = itertools.count(0, -1)
        self._allowance = float(self._timing.burst_events)
        self._allowed_at = self._timing.clock()
        self._thread = threading.Thread(target=self._forever, name="events", daemon=True)
        self._lock = threading.Lock()
        # Insertion order is time order: the oldest are first.
        self._said_at: dict[_Key, float] = {}
        self._counts = {"posted": 0, "repeated": 0, "dropped": 0, "failed": 0}

    def start(self) -> None:
        self._thread.start()

    def post(self, event: PodEvent) -> None:
        key, now = _key(event), self._timing.clock()
        with self._lock:
            said_at = self._said_at.get(key)
            if said_at is not None and now - said_at < self._timing.repeat_seconds:
                self._counts["repeated"] += 1
                return
            try:
                self._queue.put_nowait((not event.warning, next(self._order), event))
            except queue.Full:
                self._counts["dropped"] += 1
                return
            self._said_at.pop(key, None)
            self._said_at[key] = now
            while len(self._said_at) > _REMEMBERED:
                del self._said_at[next(iter(self._said_at))]

    def stats(self) -> PosterStats:
        with self._lock:
            return PosterStats(**self._counts)

    def interrupt(self) -> None:
        """After `stop` was set."""
        try:
            self._queue.put_nowait((False, next(self._order), None))
        except queue.Full:
            return  # then it is not waiting for the queue

    def join(self, timeout_seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def _forever(self) -> None:
        while not self._stop.is_set():
            self._pace()
            event = self._queue.get()[2]
            if event is None:
                continue
            try:
                posted = self._post_patiently(event)
            except Exception:
                _log.exception("event defect", pod=f"{event.namespace}/{event.pod}", reason=event.reason)
                posted = False
            self._count(event, posted)

    def _pace(self) -> None:
        """Waits until one more may be posted: a burst at once, then so many a second."""
        now, rate = self._timing.clock(), self._timing.events_per_second
        self._allowance = min(self._timing.burst_events, self._allowance + (now - self._allowed_at) * rate)
        self._allowed_at = now
        if self._allowance < 1:
            self._pause((1 - self._allowance) / rate)
        self._allowance -= 1

    def _count(self, event: PodEvent, posted: bool) -> None:
        with self._lock:
            self._counts["posted" if posted else "failed"] += 1
            if not posted:
                self._said_at.pop(_key(event), None)  # it was not said after all

    def _post_patiently(self, event: PodEvent) -> bool:
        body = _body(event, datetime.now(UTC))
        for failures in range(1, _TRIES + 1):
            try:
                self._post_once(event, body)
                return True
            except ApiUnavailable as error:
                if isinstance(error, ApiRefused) and error.status == 409 and failures > 1:
                    return True  # an earlier try came through after all
                delay_seconds = self._retry_seconds(error, failures)
                if delay_seconds is None or self._stop.is_set():
                    _log.warning("event not posted", pod=f"{event.namespace}/{event.pod}", error=str(error))
                    return False
                self._pause(delay_seconds)
        return False

    def _post_once(self, event: PodEvent, body: object) -> None:
        path = f"/api/v1/namespaces/{quote(event.namespace, safe='')}/events"
        answer = self._transport.request(_CREATE, "POST", path, body=body, timeout_seconds=self._timing.answer_seconds)
        answer.content()

    def _retry_seconds(self, error: ApiUnavailable, failures: int) -> float | None:
        """None: trying again is no use, or has been tried enough."""
        if failures == _TRIES:
            return None
        delay_seconds = self._timing.backoff.delay_seconds(failures)
        if isinstance(error, ApiRefused):
            if error.status != 429 and error.status < 500:
                return None
            delay_seconds = max(delay_seconds, error.retry_after_seconds or 0.0)
        return delay_seconds


def _key(event: PodEvent) -> _Key:
    return (event.uid, event.reason, event.message)


def _body(event: PodEvent, now: datetime) -> object:
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    # A name of our own and not the server's: a repeated try is then a conflict, not a second event.
    stem = event.pod[:230].rstrip(".-")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{stem}.{secrets.token_hex(8)}", "namespace": event.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": event.namespace,
            "name": event.pod,
            "uid": event.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:_MESSAGE_CHARACTERS],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
