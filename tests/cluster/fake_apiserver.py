"""A small API server over real HTTP: lists in pages, watches from a resource version, binds pods.

By default it behaves well. `script` makes it misbehave: each of the next requests of that kind gets one of the scripted
behaviours instead.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3

from vramcast.cluster.transport import Transport

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Json

    @property
    def kind(self) -> str:
        """The name for `script`: `list pods`, `watch nodes`, `get pod`, `bind`, `requeue` or `event`."""
        parts = self.path.strip("/").split("/")
        if parts[-1] in ("pods", "nodes"):
            return f"{'watch' if self.query.get('watch') == 'true' else 'list'} {parts[-1]}"
        return {"binding": "bind", "status": "requeue", "events": "event"}.get(parts[-1], "get pod")

    @property
    def name(self) -> str:
        parts = self.path.strip("/").split("/")
        return parts[5] if len(parts) > 5 else ""


class Exchange:
    """One request and its answer."""

    def __init__(self, handler: BaseHTTPRequestHandler, request: Request) -> None:
        self._handler = handler
        self.request = request

    def answer(self, status: int, body: Json | bytes, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._handler.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.end_headers()
        self._handler.wfile.write(content)

    def begin(self) -> None:
        self._handler.send_response(200)
        self._handler.send_header("Transfer-Encoding", "chunked")
        self._handler.end_headers()

    def write(self, content: bytes) -> None:
        """One chunk."""
        self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def write_raw(self, content: bytes) -> None:
        """Bytes without the chunked encoding."""
        self._handler.wfile.write(content)

    def event(self, kind: str, item: Json) -> None:
        self.write(event_line(kind, item))

    def end(self) -> None:
        self._handler.wfile.write(b"0\r\n\r\n")

    def close(self) -> None:
        """Closes the connection (FIN). In a stream, the last chunk is missing."""
        self._handler.close_connection = True

    def reset(self) -> None:
        """Aborts the connection (RST)."""
        self._handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._handler.close_connection = True


Behaviour = Callable[["FakeApiServer", Exchange], None]


def event_line(kind: str, item: Json) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status(code: int, message: str = "scripted") -> Json:
    return {"kind": "Status", "metadata": {}, "status": "Failure", "message": message, "code": code}


def answers(code: int, message: str = "scripted", **headers: str) -> Behaviour:
    """Answers with a Status."""
    return lambda server, exchange: exchange.answer(code, status(code, message), **headers)


def resets(server: FakeApiServer, exchange: Exchange) -> None:
    """Aborts the connection without an answer."""
    exchange.reset()


def applies_then_resets(server: FakeApiServer, exchange: Exchange) -> None:
    """Applies the request, then aborts the connection without an answer."""
    server.apply_binding(exchange.request)
    exchange.reset()


def is_silent(server: FakeApiServer, exchange: Exchange) -> None:
    """Accepts the request and never answers."""
    server.stopping.wait()
    exchange.reset()


def gone_in_stream(server: FakeApiServer, exchange: Exchange) -> None:
    exchange.begin()
    exchange.event("ERROR", status(410, "too old resource version"))
    exchange.end()


def breaks_after(events: int, *, mid_line: bool = False, orderly: bool = False) -> Behaviour:
    """Sends this many events; then a reset, half a line and a reset, or a proper end."""

    def behave(server: FakeApiServer, exchange: Exchange) -> None:
        lines = server.lines_after(exchange.request)
        exchange.begin()
        for _, line in zip(range(events), lines, strict=False):
            exchange.write(line)
        if mid_line and (line := next(lines, None)):
            exchange.write(line[: len(line) // 2])
        if orderly:
            exchange.end()
        else:
            exchange.reset()

    return behave


def falls_silent(server: FakeApiServer, exchange: Exchange) -> None:
    """Starts a stream and never sends anything."""
    exchange.begin()
    server.stopping.wait()
    exchange.reset()


@dataclass
class Store:
    """One resource: its objects, and the events that a watch can start from."""

    objects: dict[str, Json] = field(default_factory=dict)
    history: list[tuple[int, bytes]] = field(default_factory=list)
    forgotten_before: int = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    fake: FakeApiServer

    def shutdown_request(self, request: Any) -> None:
        # No orderly shutdown, which would turn every reset into an end.
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignored: clients disconnect all the time in these tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        split = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        request = Request(self.command, split.path, dict(parse_qsl(split.query)), dict(self.headers), body)
        self.server.fake.handle(Exchange(self, request))

    do_GET = do_POST = do_PATCH = serve  # noqa: N815 - http.server's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Quiet."""


