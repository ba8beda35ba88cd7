"""The health of one watch: written by its thread, read by health checks and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class StreamEnd(StrEnum):
    """Why a stream, or the attempt to open one, ended."""

    ENDED = "ended"  # closed by the server as usual
    QUIET = "quiet"  # no event and no bookmark for too long
    BROKEN = "broken"  # the connection broke, or could not be opened
    REFUSED = "refused"  # the server answered with an error
    GONE = "gone"  # our resource version is too old: list again
    DEFECT = "defect"  # a bug in vramcast


@dataclass(frozen=True, slots=True)
class WatchStats:
    """Counters since the start. `reconnects` has a count for every StreamEnd."""

    resource: str
    events: int
    lists: int
    reconnects: Mapping[StreamEnd, int]
    synced: bool
    connected: bool
    stale_seconds: float
    last_error: str


class Pulse:
    """One thread writes. Each field is replaced as a whole, so readers need no lock."""

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
        """Call when data arrives from the server."""
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
            # A connection that ends or breaks has delivered everything until now. A quiet one may not have.
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
