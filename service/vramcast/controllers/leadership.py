"""Which replica decides: the one whose kube-scheduler holds the Lease.

Two kube-schedulers elect a leader by a Lease; each has a vramcast beside it, and only the leader's may promise. What
the other one does late must have no effect. Three things see to that, each for what the one before cannot catch:

1. *No longer than the Lease.* A promise is made only while the Lease was seen renewed less than two thirds of its
   duration ago, by the monotonic clock, counted from the last look that did *not* show that renewal. The next leader
   waits the whole duration, so a process that was stopped and goes on again finds its time over.
2. *The takeover touches every pending pod* (takeover.py) before the new leader's first decision.
3. *A Binding carries the resourceVersion that the pod had when it was filtered.* One that was under way when its
   process was stopped, or that lies in a buffer somewhere, names a version from before the takeover's touch, and the
   API server refuses it for good. No clock is involved in this one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import structlog

from vramcast.cluster.objects import Lease
from vramcast.errors import NotLeading, WorldUnavailable
from vramcast.names import PodUid
from vramcast.task.pod import PodRecord

POLL_SECONDS = 1.0
# kube-scheduler gives up the lead by itself after this part of the Lease (renewDeadline 10 s of leaseDuration 15 s).
_SURE_FRACTION = 2 / 3
# Goes on while the machine sleeps, where there is such a clock.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
# The scheduler's first question may come before our look at its new Lease; well under the httpTimeout.
PATIENCE_SECONDS = 1.0

log = structlog.get_logger("vramcast")


@runtime_checkable
class LeaderElectionApi(Protocol):
    """What following a leader needs of the cluster. The calls block and raise WorldUnavailable."""

    def read_lease(self, namespace: str, name: str) -> Lease | None: ...

    def list_pods(self) -> list[PodRecord]:
        """Every unfinished pod, at least as new as the call."""
        ...

    def touch(self, namespace: str, name: str, uid: PodUid) -> PodRecord | None:
        """Give a pod another resourceVersion; the pod as it is then, or None if it is gone."""
        ...


class Leadership(Protocol):
    """`fenced`: whether Bindings must carry a resourceVersion."""

    fenced: bool

    @property
    def leading(self) -> bool: ...

    async def await_lead(self) -> None:
        """For a scheduler that asks: it leads, or it would not. Raises NotLeading if that does not show soon."""
        ...

    def check(self) -> None:
        """Raises NotLeading. Whatever a decision rests on must have been read before."""
        ...


class NoElection:
    """One replica: it leads."""

    fenced = False
    leading = True

    async def await_lead(self) -> None: ...

    def check(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Term:
    """One time active. A kube-scheduler that restarts holds the Lease under a new name."""

    holder: str
    transitions: int


class LeaseFollower:
    """Leads while the kube-scheduler of this host does. Lives on the event loop; `follow` is its task."""

    fenced = True

    def __init__(
        self,
        poll: Callable[[], Awaitable[Lease | None]],
        identity: str,
        take_over: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = lambda: time.clock_gettime(_CLOCK),
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._poll = poll
        self._prefix = identity + "_"
        self._take_over = take_over
        self._clock = clock
        self._patience_seconds = patience_seconds
        self._term: Term | None = None
        self._seen: Lease | None = None
        self._polled_at: float | None = None
        self._sure_until = 0.0
        self._woken = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def leading(self) -> bool:
        return self._term is not None and self._clock() < self._sure_until

    def check(self) -> None:
        if self.leading:
            return
        holder = self._seen.holder if self._seen else ""
        if self._term is None and holder.startswith(self._prefix):
            raise NotLeading("vramcast has not taken over yet: its kube-scheduler has only just become the leader")
        raise NotLeading(
            f"vramcast stands by: the Lease of its kube-scheduler is not held by this host ({self._prefix}...) but by "
            f"{holder or 'nobody'}, or was not seen renewed in time"
        )

    async def await_lead(self) -> None:
        if self.leading:
            return
        self._settled.clear()
        self._woken.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_seconds):
                await self._settled.wait()
        self.check()

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.observe()
            except WorldUnavailable as error:
                log.warning("cannot follow the leader", error=str(error))
            except Exception:
                log.exception("following the leader failed, trying again")
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._woken.wait()

    async def observe(self) -> None:
        """One look at the Lease, and what follows from it."""
        asked_at = self._clock()
        lease = await self._poll()
        before, polled_at = self._seen, self._polled_at
        self._seen, self._polled_at = lease, asked_at
        if lease is None or not lease.holder.startswith(self._prefix):
            self._stand_by(lease)
            return
        if before != lease and polled_at is not None:
            # Renewed after the look before, whenever that was.
            self._sure_until = polled_at + lease.duration_seconds * _SURE_FRACTION
        term = Term(lease.holder, lease.transitions)
        if term != self._term and self._clock() < self._sure_until:
            self._term = None
            await self._take_over()
            self._term = term
            log.info("leading", holder=lease.holder, transitions=lease.transitions)
        if self.leading:
            self._settled.set()

    def _stand_by(self, lease: Lease | None) -> None:
        if self._term is not None:
            log.info("standing by", leader=lease.holder if lease else "")
        self._term = None


def lease_reader(
    election_api: LeaderElectionApi, lease: str, offload: Callable[..., Awaitable[Any]]
) -> Callable[[], Awaitable[Lease | None]]:
    namespace, _, name = lease.partition("/")

    async def poll() -> Lease | None:
        found: Lease | None = await offload(election_api.read_lease, namespace, name)
        return found

    return poll
