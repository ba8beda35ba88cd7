"""Every version of every pod, in the order in which etcd stored them.

The API server's own watch has gaps: after a restart its cache begins anew, and a watch from before gets a 410. etcd
runs through, and a resourceVersion is its revision, so a watch of etcd misses nothing. etcd stores objects as protobuf;
the few fields that matter here are read by their numbers, which Kubernetes never changes.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson
import urllib3
from tests.controlplane import PodState
from tests.controlplane.history import PREFIX

_PODS = b"/registry/pods/"
_MAGIC = b"k8s\0"
# Fields of runtime.Unknown, Pod, ObjectMeta, a map entry, PodSpec and PodStatus.
_RAW = 2
_METADATA, _SPEC, _STATUS = 1, 2, 3
_NAME, _NAMESPACE, _UID, _DELETION, _ANNOTATIONS = 1, 3, 5, 9, 12
_KEY, _VALUE = 1, 2
_NODE, _SCHEDULER = 10, 19
_PHASE = 1
_RECONNECT_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Write:
    """One version of a pod. `pod` is None if this write deleted it."""

    revision: int
    key: str
    pod: PodState | None


class EtcdWatch:
    """Calls `sink` in its own thread with every write since `start`."""

    def __init__(self, url: str, sink: Callable[[Write], None]) -> None:
        self._url = url
        self._sink = sink
        self._pool = urllib3.PoolManager(retries=False)
        self._response: urllib3.BaseHTTPResponse | None = None
        self._stopping = threading.Event()
        self._next_revision = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="etcd", daemon=True)

    def start(self) -> None:
        """Before the first pod is created."""
        answer = self._pool.request("POST", f"{self._url}/v3/kv/range", json={"key": _encoded(_PODS)})
        self._next_revision = int(orjson.loads(answer.data)["header"]["revision"]) + 1
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._response is not None:
            self._response.shutdown()
        self._thread.join(timeout=10)
        self._pool.clear()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._watch_once()
                except (urllib3.exceptions.HTTPError, OSError):
                    self._stopping.wait(_RECONNECT_SECONDS)
        except BaseException as error:  # the run reads it and stops
            self.failure = error

    def _watch_once(self) -> None:
        for result in self._results():
            if result.get("canceled"):
                raise RuntimeError(f"etcd ended the watch: {result}")
            for event in result.get("events", ()):
                entry = event["kv"]
                revision = int(entry["mod_revision"])
                deleted = event.get("type") == "DELETE"
                pod = None if deleted else read_pod(base64.b64decode(entry["value"]))
                self._sink(Write(revision, base64.b64decode(entry["key"]).decode(), pod))
                self._next_revision = revision + 1

    def _results(self) -> Iterator[dict[str, Any]]:
        wanted = {"key": _encoded(_PODS), "range_end": _encoded(_after(_PODS)), "start_revision": self._next_revision}
        response = self._pool.request(
            "POST", f"{self._url}/v3/watch", json={"create_request": wanted}, preload_content=False, timeout=None
        )
        self._response = response
        rest = b""
        for chunk in response.stream(amt=1 << 16):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield orjson.loads(line)["result"]


def _encoded(text: bytes) -> str:
    return base64.b64encode(text).decode()


def _after(prefix: bytes) -> bytes:
    """The end of the range of all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def read_pod(stored: bytes) -> PodState:
    if not stored.startswith(_MAGIC):
        raise ValueError(f"not a Kubernetes object in protobuf: {stored[:20]!r}")
    pod = _fields(_fields(stored[len(_MAGIC) :])[_RAW][0])
    meta, spec, status = (_fields(pod.get(number, [b""])[0]) for number in (_METADATA, _SPEC, _STATUS))
    entries = (_fields(entry) for entry in meta.get(_ANNOTATIONS, ()))
    annotations = {_text(entry, _KEY): _text(entry, _VALUE) for entry in entries}
    return PodState(
        namespace=_text(meta, _NAMESPACE),
        name=_text(meta, _NAME),
        uid=_text(meta, _UID),
        node=_text(spec, _NODE) or None,
        phase=_text(status, _PHASE) or "Pending",
        scheduler=_text(spec, _SCHEDULER),
        deleting=_DELETION in meta,
        whole_gpus=0,
        annotations={key.removeprefix(PREFIX): value for key, value in annotations.items() if key.startswith(PREFIX)},
        unschedulable_message="",
    )


def _text(message: dict[int, list[bytes]], number: int) -> str:
    return message.get(number, [b""])[0].decode()


def _fields(message: bytes) -> dict[int, list[bytes]]:
    """The length-delimited fields of a protobuf message, by number."""
    found: dict[int, list[bytes]] = {}
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        match tag & 7:
            case 0:
                _, place = _varint(message, place)
            case 1:
                place += 8
            case 2:
                length, place = _varint(message, place)
                found.setdefault(tag >> 3, []).append(message[place : place + length])
                place += length
            case 5:
                place += 4
            case kind:
                raise ValueError(f"wire type {kind} in a protobuf message")
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
        shift += 7
