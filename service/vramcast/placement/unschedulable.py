"""Pods that fit nowhere, remembered so that they are not forgotten.

kube-scheduler looks at such a pod again only when something happens in the cluster. When it does, and vramcast has
seen nothing new since, the news is still on its way here: worth a moment of waiting. And when room appears for a
reason that the scheduler is not told of (a hold that expired, a watch that was late), the pod is requeued.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace

from vramcast.names import PodUid
from vramcast.task.pod import PodRecord

_FIRST_REQUEUE_AFTER_SECONDS = 1.5
_LONGEST_PAUSE_SECONDS = 120.0
# Far more than a scheduler can hold in its queue at once with good sense.
_MOST = 50_000


@dataclass(frozen=True, slots=True)
class UnschedulablePod:
    pod: PodRecord
    revision: int  # of the cluster state that it was turned away by
    added_at: float
    requeue_at: float
    pause_seconds: float


class UnschedulablePods:
    def __init__(self) -> None:
        self._pods: dict[PodUid, UnschedulablePod] = {}

    def __len__(self) -> int:
        return len(self._pods)

    def names(self, most: int) -> list[str]:
        return [entry.pod.key for entry, _ in zip(self._pods.values(), range(most), strict=False)]

    def add(self, pod: PodRecord, revision: int, now: float) -> None:
        before = self._pods.pop(pod.uid, None)
        pause = before.pause_seconds if before else _FIRST_REQUEUE_AFTER_SECONDS
        if len(self._pods) >= _MOST:
            del self._pods[next(iter(self._pods))]
        self._pods[pod.uid] = UnschedulablePod(pod, revision, now, now + pause, pause)

    def discard(self, uid: PodUid) -> None:
        self._pods.pop(uid, None)

    def forget_absent(self, present: Set[PodUid], listed_at: float) -> None:
        """After a fresh list: pods that are not in it are gone, unless they came after the list began."""
        gone = [uid for uid, entry in self._pods.items() if uid not in present and entry.added_at < listed_at]
        for uid in gone:
            del self._pods[uid]

    def knows_no_news(self, uid: PodUid, revision: int) -> bool:
        """Was this pod turned away by the very state that stands now?"""
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
        """Look again later; ever later, if it was requeued and still is here: then it is not room that it lacks."""
        entry = self._pods.pop(uid, None)
        if entry is not None:
            pause = min(entry.pause_seconds * 2, _LONGEST_PAUSE_SECONDS) if requeued else entry.pause_seconds
            self._pods[uid] = replace(entry, requeue_at=now + pause, pause_seconds=pause)