class FakeApiServer:
    """Use as a context manager."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self.stores = {"nodes": Store(), "pods": Store()}
        self._revision = 100
        self._scripts: dict[str, deque[Behaviour]] = defaultdict(deque)
        self._changed = threading.Condition(threading.RLock())
        self._stream_epoch = 0
        self._finish: Callable[[Exchange], None] = Exchange.end
        self._snapshots: dict[str, list[Json]] = {}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.fake = self
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True)

    def __enter__(self) -> FakeApiServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        with self._changed:
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def transport(self) -> Transport:
        return Transport(urllib3.PoolManager(maxsize=8), self.url, lambda: {"authorization": "Bearer fake"})

    # --- for tests

    def script(self, kind: str, *behaviours: Behaviour) -> None:
        self._scripts[kind].extend(behaviours)

    def put(self, resource: str, item: Json) -> Json:
        """Creates or replaces the object; returns it with its resource version."""
        store, name = self.stores[resource], item["metadata"]["name"]
        with self._changed:
            kind = "MODIFIED" if name in store.objects else "ADDED"
            stored = self._stamp(item)
            store.objects[name] = stored
            self._record(store, kind, stored)
        return stored

    def delete(self, resource: str, name: str) -> None:
        store = self.stores[resource]
        with self._changed:
            self._record(store, "DELETED", self._stamp(store.objects.pop(name)))

    def forget_history(self) -> None:
        """Like etcd's compaction: watches from older resource versions get a 410."""
        with self._changed:
            for store in self.stores.values():
                store.forgotten_before = self._revision
                store.history.clear()

    def end_streams(self, finish: Callable[[Exchange], None] = Exchange.end) -> None:
        """Ends all open watches: properly, or with `Exchange.close` or `Exchange.reset`."""
        with self._changed:
            self._finish = finish
            self._stream_epoch += 1
            self._changed.notify_all()

    def received(self, kind: str) -> list[Request]:
        return [request for request in self.requests if request.kind == kind]

    # --- good behaviour

    def handle(self, exchange: Exchange) -> None:
        request = exchange.request
        with self._changed:
            self.requests.append(request)
            scripts = self._scripts[request.kind]
            scripted = scripts.popleft() if scripts else None
        if scripted is not None:
            scripted(self, exchange)
            return
        verb, _, resource = request.kind.partition(" ")
        match verb:
            case "list":
                self._list(exchange, resource)
            case "watch":
                self._watch(exchange, resource)
            case "get":
                found = self.stores["pods"].objects.get(request.name)
                exchange.answer(200, found) if found else exchange.answer(404, status(404, "not found"))
            case "bind":
                code = self.apply_binding(request)
                exchange.answer(code, status(code, "bound" if code == 201 else "no"))
            case _:
                exchange.answer(200, {})

    def apply_binding(self, request: Request) -> int:
        with self._changed:
            pod = self.stores["pods"].objects.get(request.name)
            if pod is None:
                return 404
            wanted = request.body["metadata"]
            if pod["metadata"]["uid"] != wanted["uid"] or pod["spec"].get("nodeName"):
                return 409
            annotations = {**pod["metadata"].get("annotations", {}), **wanted["annotations"]}
            bound = {**pod["spec"], "nodeName": request.body["target"]["name"]}
            self.put("pods", {**pod, "metadata": {**pod["metadata"], "annotations": annotations}, "spec": bound})
            return 201

    def _list(self, exchange: Exchange, resource: str) -> None:
        query = exchange.request.query
        with self._changed:
            token = query.get("continue", "")
            snapshot, _, start_text = token.rpartition(":")
            start = int(start_text or 0)
            if not token:
                snapshot = str(self._revision)
                self._snapshots[resource + snapshot] = list(self.stores[resource].objects.values())
            items = self._snapshots[resource + snapshot]
        end = start + int(query.get("limit") or len(items) or 1)
        more = f"{snapshot}:{end}" if end < len(items) else ""
        metadata = {"resourceVersion": snapshot, "continue": more}
        exchange.answer(200, {"metadata": metadata, "items": items[start:end] or None})

    def _watch(self, exchange: Exchange, resource: str) -> None:
        if int(exchange.request.query["resourceVersion"]) < self.stores[resource].forgotten_before:
            gone_in_stream(self, exchange)
            return
        lines = self.lines_after(exchange.request)
        exchange.begin()
        for line in lines:
            exchange.write(line)
        self._finish(exchange)

    def lines_after(self, request: Request) -> Iterator[bytes]:
        """Past and future events after the request's resource version, until streams are ended.

        Call it before the client gets an answer: a test may end all streams as soon as it is connected.
        """
        store = self.stores[request.kind.split()[-1]]
        return self._lines(store, int(request.query["resourceVersion"]), self._stream_epoch)

    def _lines(self, store: Store, after: int, epoch: int) -> Iterator[bytes]:
        while True:
            with self._changed:
                if self.stopping.is_set() or self._stream_epoch != epoch:
                    return
                new = [entry for entry in store.history if entry[0] > after]
                if not new:
                    self._changed.wait()
                    continue
            for revision, line in new:
                after = revision
                yield line

    def bookmark(self, resource: str) -> None:
        with self._changed:
            self._revision += 1
            item = {"metadata": {"resourceVersion": str(self._revision)}}
            self._record(self.stores[resource], "BOOKMARK", item)

    def _stamp(self, item: Json) -> Json:
        self._revision += 1
        return {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._revision)}}

    def _record(self, store: Store, kind: str, item: Json) -> None:
        store.history.append((self._revision, event_line(kind, item)))
        self._changed.notify_all()
