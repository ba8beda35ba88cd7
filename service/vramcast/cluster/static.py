"""A cluster in memory that starts from a file: for `--cluster`, the demo and tests.

It does what the API server does as far as decisions can tell: pods are created, bound once and finished, and every
change is reported in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from vramcast.cluster.readers import to_node
from vramcast.cluster.seam import BindingWrite, BindResult, Fate, PodEvent, Sink, Stats, SyncHealth
from vramcast.cluster.static_file import ClusterFile, read_cluster_file
from vramcast.errors import InvalidRequest
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import Change, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed, UnmanagedSeen
from vramcast.placement.gpus import NodeGpus
from vramcast.task.pod import NO_METADATA, Pod, PodRecord, PodSpec, to_record
from vramcast.task.run_status import PodStatus

_MOST_EVENTS = 200


class StaticCluster:
    """One lock covers each change and its report, so that reports keep the order of the changes."""

    def __init__(self, content: ClusterFile) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[NodeName, NodeGpus] = {NodeName(name): to_node(node) for name, node in content.nodes.items()}
        self._unmanaged_mib = content.unmanaged_mib
        self._pods: dict[str, Pod] = {}
        self._sink: Sink | None = None
        self._events: deque[PodEvent] = deque(maxlen=_MOST_EVENTS)
        self._reported = 0
        self._version = 0
        self.stopped = threading.Event()
        for pod in content.pods:
            complete = self._complete(pod)
            self._pods[to_record(complete).key] = complete

    @classmethod
    def from_file(cls, path: Path) -> StaticCluster:
        """Raises InvalidClusterFile."""
        return cls(read_cluster_file(path))

    # --- Cluster

    def start(self, sink: Sink) -> None:
        with self._lock:
            self._sink = sink
            records = [to_record(pod) for pod in self._pods.values()]
            self._report([
                *(NodeSeen(node) for node in self._nodes.values()),
                NodesListed(frozenset(self._nodes)),
                *(UnmanagedSeen(NodeName(name), used) for name, used in self._unmanaged_mib.items()),
                *(PodSeen(record) for record in records),
                PodsListed(frozenset(record.uid for record in records), time.monotonic()),
            ])  # fmt: skip

    def stop(self) -> None:
        with self._lock:
            self._sink = None
        self.stopped.set()

    def health(self) -> SyncHealth:
        return SyncHealth(synced=self._sink is not None, stale_seconds=0.0, detail="static cluster")

    def stats(self) -> Stats:
        return Stats(events=self._reported, lists=2 if self._reported else 0)

    def bind(self, write: BindingWrite) -> BindResult:
        with self._lock:
            pod = self._pods.get(f"{write.namespace}/{write.pod}")
            refusal = self._refusal(pod, write)
            if refusal or pod is None:
                return BindResult(Fate.REFUSED, refusal)
            if pod.spec is None or pod.spec.node_name is None:
                self._put(_bound(pod, write.node, write.annotations))
            return BindResult(Fate.BOUND)

    def read_pod(self, namespace: str, name: str) -> PodRecord | None:
        with self._lock:
            pod = self._pods.get(f"{namespace}/{name}")
        return to_record(pod) if pod else None

    def requeue(self, namespace: str, name: str, uid: PodUid) -> None:
        """Nothing to do: no scheduler queue watches a static cluster."""

    def post_event(self, event: PodEvent) -> None:
        self._events.append(event)

    # --- changes by the demo and by tests

    @property
    def events(self) -> Sequence[PodEvent]:
        """The latest ones, oldest first."""
        return tuple(self._events)

    def create_pod(self, manifest: Mapping[str, Any]) -> PodRecord:
        """Raises InvalidRequest if the manifest is not a pod, or the pod exists."""
        try:
            pod = self._complete(msgspec.convert(manifest, Pod))
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"the manifest is not a Pod: {error}") from None
        record = to_record(pod)
        with self._lock:
            if not record.name:
                raise InvalidRequest("metadata.name: expected a name")
            if record.key in self._pods:
                raise InvalidRequest(f"pod {record.key} exists already")
            self._put(pod)
        return record

    def finish_pod(self, namespace: str, name: str) -> bool:
        """Marks the pod as succeeded, which frees its GPUs. False if there is no such pod."""
        return self.set_status(namespace, name, PodStatus(phase="Succeeded"))

    def set_status(self, namespace: str, name: str, status: PodStatus) -> bool:
        """What a kubelet reports. False if there is no such pod."""
        with self._lock:
            pod = self._pods.get(f"{namespace}/{name}")
            if pod is not None:
                self._put(msgspec.structs.replace(pod, status=status))
            return pod is not None

    def delete_pod(self, namespace: str, name: str) -> bool:
        """False if there is no such pod."""
        with self._lock:
            pod = self._pods.pop(f"{namespace}/{name}", None)
            if pod is not None:
                self._report([PodGone(to_record(pod).uid)])
            return pod is not None

    def records(self) -> list[PodRecord]:
        """Every pod, finished ones too."""
        with self._lock:
            pods = list(self._pods.values())
        return [to_record(pod) for pod in pods]

    @property
    def nodes(self) -> Mapping[NodeName, NodeGpus]:
        return self._nodes

    @property
    def unmanaged_mib(self) -> Mapping[str, Sequence[int]]:
        """As the file has it, by node and GPU."""
        return self._unmanaged_mib

    # --- call these with the lock held

    def _refusal(self, pod: Pod | None, write: BindingWrite) -> str:
        """Why the API server would refuse this Binding; empty if it would not."""
        name = f"pod {write.namespace}/{write.pod}"
        record = to_record(pod) if pod else None
        if pod is None or record is None or record.uid != write.uid:
            return f"{name} with UID {write.uid} is not in this static cluster"
        if write.node not in self._nodes:
            return f"there is no node {write.node} in this static cluster"
        if record.finished:
            return f"{name} has finished"
        annotations = (pod.metadata or NO_METADATA).annotations or {}
        same = record.node == write.node and write.annotations.items() <= annotations.items()
        return f"{name} is already on node {record.node}" if record.node and not same else ""

    def _complete(self, pod: Pod) -> Pod:
        """Adds the fields that the API server adds to a manifest."""
        metadata = pod.metadata or NO_METADATA
        self._version += 1
        uid = metadata.uid or f"static-{self._version}"
        namespace = metadata.namespace or "default"
        return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(metadata, uid=uid, namespace=namespace))

    def _put(self, pod: Pod) -> None:
        self._version += 1
        metadata = msgspec.structs.replace(pod.metadata or NO_METADATA, resource_version=str(self._version))
        stored = msgspec.structs.replace(pod, metadata=metadata)
        record = to_record(stored)
        self._pods[record.key] = stored
        self._report([PodSeen(record)])

    def _report(self, changes: Sequence[Change]) -> None:
        if self._sink is not None:
            self._reported += len(changes)
            self._sink(changes)


def _bound(pod: Pod, node: NodeName, annotations: Mapping[str, str]) -> Pod:
    """Like the API server, merges the Binding's annotations onto the pod."""
    metadata = pod.metadata or NO_METADATA
    merged = {**(metadata.annotations or {}), **annotations}
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(metadata, annotations=merged),
        spec=msgspec.structs.replace(pod.spec or PodSpec(), node_name=node),
    )
