"""The Cluster that talks to an API server."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from vramcast.cluster import objects
from vramcast.cluster.binding import BindTiming, bind
from vramcast.cluster.connection import connect
from vramcast.cluster.event_poster import EventPoster, PosterStats, PosterTiming
from vramcast.cluster.pulse import WatchStats
from vramcast.cluster.readers import Node, NodeReader, PodReader
from vramcast.cluster.seam import BindingWrite, BindResult, PodEvent, Sink, Stats, SyncHealth
from vramcast.cluster.slices import ResourceSlice, SliceReader
from vramcast.cluster.transport import MERGE_PATCH, Action, ApiResponse, Transport
from vramcast.cluster.watch import Timing, Watch
from vramcast.names import PodUid
from vramcast.task.pod import Pod, PodRecord, to_record
from vramcast.task.task import REQUEUE

_PATCH: Final = Action("patch", "pods/status")
_READ_SECONDS: Final = 2.0
_REQUEUE_SECONDS: Final = 5.0
_WRITE_SECONDS: Final = 5.0
_JOIN_SECONDS: Final = 2.0
# Longer than a healthy watch is ever silent.
_SILENT_SECONDS: Final = 30.0
# Answers to a patch if the pod is gone or another pod has its name.
_NOT_THIS_POD: Final = (404, 409, 422)


class KubernetesCluster:
    """Implements `Cluster`. `stop` closes the transport. Tests pass `pause` to skip the delays after failures."""

    def __init__(
        self,
        transport: Transport,
        *,
        timing: Timing | None = None,
        bind_timing: BindTiming | None = None,
        poster_timing: PosterTiming | None = None,
        pause: Callable[[float], object] | None = None,
        resource_slices: bool = False,
    ) -> None:
        self._transport = transport
        self._stop = threading.Event()
        self._timing = timing or Timing()
        self._bind_timing = bind_timing or BindTiming()
        self._pause = pause
        self._poster = EventPoster(transport, self._stop, poster_timing, pause=pause)
        self._watches: tuple[Watch[Node], Watch[Pod]] | None = None
        self._resource_slices = resource_slices
        self._slices: Watch[ResourceSlice] | None = None

    @classmethod
    def from_environment(
        cls,
        environment: Mapping[str, str] = os.environ,
        bind_deadline_seconds: float = 1.5,
        stale_after_seconds: float = 60.0,
        resource_slices: bool = False,
    ) -> KubernetesCluster:
        """Connects with KUBECONFIG, ~/.kube/config or the pod's service account. Raises InvalidInput."""
        return cls(
            connect(environment),
            timing=Timing.for_limit(stale_after_seconds),
            bind_timing=BindTiming(bind_deadline_seconds),
            resource_slices=resource_slices,
        )

    def start(self, sink: Sink) -> None:
        pods = Watch(self._transport, PodReader(), sink, self._stop, self._timing, self._pause)
        # Nodes first: the need of a bound pod depends on the GPUs of its node.
        nodes = Watch(self._transport, NodeReader(), sink, self._stop, self._timing, self._pause, on_synced=pods.start)
        self._watches = (nodes, pods)
        self._poster.start()
        nodes.start()
        if self._resource_slices:
            # Nothing waits for them: a node whose GPUs are not known yet offers none.
            self._slices = Watch(self._transport, SliceReader(), sink, self._stop, self._timing, self._pause)
            self._slices.start()

    def stop(self) -> None:
        self._stop.set()
        parts = (*(self._watches or ()), *([self._slices] if self._slices else []), self._poster)
        for part in parts:
            part.interrupt()
        for part in parts:
            part.join(_JOIN_SECONDS)
        self._transport.close()

    def health(self) -> SyncHealth:
        watches = self.watch_stats()
        synced = bool(watches) and all(watch.synced for watch in watches)
        stale_seconds = max((watch.stale_seconds for watch in watches), default=0.0)
        # Decisions do not wait for ResourceSlices, but whoever looks sees how their watch fares.
        words = map(_in_words, (*watches, *self._slice_stats()))
        return SyncHealth(synced, stale_seconds, "; ".join(words) or "not started")

    def stats(self) -> Stats:
        watches, posted = (*self.watch_stats(), *self._slice_stats()), self.event_stats()
        return Stats(
            events=sum(watch.events for watch in watches),
            lists=sum(watch.lists for watch in watches),
            reconnects=sum(sum(watch.reconnects.values()) for watch in watches),
            dropped_events=posted.dropped + posted.failed,
        )

    def watch_stats(self) -> tuple[WatchStats, ...]:
        """Nodes, then pods."""
        return tuple(watch.stats() for watch in self._watches or ())

    def _slice_stats(self) -> tuple[WatchStats, ...]:
        return (self._slices.stats(),) if self._slices else ()

    def event_stats(self) -> PosterStats:
        return self._poster.stats()

    def bind(self, write: BindingWrite) -> BindResult:
        return bind(self._transport, write, self._bind_timing)

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        pod = objects.get_pod(self._transport, namespace, name, _READ_SECONDS)
        return to_record(pod) if pod is not None else None

    def read_lease(self, namespace: str, name: str) -> objects.Lease | None:
        return objects.read_lease(self._transport, namespace, name, _READ_SECONDS)

    def read_config_map(self, namespace: str, name: str) -> objects.StoredConfigMap | None:
        return objects.read_config_map(self._transport, namespace, name, _READ_SECONDS)

    def write_config_map(self, namespace: str, name: str, data: Mapping[str, str], version: str) -> str:
        return objects.write_config_map(self._transport, namespace, name, data, version, _WRITE_SECONDS)

    def list_pods(self) -> list[PodRecord]:
        return [to_record(pod) for pod in objects.list_unfinished_pods(self._transport)]

    def list_finished(self, since: float) -> list[PodRecord]:
        records = (to_record(pod) for pod in objects.list_finished_pods(self._transport))
        return [r for r in records if r.matters and r.run and (r.run.ended_at or 0.0) >= since]

    def touch(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        answer = self._requeue(namespace, name, uid)
        if answer.status not in _NOT_THIS_POD:
            return to_record(objects.decode(answer, Pod))
        pod = self.read_pod(namespace, name)
        if pod is not None and pod.uid == uid:
            raise answer.refusal()
        return None

    def requeue(self, namespace: str, name: str, uid: PodUid) -> None:
        answer = self._requeue(namespace, name, uid)
        if answer.status not in _NOT_THIS_POD:
            answer.content()

    def _requeue(self, namespace: str, name: str, uid: PodUid) -> ApiResponse:
        # The UID is a precondition: if another pod has this name, the API server answers 409 or 422.
        # Never the same twice, whatever the clock does: a Binding may name a newer version only if this is unchanged.
        mark = f"{datetime.now(UTC).isoformat()} {secrets.token_hex(4)}"
        patch = {"metadata": {"uid": uid, "annotations": {REQUEUE: mark}}}
        return self._transport.request(
            _PATCH,
            "PATCH",
            # The status subresource, because a role that may patch pods could change what they run.
            f"{objects.object_path(namespace, 'pods', name)}/status",
            body=patch,
            content_type=MERGE_PATCH,
            timeout_seconds=_REQUEUE_SECONDS,
        )

    def post_event(self, event: PodEvent) -> None:
        self._poster.post(event)


def _in_words(watch: WatchStats) -> str:
    if watch.connected:
        silent = f", silent for {watch.stale_seconds:.0f} s" if watch.stale_seconds > _SILENT_SECONDS else ""
        return f"watching {watch.resource}{silent}"
    state = "watch interrupted" if watch.synced else "not listed yet"
    error = f" ({watch.last_error})" if watch.last_error else ""
    return f"{watch.resource}: {state} for {watch.stale_seconds:.1f} s{error}"
