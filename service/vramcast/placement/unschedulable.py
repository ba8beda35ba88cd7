"""Pods that fit nowhere now, and when to requeue them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from vramcast.names import PodUid
from vramcast.task.pod import PodRecord

# Far more than a scheduler's queue holds.
_MAX_UNSCHEDULABLE = 50_000
_FIRST_REQUEUE_SECONDS = 1.5
_LONGEST_PAUSE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class UnschedulablePod:
    pod: PodRecord
    revision: int  # of the state in which it did not fit
    added_at: float
    requeue_at: float
    pause_seconds: float


class UnschedulablePods:
    """Pods that fit nowhere, until they are placed or gone.

    kube-scheduler retries such a pod only after an event in the cluster. If it retries and vramcast has seen nothing
    new, the event is still on its way here, and filter waits a moment for it. If room appears without an event that
    the scheduler sees (an expired hold, late telemetry), maintenance requeues the pod.
    """

    def __init__(self) -> None:
        self._pods: dict[PodUid, UnschedulablePod] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def names(self, most: int) -> list[str]:
        return [entry.pod.key for entry, _ in zip(self._pods.values(), range(most), strict=False)]

    def pods(self, most: int) -> list[PodRecord]:
        return [entry.pod for entry, _ in zip(self._pods.values(), range(most), strict=False)]

    def add(self, pod: PodRecord, revision: int, now: float) -> None:
        before = self._pods.pop(pod.uid, None)
        pause = before.pause_seconds if before else _FIRST_REQUEUE_SECONDS
        if len(self._pods) >= _MAX_UNSCHEDULABLE:
            del self._pods[next(iter(self._pods))]
        self._pods[pod.uid] = UnschedulablePod(pod, revision, now, now + pause, pause)

    def discard(self, uid: PodUid) -> None:
        self._pods.pop(uid, None)

    def forget_absent(self, present: Set[PodUid], listed_at: float) -> None:
        """After a complete list: pods missing from it are gone, unless they came after the list began."""
        gone = [uid for uid, entry in self._pods.items() if uid not in present and entry.added_at < listed_at]
        for uid in gone:
            del self._pods[uid]

    def unchanged_since(self, uid: PodUid, revision: int) -> bool:
        """Did this pod fail to fit in exactly this state of the cluster?"""
        before = self._pods.get(uid)
        return before is not None and before.revision == revision

    def due(self, now: float, most: int) -> list[UnschedulablePod]:
        """Longest waiting first."""
        found = []
        for entry in self._pods.values():
            if entry.requeue_at <= now:
                found.append(entry)
                if len(found) == most:
                    break
        return found

    def postpone(self, uid: PodUid, now: float, *, requeued: bool) -> None:
        """Check again later. A pod that was requeued and is still here waits twice as long: it does not lack room."""
        entry = self._pods.pop(uid, None)
        if entry is not None:
            pause = min(entry.pause_seconds * 2, _LONGEST_PAUSE_SECONDS) if requeued else entry.pause_seconds
            self._pods[uid] = replace(entry, requeue_at=now + pause, pause_seconds=pause)
