"""What the stored history shows: GPUs over, binds, and pods that wait although they have room.

Nothing here asks vramcast. The rules are those of tests/controlplane/history.py, applied to each write as it comes, and
only the current state is kept. What a Binding wrote counts until the pod is gone, whatever is edited later.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tests.controlplane import Cluster, Event, NodeState, PodState, Violation
from tests.controlplane.history import Change

from .etcd import Write

# The driver's reserve on the nodes' product (hardware/products.py), repeated so that the check uses none of its code.
RESERVE_BYTES = 450 << 20


@dataclass(frozen=True, slots=True)
class Stuck:
    pod: str
    nodes: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.pod} had room on {self.nodes} nodes for {self.seconds:.0f} s and was not bound"


@dataclass(slots=True)
class _Tracked:
    pod: PodState
    seen_at: float
    bound: bool = False
    promised_bytes: int = 0


@dataclass(slots=True)
class Audit:
    """`write` is called by the watch's thread, everything else from any."""

    nodes: Iterable[NodeState]
    longest_wait_seconds: float
    clock: Callable[[], float] = time.monotonic
    violations: list[Violation] = field(default_factory=list)
    stuck: dict[str, Stuck] = field(default_factory=dict)
    wait_seconds: list[float] = field(default_factory=list)  # from the first version of a pod to its Binding
    bind_times: list[float] = field(default_factory=list)
    revision: int = 0
    _cluster: Cluster = field(default_factory=Cluster)
    _tracked: dict[str, _Tracked] = field(default_factory=dict)  # by key
    _needs: dict[str, int] = field(default_factory=dict)  # of forecast tasks, by description
    _roomy_since: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._cluster.nodes = {node.name: node for node in self.nodes}

    # --- the history

    def write(self, write: Write) -> None:
        with self._lock:
            self.revision = write.revision
            if write.pod is None:
                self._remove(write)
            else:
                self._put(write, write.pod)

    def _remove(self, write: Write) -> None:
        tracked = self._tracked.pop(write.key, None)
        if tracked is not None:
            self._cluster.apply(Event(write.revision, Change.DELETED, tracked.pod))

    def _put(self, write: Write, pod: PodState) -> None:
        now = self.clock()
        tracked = self._tracked.get(write.key)
        if tracked is None:
            tracked = self._tracked[write.key] = _Tracked(pod, now)
        if tracked.bound:
            pod = replace(pod, annotations=tracked.pod.annotations)
        elif pod.node is not None:
            tracked.bound = True
            tracked.promised_bytes = _reserved_bytes(pod) * pod.wanted_gpus
            self.bind_times.append(now)
            self.wait_seconds.append(now - tracked.seen_at)
            self._learn_need(pod)
        tracked.pod = pod
        self.violations += self._cluster.apply(Event(write.revision, Change.MODIFIED, pod))

    def _learn_need(self, pod: PodState) -> None:
        if pod.asked_bytes is None:
            self._needs[_description(pod)] = _reserved_bytes(pod)

    # --- questions

    def first_bind_after(self, moment: float) -> float | None:
        place = bisect.bisect_right(self.bind_times, moment)
        return self.bind_times[place] if place < len(self.bind_times) else None

    @property
    def binds(self) -> int:
        return len(self.bind_times)

    def pods(self) -> tuple[list[PodState], list[PodState]]:
        """Those without a node and those with one, oldest first."""
        with self._lock:
            all_pods = [tracked.pod for tracked in self._tracked.values()]
        return [pod for pod in all_pods if pod.node is None], [pod for pod in all_pods if pod.node is not None]

    def promised_bytes(self) -> int:
        with self._lock:
            return sum(one.promised_bytes for one in self._tracked.values() if one.pod.holds_memory)

    @property
    def capacity_bytes(self) -> int:
        return sum(node.gpu_bytes * node.gpu_count for node in self._cluster.nodes.values())

    def waiting_with_room(self) -> dict[str, list[str]]:
        """Pending pods and the nodes that have room for them now."""
        with self._lock:
            return self._cluster.pending_that_fit(self._need_bytes)

    def check_waiting(self) -> None:
        """To be called about once a second: notes since when each pending pod has had room without a break."""
        now = self.clock()
        waiting = self.waiting_with_room()
        self._roomy_since = {pod: self._roomy_since.get(pod, now) for pod in waiting}
        for pod, since in self._roomy_since.items():
            if now - since > self.longest_wait_seconds:
                self.stuck[pod] = Stuck(pod, len(waiting[pod]), now - since)

    def longest_roomy_seconds(self) -> float:
        now = self.clock()
        return max((now - since for since in self._roomy_since.values()), default=0.0)

    def _need_bytes(self, pod: PodState) -> int | None:
        need = pod.asked_bytes if pod.asked_bytes is not None else self._needs.get(_description(pod))
        return None if need is None else need + RESERVE_BYTES


def _reserved_bytes(pod: PodState) -> int:
    """0 if the annotation is missing or invalid, which is a violation by itself."""
    return replace(pod, annotations={"gpu-memory": pod.annotations.get("reserved-memory", "")}).asked_bytes or 0


def _description(pod: PodState) -> str:
    return "/".join(pod.annotations.get(key, "") for key in ("model", "batch-size"))


def by_batch(pods: Iterable[PodState]) -> dict[str, list[PodState]]:
    """The part of the name before the last dash."""
    batches: dict[str, list[PodState]] = defaultdict(list)
    for pod in pods:
        batches[pod.name.rpartition("-")[0]].append(pod)
    return batches
