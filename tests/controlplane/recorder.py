"""Records the changes of pods and nodes, across API server restarts and expired revisions.

One function per level of recovery: `_follow_forever` retries while the server is away, `_list` starts over after an
expired revision, `_watch_once` reads one stream.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import urlencode

import orjson
import urllib3

from .api import Api, ApiError, Json
from .eventually import PATIENCE_SECONDS, eventually
from .history import Change, Event, History, NodeState, PodState

RECONNECT_SECONDS = 0.1


class _ExpiredError(Exception):
    """The server no longer has the revision to resume from."""


class _BrokenStreamError(Exception):
    """The server ended the watch with an error other than an expired revision."""


class Recorder:
    """Records between `start` and `stop`, or inside a `with` block, in its own threads."""

    def __init__(self, api: Api, from_revision: str | None = None) -> None:
        self._streams = (
            _Stream(api, "/api/v1/pods", PodState.of, from_revision),
            _Stream(api, "/api/v1/nodes", NodeState.of, from_revision),
        )

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Recorder:
        for stream in self._streams:
            stream.start()
        return self

    def stop(self) -> None:
        for stream in self._streams:
            stream.stop()

    def history(self) -> History:
        """The events recorded so far. `sync` waits for everything that has happened."""
        for stream in self._streams:
            stream.raise_failure()
        return History.of(event for stream in self._streams for event in list(stream.events))

    def sync(self, timeout_seconds: float = PATIENCE_SECONDS) -> History:
        """The history up to now: waits until the watches have delivered what a list shows."""
        for stream in self._streams:
            stream.catch_up(timeout_seconds)
        return self.history()


@dataclass(frozen=True, slots=True)
class _Known:
    revision: int
    state: NodeState | PodState


class _Stream:
    """One resource's changes, in order."""

    def __init__(
        self, api: Api, path: str, read: Callable[[Json], NodeState | PodState], from_revision: str | None
    ) -> None:
        self.events: list[Event] = []
        self._api = api
        self._path = path
        self._read = read
        self._revision = from_revision
        self._known: dict[str, _Known] = {}  # by UID
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._pool = api.new_pool(1)
        self._thread = threading.Thread(target=self._run, name=f"record {path}", daemon=True)

    def start(self) -> None:
        if self._revision is None:
            self._list(None)  # in the caller's thread, so that nothing is missed after start returns
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        response = self._response
        if response is not None:
            _shut_down(response)
        self._thread.join(timeout=PATIENCE_SECONDS)
        self._pool.clear()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"the recorder of {self._path} has stopped") from self._failure

    def catch_up(self, timeout_seconds: float) -> None:
        listed = self._api.get(self._path)
        moment = int(listed["metadata"]["resourceVersion"])
        wanted = {item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in listed["items"]}

        def caught_up() -> bool:
            self.raise_failure()
            known = {uid: entry.revision for uid, entry in self._known.copy().items()}
            arrived = all(known.get(uid, 0) >= revision for uid, revision in wanted.items())
            departed = all(uid in wanted or revision > moment for uid, revision in known.items())
            return arrived and departed

        # A listed object may be deleted before the watch delivers it. The next list no longer has it.
        deadline = time.monotonic() + timeout_seconds
        try:
            eventually(caught_up, min(timeout_seconds, 2.0), f"the recorder catches up on {self._path}")
        except AssertionError:
            if deadline - time.monotonic() <= 0.1:
                raise
            self.catch_up(deadline - time.monotonic())

    # --- the levels of recovery

    def _run(self) -> None:
        try:
            self._follow_forever()
        except BaseException as error:  # raised in the test that reads the history
            self._failure = error

    def _follow_forever(self) -> None:
        expired = False
        while not self._stopping.is_set():
            try:
                if expired:
                    self._list(int(self._revision or 0))
                    expired = False
                self._watch_once()
            except _ExpiredError:
                expired = True
            except (urllib3.exceptions.HTTPError, OSError, ApiError, orjson.JSONDecodeError, _BrokenStreamError):
                # Away, starting, or cut off in the middle of a line. The last revision is where to resume.
                self._stopping.wait(RECONNECT_SECONDS)

    def _list(self, gap_start: int | None) -> None:
        """Records the differences between a new list and the known state; `gap_start` is the last revision seen."""
        listed = self._api.get(self._path)
        present = {item["metadata"]["uid"] for item in listed["items"]}
        for uid in set(self._known) - present:
            self._record(Change.DELETED, uid, gap_start or 0, self._known[uid].state, gap_start)
        for item in listed["items"]:
            uid, revision = item["metadata"]["uid"], int(item["metadata"]["resourceVersion"])
            before = self._known.get(uid)
            if before is None or before.revision < revision:
                change = Change.ADDED if before is None else Change.MODIFIED
                self._record(change, uid, revision, self._read(item), gap_start)
        self._revision = str(listed["metadata"]["resourceVersion"])

    def _watch_once(self) -> None:
        for message in self._messages():
            item = message["object"]
            if message["type"] == "ERROR":
                if item.get("code") == 410:
                    raise _ExpiredError
                raise _BrokenStreamError(f"watch of {self._path}: {item.get('message')}")
            self._revision = item["metadata"]["resourceVersion"]
            if message["type"] != "BOOKMARK":
                uid = item["metadata"]["uid"]
                change = Change(message["type"])
                self._record(change, uid, int(self._revision or 0), self._read(item), None)

    def _messages(self) -> Iterator[Json]:
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": self._revision or "0"}
        response = self._pool.request(
            "GET",
            f"{self._api.url}{self._path}?{urlencode(query)}",
            preload_content=False,
            timeout=urllib3.Timeout(connect=PATIENCE_SECONDS, read=None),
        )
        try:
            if response.status == 410:
                raise _ExpiredError
            if response.status != 200:
                raise ApiError("WATCH", self._path, response.status, response.read())
            self._response = response
            if self._stopping.is_set():
                return
            for line in _lines(response):
                yield orjson.loads(line)
        finally:
            self._response = None
            response.close()

    def _record(
        self, change: Change, uid: str, revision: int, state: NodeState | PodState, gap_start: int | None
    ) -> None:
        place = revision
        if gap_start is not None and _releases(change, state):
            # The memory became free somewhere in the gap. Assume its start: at any later position, a pod that
            # rightly got the memory in the meantime would look like an overcommit.
            place = gap_start
        self.events.append(Event(place, change, state, time.monotonic(), gap_start is not None))
        if change is Change.DELETED:
            self._known.pop(uid, None)
        else:
            self._known[uid] = _Known(revision, state)


def _releases(change: Change, state: NodeState | PodState) -> bool:
    return change is Change.DELETED or (isinstance(state, PodState) and not state.holds_memory)


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines


def _shut_down(response: urllib3.BaseHTTPResponse) -> None:
    """Wakes the thread that blocks on the response, which may already have ended."""
    try:
        response.shutdown()
    except (ValueError, RuntimeError, OSError):
        return
