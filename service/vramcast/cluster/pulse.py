"""The health of one watch: written by its thread, read by health checks and metrics.

Staleness is the time since the last sign of life. These are signs of life:

- data: a page of a list, an event, a bookmark
- a stream that the server ends in good order
- a stream that the server opens, unless the one before was opened and then delivered nothing

An open connection is none, because it looks the same if the server is gone.
"""

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
    """Counters since the start. `reconnects` has a count for every StreamEnd but ENDED, which `renewals` counts."""

    resource: str
    events: int
    lists: int
    reconnects: Mapping[StreamEnd, int]
    renewals: int
    synced: bool
    connected: bool
    stale_seconds: float
    last_error: str


class Pulse:
    """One thread writes. Each field is replaced as a whole, so readers need no lock."""

    def __init__(self, resource: str, clock: Callable[[], float]) -> None:
        self.synced = False
        self.connected = False
        # The last stream was opened but has not delivered anything.
        self.in_doubt = False
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
        self.in_doubt = False
        self._events += events

    def listed(self) -> None:
        self.beat()
        self._lists += 1
        self.synced = True

    def connect(self) -> None:
        if not self.in_doubt:
            self.beat()
        self.in_doubt = True
        self.connected = True
        self._last_error = ""

    def end(self, ending: StreamEnd, error: str = "") -> None:
        if ending is StreamEnd.ENDED:
            self.beat()
        self.connected = False
        self._endings[ending] += 1
        self._last_error = error

    @property
    def stale_seconds(self) -> float:
        return max(0.0, self._clock() - self._last_sign)

    def stats(self) -> WatchStats:
        endings = dict(self._endings)
        renewals = endings.pop(StreamEnd.ENDED)
        return WatchStats(
            self._resource,
            self._events,
            self._lists,
            endings,
            renewals,
            self.synced,
            self.connected,
            self.stale_seconds,
            self._last_error,
        )
