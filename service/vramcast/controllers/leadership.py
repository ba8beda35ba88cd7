"""Which replica decides: the one whose kube-scheduler holds the Lease.

Each kube-scheduler has a vramcast next to it, and only the leader's vramcast may promise. Whatever the other one does
late must have no effect. Three rules see to that, each for what the one before cannot catch:

1. *No longer than the Lease.* Promise only while the Lease was renewed less than two thirds of its duration ago. That
   is measured on the monotonic clock from the last poll that did *not* show the renewal. The next leader waits the full
   duration, so a paused process that resumes finds its time expired.
2. *A takeover patches every pending pod* (takeover.py) before the new leader's first decision.
3. *A Binding names the resourceVersion that the pod had at filter.* A Binding that was delayed anywhere names a version
   from before the takeover's patch, and the API server refuses it. No clock is involved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import structlog

from vramcast.cluster.objects import Lease
from vramcast.errors import NotLeading, WorldUnavailable
from vramcast.names import PodUid
from vramcast.task.pod import PodRecord
from vramcast.workers import Offload

POLL_SECONDS = 1.0
# While the Lease is ours but no renewal was seen yet, pods wait for us.
EAGER_POLL_SECONDS = 0.2
# kube-scheduler itself gives up after this part of the Lease (renewDeadline 10 s of leaseDuration 15 s).
_SAFE_FRACTION = 2 / 3
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# A new leader's first request may arrive before our poll of its Lease. Well below the scheduler's httpTimeout.
PATIENCE_SECONDS = 1.0

log = structlog.get_logger("vramcast")
TakeOver = Callable[[], Awaitable[None]]


def boot_seconds() -> float:
    """Monotonic. Counts on while the machine is suspended, where the platform has such a clock."""
    return time.clock_gettime(_CLOCK)


@runtime_checkable
class LeaderElectionApi(Protocol):
    """The calls of the cluster that leader election needs. They block and raise WorldUnavailable."""

    def read_lease(self, namespace: str, name: str) -> Lease | None: ...

    def list_pods(self) -> list[PodRecord]:
        """Every unfinished pod, no older than the call."""
        ...

    def touch(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """Give a pod a new resourceVersion. Returns the patched pod, or None if it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Term:
    """One period of leadership. A kube-scheduler that restarts holds the Lease under a new name."""

    holder: str
    transitions: int


class LeaseFollower:
    """Leads while the kube-scheduler on this host does. Lives on the event loop; `follow` is its task."""

    fenced = True

    def __init__(
        self,
        read_lease: Callable[[], Awaitable[Lease | None]],
        identity: str,
        clock: Callable[[], float],
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._read_lease = read_lease
        self._prefix = identity + "_"
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._term: Term | None = None
        self._lease: Lease | None = None
        self._polled_at: float | None = None
        self._safe_until = 0.0
        self._poll_now = asyncio.Event()
        self._led = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self._term is not None and self._clock() < self._safe_until

    def check(self) -> None:
        if self.leading:
            return
        holder = self._lease.holder if self._lease else ""
        if self._term is None and holder.startswith(self._prefix):
            raise NotLeading("vramcast has not taken over yet: its kube-scheduler has only just become the leader")
        raise NotLeading(
            f"vramcast is on standby: its kube-scheduler's Lease is held by {holder or 'nobody'}, not by this host "
            f"({self._prefix}...), or was not renewed in time"
        )

    @property
    def poll_seconds(self) -> float:
        """How long to wait before the next poll."""
        holds = self._lease is not None and self._lease.holder.startswith(self._prefix)
        return EAGER_POLL_SECONDS if holds and not self.leading else POLL_SECONDS

    async def await_lead(self) -> None:
        if self.leading:
            return
        self._led.clear()
        self._poll_now.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_seconds):
                await self._led.wait()
        self.check()

    async def follow(self, take_over: TakeOver) -> None:
        """Until cancelled. `take_over` runs before the first decision of every term."""
        while True:
            wait_seconds = POLL_SECONDS
            try:
                await self.poll(take_over)
                wait_seconds = self.poll_seconds
            except WorldUnavailable as error:
                log.warning("cannot read the Lease, retrying", error=str(error))
            except Exception:
                log.exception("defect: cannot follow the Lease, retrying")
            self._poll_now.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._poll_now.wait()

    async def poll(self, take_over: TakeOver) -> None:
        asked_at = self._clock()
        lease = await self._read_lease()
        before, polled_at = self._lease, self._polled_at
        self._lease, self._polled_at = lease, asked_at
        if lease is None or not lease.holder.startswith(self._prefix):
            self._stand_by(lease)
            return
        if before != lease and polled_at is not None:
            # Renewed at some time after the previous poll.
            self._safe_until = polled_at + lease.duration_seconds * _SAFE_FRACTION
        term = Term(lease.holder, lease.transitions)
        if term != self._term and self._clock() < self._safe_until:
            self._term = None
            await take_over()
            self._term = term
            log.info("leading", holder=lease.holder, transitions=lease.transitions)
        if self.leading:
            self._led.set()

    def _stand_by(self, lease: Lease | None) -> None:
        if self._term is not None:
            log.info("standing by", leader=lease.holder if lease else "")
        self._term = None


def lease_reader(
    election_api: LeaderElectionApi, lease: str, offload: Offload
) -> Callable[[], Awaitable[Lease | None]]:
    namespace, _, name = lease.partition("/")

    async def read_lease() -> Lease | None:
        found: Lease | None = await offload(election_api.read_lease, namespace, name)
        return found

    return read_lease
