"""Lists and watches one resource of the API server, in one thread.

Recovery has three levels, one method each:

    _forever           until stopped: after any failure, list again
    _list_then_watch   until our resource version is too old (410): one stream after another
    _one_stream        until it ends, breaks or goes quiet

No event is lost, because `_revision` advances only after the sink has the events before it.

An idle watch must show that it is alive before the view counts as stale (`stale_after_seconds`). Bookmarks do not:
they come about once a minute, and not at all while the resource version stays the same. So each watch asks the server
to end it well before the limit. That end is a sign of life, and a new watch is one cheap request. For the default limit
of 60 s:

    16 to 24 s   `timeoutSeconds` of a watch: a third of the limit, with jitter so that watches do not end together
     5 s more    then the read times out: the server or the path to it is gone
     3 + 10 s    to connect, and for the answer
     2 s         a probe: after a stream that delivered nothing, a short one must deliver or end in good order
    ----------
    44 s         so one dead connection and one slow answer do not make the view stale

Two watches make six requests a minute on connections that are reused. Each costs the API server about 4 ms of CPU.
After an outage, the longest backoff (2.5 s) and the probe bring the view back within 5 s.

TCP keepalive (`connection.py`) is slower than the read timeout. It covers pooled connections that nobody reads from.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from vramcast.cluster.objects import Page, decode
from vramcast.cluster.pulse import Pulse, StreamEnd, WatchStats
from vramcast.cluster.readers import Node, Reader
from vramcast.cluster.seam import Sink
from vramcast.cluster.slices import ResourceSlice
from vramcast.cluster.transport import (
    Action,
    ApiRefused,
    ApiUnavailable,
    ApiUnreachable,
    Backoff,
    Status,
    Stream,
    Transport,
    refusal,
)
from vramcast.placement.changes import Change
from vramcast.task.pod import NO_METADATA, Pod

PAGE_ITEMS = 500
LIST_SECONDS = 60.0
PROBE_SECONDS = 2
# An empty stream that ends sooner than this counts as a failure.
_SHORT_SECONDS = 1.0
# Even if the view may be older: a dead connection should be noticed within half a minute.
_LONGEST_LIMIT_SECONDS = 60.0

T = TypeVar("T", bound=Node | Pod | ResourceSlice)
I = TypeVar("I")  # noqa: E741 - the object of an event
_log = structlog.get_logger("vramcast.cluster.watch")


class WatchEvent(msgspec.Struct, Generic[I], frozen=True, gc=False):
    type: str
    object: I


@dataclass(frozen=True, slots=True)
class Timing:
    """The defaults suit a view that may be 60 s old; see the top of this file."""

    watch_seconds: float = 20.0
    grace_seconds: float = 5.0
    answer_seconds: float = 10.0
    backoff: Backoff = field(default_factory=lambda: Backoff(longest_seconds=2.5))
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def for_limit(cls, stale_after_seconds: float) -> Timing:
        limit = min(stale_after_seconds, _LONGEST_LIMIT_SECONDS)
        return cls(limit / 3, max(1.0, limit / 12), max(1.0, limit / 6))

    def next_watch_seconds(self) -> int:
        """The API server takes whole seconds."""
        return max(1, int(self.watch_seconds * (0.8 + 0.4 * self.backoff.jitter())))


@dataclass(slots=True)
class _Batch:
    """Events on their way to the sink. `revision` is the resource version of the last one."""

    revision: str
    events: int = 0
    changes: list[Change] = field(default_factory=list)


class Watch(Generic[T]):
    """`stop` is shared with other threads. `on_synced` is called once, after the first list."""

    def __init__(
        self,
        transport: Transport,
        reader: Reader[T],
        sink: Sink,
        stop: threading.Event,
        timing: Timing | None = None,
        pause: Callable[[float], object] | None = None,
        on_synced: Callable[[], None] | None = None,
    ) -> None:
        self._transport = transport
        self._reader = reader
        self._sink = sink
        self._stop = stop
        self._timing = timing or Timing()
        self._pause = pause or stop.wait
        self._on_synced = on_synced
        self._pulse = Pulse(reader.resource, self._timing.clock)
        self._thread = threading.Thread(target=self._forever, name=f"watch-{reader.resource}", daemon=True)
        self._stream: Stream | None = None
        self._revision = ""
        self._failures = 0
        # Lists in a row after which no stream delivered an event.
        self._barren_lists = 0
        item: Any = reader.object_type
        self._page_type: type[Page[T]] = Page[item]
        self._event_decoder: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(WatchEvent[item])
        self._error_decoder = msgspec.json.Decoder(WatchEvent[Status])

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> None:
        """Wakes the thread if it is reading. Set `stop` first."""
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def join(self, timeout_seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    def stats(self) -> WatchStats:
        return self._pulse.stats()

    # --- the levels of recovery

    def _forever(self) -> None:
        while not self._stop.is_set():
            try:
                self._list_then_watch()
            except ApiUnavailable as error:
                self._recover(error)
            except Exception as error:
                # The sink may have missed changes, so it gets everything again.
                _log.exception("watch defect", resource=self._reader.resource)
                self._reader.forget()
                self._end(StreamEnd.DEFECT, f"{type(error).__name__}: {error}")
                self._back_off()

    def _list_then_watch(self) -> None:
        self._list()
        while not self._stop.is_set():
            try:
                self._one_stream()
            except ApiRefused as error:
                if error.gone:
                    self._end(StreamEnd.GONE, str(error))
                    # No delay the first time. A server that rejects its own resource versions must not be hammered.
                    self._pause(self._timing.backoff.delay_seconds(self._barren_lists))
                    self._barren_lists += 1
                    return
                self._recover(error)
            except ApiUnreachable as error:
                self._recover(error)

    def _one_stream(self) -> None:
        began = self._timing.clock()
        seconds = PROBE_SECONDS if self._pulse.in_doubt else self._timing.next_watch_seconds()
        stream = self._transport.stream(
            Action("watch", self._reader.resource),
            self._reader.path,
            self._watch_query(seconds),
            quiet_seconds=seconds + self._timing.grace_seconds,
            answer_seconds=self._timing.answer_seconds,
        )
        self._stream = stream
        try:
            if self._stop.is_set():
                return
            self._pulse.connect()
            received = self._follow(stream)
        finally:
            self._stream = None
            stream.close()
        if not received and self._timing.clock() - began < _SHORT_SECONDS:
            raise ApiUnreachable("the API server ended the watch as soon as it began", maybe_applied=False)
        self._end(StreamEnd.ENDED)

    # --- lists

    def _list(self) -> None:
        try:
            self._list_pages(PAGE_ITEMS)
        except ApiRefused as error:
            if not error.gone:
                raise
            # The continue token expired between two pages and would again: list everything in one request.
            self._list_pages(None)
        self._failures = 0
        first = not self._pulse.synced
        self._pulse.listed()
        if first and self._on_synced is not None:
            self._on_synced()

    def _list_pages(self, limit: int | None) -> None:
        listed_at = self._timing.clock()
        self._reader.begin_list()
        token = ""
        while True:
            page = self._get_page(limit, token)
            changes = [c for item in page.items or () if (c := self._reader.listed(item)) is not None]
            token = page.metadata.token or ""
            if not token:
                self._deliver([*changes, self._reader.end_list(listed_at)])
                self._revision = page.metadata.resource_version
                return
            self._deliver(changes)

    def _get_page(self, limit: int | None, token: str) -> Page[T]:
        # No resourceVersion: a list from the API server's cache could be old and miss a promise.
        query: dict[str, str | int] = {**self._reader.query}
        if limit is not None:
            query["limit"] = limit
        if token:
            query["continue"] = token
        action = Action("list", self._reader.resource)
        answer = self._transport.request(action, "GET", self._reader.path, query=query, timeout_seconds=LIST_SECONDS)
        page = decode(answer, self._page_type)
        self._pulse.beat()
        return page

    # --- streams

    def _watch_query(self, seconds: int) -> dict[str, str | int]:
        return {
            **self._reader.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._revision,
            "timeoutSeconds": seconds,
        }

    def _follow(self, stream: Stream) -> bool:
        """Delivers events until the stream ends. True if there were any."""
        received = False
        for lines in _lines(stream):
            received = True
            batch = _Batch(self._revision)
            try:
                for line in lines:
                    self._add(batch, self._read_event(line))
            finally:
                # Do not wait for more even if the socket is readable: that may be a chunk header without an event.
                # `finally`, because events before an error are still valid.
                self._deliver_batch(batch)
        return received

    def _add(self, batch: _Batch, event: WatchEvent[T]) -> None:
        batch.events += 1
        batch.revision = (event.object.metadata or NO_METADATA).resource_version or batch.revision
        match event.type:
            case "ADDED" | "MODIFIED":
                change = self._reader.seen(event.object)
            case "DELETED":
                change = self._reader.gone(event.object)
            case _:  # BOOKMARK: only a resource version
                return
        if change is not None:
            batch.changes.append(change)

    def _deliver_batch(self, batch: _Batch) -> None:
        if not batch.events:
            return
        self._deliver(batch.changes)
        self._revision = batch.revision
        self._failures = self._barren_lists = 0
        self._pulse.beat(batch.events)

    def _read_event(self, line: bytes) -> WatchEvent[T]:
        try:
            return self._event_decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise self._reported_error(line, error) from error

    def _reported_error(self, line: bytes, decoding: msgspec.MsgspecError) -> ApiUnavailable:
        """The object of an ERROR event is a Status, which does not decode as a pod or node."""
        action = Action("watch", self._reader.resource)
        try:
            event = self._error_decoder.decode(line)
        except msgspec.MsgspecError:
            return ApiUnreachable(f"cannot {action}: invalid data in the stream: {decoding}", maybe_applied=False)
        return refusal(action, event.object.code or 500, event.object)

    # --- delivery and retries

    def _deliver(self, changes: list[Change]) -> None:
        if changes:
            self._sink(changes)

    def _recover(self, error: ApiUnavailable) -> None:
        if isinstance(error, ApiRefused):
            self._end(StreamEnd.REFUSED, str(error))
            self._back_off(error.retry_after_seconds or 0.0)
        elif isinstance(error, ApiUnreachable) and error.quiet and self._pulse.connected:
            self._end(StreamEnd.QUIET, str(error))
        else:
            self._end(StreamEnd.BROKEN, str(error))
            self._back_off()

    def _end(self, ending: StreamEnd, error: str = "") -> None:
        self._pulse.end(ending, error)
        if error and not self._stop.is_set():
            _log.warning("watch interrupted", resource=self._reader.resource, why=ending.value, error=error)

    def _back_off(self, at_least_seconds: float = 0.0) -> None:
        self._failures += 1
        self._pause(max(at_least_seconds, self._timing.backoff.delay_seconds(self._failures)))


def _lines(stream: Stream) -> Iterator[list[bytes]]:
    """The complete lines of each piece that arrives. A line that the end of the stream cuts off is dropped."""
    parts: list[bytes] = []
    while piece := stream.read():
        head, newline, tail = piece.rpartition(b"\n")
        if not newline:
            parts.append(piece)
            continue
        lines = b"".join([*parts, head]).split(b"\n")
        parts = [tail] if tail else []
        yield [line for line in lines if line]
