"""Posts Events on pods from one background thread, so that no request waits for them."""

from __future__ import annotations

import itertools
import queue
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import structlog

from vramcast.cluster.objects import object_path
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
    """`repeat_seconds`: an identical event on the same pod within this time is dropped."""

    repeat_seconds: float = 600.0
    # Without a limit, the events of a burst of binds would load the API server as much as the binds.
    events_per_second: float = 10.0
    burst_events: int = 25
    answer_seconds: float = 5.0
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class PosterStats:
    """`repeated`: posted before. `dropped`: the queue was full. `failed`: the API server did not accept it."""

    posted: int
    repeated: int
    dropped: int
    failed: int


class EventPoster:
    """Any thread may call `post`; it never blocks."""

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
        # Warnings first, then the newest. None wakes the thread so that it sees `stop`.
        self._queue: queue.PriorityQueue[tuple[bool, int, PodEvent | None]] = queue.PriorityQueue(queue_events)
        self._order = itertools.count(0, -1)
        self._allowance = float(self._timing.burst_events)
        self._allowed_at = self._timing.clock()
        self._thread = threading.Thread(target=self._forever, name="events", daemon=True)
        self._lock = threading.Lock()
        # Insertion order is time order, oldest first.
        self._posted_at: dict[_Key, float] = {}
        self._counts = {"posted": 0, "repeated": 0, "dropped": 0, "failed": 0}

    def start(self) -> None:
        self._thread.start()

    def post(self, event: PodEvent) -> None:
        key, now = _key(event), self._timing.clock()
        with self._lock:
            posted_at = self._posted_at.get(key)
            if posted_at is not None and now - posted_at < self._timing.repeat_seconds:
                self._counts["repeated"] += 1
                return
            try:
                self._queue.put_nowait((not event.warning, next(self._order), event))
            except queue.Full:
                self._counts["dropped"] += 1
                return
            self._posted_at.pop(key, None)
            self._posted_at[key] = now
            while len(self._posted_at) > _REMEMBERED:
                del self._posted_at[next(iter(self._posted_at))]

    def stats(self) -> PosterStats:
        with self._lock:
            return PosterStats(**self._counts)

    def interrupt(self) -> None:
        """Wakes the thread. Set `stop` first."""
        with suppress(queue.Full):  # a full queue means that the thread is not waiting for it
            self._queue.put_nowait((False, next(self._order), None))

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
                posted = self._post_with_retries(event)
            except Exception:
                _log.exception("event not posted: defect", pod=f"{event.namespace}/{event.pod}", reason=event.reason)
                posted = False
            self._count(event, posted)

    def _pace(self) -> None:
        """Blocks until the rate limit allows one more: a burst, then `events_per_second`."""
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
                self._posted_at.pop(_key(event), None)

    def _post_with_retries(self, event: PodEvent) -> bool:
        body = _body(event, datetime.now(UTC))
        for failures in range(1, _TRIES + 1):
            try:
                self._post_once(event, body)
                return True
            except ApiUnavailable as error:
                if isinstance(error, ApiRefused) and error.status == 409 and failures > 1:
                    return True  # an earlier try succeeded without an answer
                delay_seconds = self._retry_seconds(error, failures)
                if delay_seconds is None or self._stop.is_set():
                    _log.warning("event not posted", pod=f"{event.namespace}/{event.pod}", error=str(error))
                    return False
                self._pause(delay_seconds)
        return False

    def _post_once(self, event: PodEvent, body: object) -> None:
        path, timeout_seconds = object_path(event.namespace, "events"), self._timing.answer_seconds
        self._transport.request(_CREATE, "POST", path, body=body, timeout_seconds=timeout_seconds).content()

    def _retry_seconds(self, error: ApiUnavailable, failures: int) -> float | None:
        """None if another try cannot help, or if this was the last one."""
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
    # We choose the name, not the server: a repeated try is then a conflict, not a second event.
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
