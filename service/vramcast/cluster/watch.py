"""List, then watch, then never lose sight again: one resource of the API server, in one thread.

Recovery has three levels, one method each:

    _forever           until stopped: whatever happened, start again from a list
    _list_then_watch   until the server has forgotten our place in its history (410): stream after stream from there
    _one_stream        until it ends, breaks or falls silent

Nothing is lost, because the place (`_revision`) moves only after the sink has what came before it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from vramcast.cluster.backoff import Backoff
from vramcast.cluster.pulse import Pulse, StreamEnd, WatchStats
from vramcast.cluster.readers import Node, Reader
from vramcast.cluster.seam import Sink
from vramcast.cluster.transport import (
    Action,
    ApiRefused,
    ApiUnavailable,
    ApiUnreachable,
    Status,
    Stream,
    Transport,
    refusal,
)
from vramcast.placement.changes import Change
from vramcast.task.pod import NO_METADATA, Pod

PAGE_ITEMS = 500
LIST_SECONDS = 60.0
# A stream that ends sooner than this, and empty, is a server that is not well.
_SHORT_SECONDS = 1.0

T = TypeVar("T", bound=Node | Pod)
I = TypeVar("I")  # noqa: E741 - the item of a list or an event
_log = structlog.get_logger("vramcast.cluster.watch")


class ListMetadata(msgspec.Struct, frozen=True, gc=False):
    resource_version: str = msgspec.field(default="", name="resourceVersion")
    token: str | None = msgspec.field(default=None, name="continue")


class Page(msgspec.Struct, Generic[I], frozen=True, gc=False):
    metadata: ListMetadata
    items: list[I] | None = None


class WatchEvent(msgspec.Struct, Generic[I], frozen=True, gc=False):
    type: str
    object: I


@dataclass(frozen=True, slots=True)
class Timing:
    """`quiet_seconds`: bookmarks come about every minute, so two are missing when a stream is given up."""

    watch_seconds: float = 300.0
    quiet_seconds: float = 150.0
    backoff: Backoff = field(default_factory=Backoff)
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Batch:
    """Events that have arrived and are not handed on yet; `revision`: the place after the last of them."""

    revision: str
    events: int = 0
    changes: list[Change] = field(default_factory=list)


class Watch(Generic[T]):
    """`stop` is shared with others and ends them all; `on_synced` is called once, after the first list."""

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
        # Lists in a row that led to no stream with anything in it.
        self._barren_lists = 0
        item: Any = reader.object_type
        self._page_decoder: msgspec.json.Decoder[Page[T]] = msgspec.json.Decoder(Page[item])
        self._event_decoder: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(WatchEvent[item])
        self._error_decoder = msgspec.json.Decoder(WatchEvent[Status])

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> None:
        """After `stop` was set: wakes the thread if it is reading."""
        stream = self._stream
        if stream is not None:
            stream.interrupt()

    def join(self, timeout_seconds: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds)

    @property
    def synced(self) -> bool:
        return self._pulse.synced

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
                # The state may lack a part of what was told: it is told everything again.
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
                    # At once the first time; a server that lists what it cannot watch is not asked in a tight loop.
                    self._pause(self._timing.backoff.delay_seconds(self._barren_lists))
                    self._barren_lists += 1
                    return
                self._recover(error)
            except ApiUnreachable as error:
                self._recover(error)

    def _one_stream(self) -> None:
        began = self._timing.clock()
        stream = self._transport.stream(
            Action("watch", self._reader.resource), self._reader.path, self._watch_query(), self._timing.quiet_seconds
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
            # The history ran out between two pages, and would again: all in one piece, then.
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
        # No resourceVersion: what is listed must be as new as the request, or a promise could be missed.
        query: dict[str, str | int] = {**self._reader.query}
        if limit is not None:
            query["limit"] = limit
        if token:
            query["continue"] = token
        action = Action("list", self._reader.resource)
        answer = self._transport.request(action, "GET", self._reader.path, query=query, timeout_seconds=LIST_SECONDS)
        try:
            page = self._page_decoder.decode(answer.content())
        except msgspec.MsgspecError as error:
            raise ApiRefused(f"cannot {action}: the answer is not a list: {error}", answer.status) from error
        self._pulse.beat()
        return page

    # --- streams

    def _watch_query(self) -> dict[str, str | int]:
        # Spread, so that all the watches of a cluster's clients do not come back in the same second.
        seconds = self._timing.watch_seconds * (0.8 + 0.4 * self._timing.backoff.jitter())
        return {
            **self._reader.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._revision,
            "timeoutSeconds": max(1, int(seconds)),
        }

    def _follow(self, stream: Stream) -> bool:
        """Hands on what comes until the stream ends; whether anything came."""
        received = False
        for lines in _lines(stream):
            received = True
            batch = _Batch(self._revision)
            try:
                for line in lines:
                    self._add(batch, self._read_event(line))
            finally:
                # At once, never "after what seems to be coming": a readable socket may hold the frame of a chunk and
                # no event at all, and then this one would wait for the next. And what came before an error has come.
                self._hand_on(batch)
        return received

    def _add(self, batch: _Batch, event: WatchEvent[T]) -> None:
        batch.events += 1
        batch.revision = (event.object.metadata or NO_METADATA).resource_version or batch.revision
        match event.type:
            case "ADDED" | "MODIFIED":
                change = self._reader.seen(event.object)
            case "DELETED":
                change = self._reader.gone(event.object)
            case _:  # BOOKMARK: only the place in the history
                return
        if change is not None:
            batch.changes.append(change)

    def _hand_on(self, batch: _Batch) -> None:
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
        """The object of an ERROR event is a Status, which does not read as a pod or node."""
        action = Action("watch", self._reader.resource)
        try:
            event = self._error_decoder.decode(line)
        except msgspec.MsgspecError:
            return ApiUnreachable(f"cannot {action}: the stream is garbled: {decoding}", maybe_applied=False)
        return refusal(action, event.object.code or 500, event.object)

    # --- the rest

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
    """The complete lines of each piece that arrives. A line cut off by the end was never there."""
    parts: list[bytes] = []
    while piece := stream.read():
        head, newline, tail = piece.rpartition(b"\n")
        if not newline:
            parts.append(piece)
            continue
        lines = b"".join([*parts, head]).split(b"\n")
        parts = [tail] if tail else []
        yield [line for line in lines if line]
