"""The signs of life of one watch: written by its thread, read by whoever asks how things are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class StreamEnd(StrEnum):
    """Why a stream, or the attempt to have one, ended."""

    ENDED = "ended"  # by the server, in good order
    QUIET = "quiet"  # nothing came for too long, not even a bookmark
    BROKEN = "broken"  # the connection broke or never came about
    REFUSED = "refused"  # an error for an answer
    GONE = "gone"  # the server has forgotten where we were: a new list
    DEFECT = "defect"  # ours


@dataclass(frozen=True, slots=True)
class WatchStats:
    """Counters since the start; `reconnects` has every Ending."""

    resource: str
    events: int
    lists: int
    reconnects: Mapping[StreamEnd, int]
    synced: bool
    connected: bool
    stale_seconds: float
    last_error: str


class Pulse:
    """Single writer; every field is replaced as a whole, so that readers need no lock."""

    def __init__(self, resource: str, clock: Callable[[], float]) -> None:
        self.synced = False
        self.connected = False
        self._resource = resource
        self._clock = clock
        self._last_sign = clock()
        self._events = 0
        self._lists = 0
        self._endings = dict.fromkeys(StreamEnd, 0)
        self._last_error = ""

    def beat(self, events: int = 0) -> None:
        """Something came from the server."""
        self._last_sign = self._clock()
        self._events += events

    def listed(self) -> None:
        self.beat()
        self._lists += 1
        self.synced = True

    def connect(self) -> None:
        self.beat()
        self.connected = True
        self._last_error = ""

    def end(self, ending: StreamEnd, error: str = "") -> None:
        if self.connected and ending is not StreamEnd.QUIET:
            # Until a connection says that it is over, it has lost nothing. Only silence proves nothing.
            self.beat()
        self.connected = False
        self._endings[ending] += 1
        self._last_error = error

    @property
    def stale_seconds(self) -> float:
        return 0.0 if self.connected else max(0.0, self._clock() - self._last_sign)

    def stats(self) -> WatchStats:
        return WatchStats(
            self._resource,
            self._events,
            self._lists,
            dict(self._endings),
            self.synced,
            self.connected,
            self.stale_seconds,
            self._last_error,
        )
