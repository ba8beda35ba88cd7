"""Tells the owner of a pod that fits no GPU of the cluster why, and what would help, as one Event.

kube-scheduler's own Event counts nodes by reason, and a reason has no room for more. This one is made apart from
filter: every few seconds, for one pod, on the threads that work for people.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from vramcast.advice.report import why_and_what
from vramcast.advice.search import Room, advise
from vramcast.errors import InvalidTask
from vramcast.names import PodUid, Product, Resource
from vramcast.placement.gpus import NodeGpus
from vramcast.service import Service
from vramcast.task.pod import PodRecord

EVENT = "FitsNoGpu"
_TICK_SECONDS = 2.0
# A pod that is advised stays quiet: its owner has read it, or never will.
_MOST_REMEMBERED = 10_000
_MOST_LOOKED_AT = 50
_MOST_TRIED = 60

# How many GPUs the pod gets is settled: it has asked for them.
_FIXED = ("zero-stage", "data-parallel-size", "gpus")
# The largest GPU of each product, when empty.
Rooms = dict[Resource, dict[Product, int]]

log = structlog.get_logger("vramcast")


class Adviser:
    """Remembers which pods have their Event."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._advised: dict[PodUid, None] = {}

    async def forever(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            try:
                await self.advise_one()
            except Exception:
                self._service.metrics.defects.inc()
                log.exception("defect: advice for an unschedulable pod failed, retrying")

    async def advise_one(self) -> None:
        """The pod that has waited longest without advice. Each is judged once."""
        service = self._service
        if not service.leadership.leading or service.observes:
            return
        waiting = [pod for pod in service.state.unschedulable.pods(_MOST_REMEMBERED) if pod.uid not in self._advised]
        nodes = list(service.state.ledger.nodes.values())
        if not waiting or not nodes:
            return
        rooms = await service.workers.inspection(_rooms, nodes)
        for pod in waiting[:_MOST_LOOKED_AT]:
            self._remember(pod.uid)
            room = await self._too_small(pod, rooms)
            if room is not None and pod.task is not None:
                asked = (service.forecaster, pod.task, room, _FIXED, (), _MOST_TRIED)
                advice = await service.workers.inspection(advise, *asked)
                service.post_event(pod, EVENT, why_and_what(advice), warning=True)
                return

    async def _too_small(self, pod: PodRecord, rooms: Rooms) -> Room | None:
        """The largest GPU that it may use, if even that is too small for it when empty."""
        try:
            await self._service.make_forecasts(pod)
            demand = self._service.state.demand(pod)
        except InvalidTask:
            return None
        if demand is None or not demand.needs_mib or pod.claims:
            return None
        usable = [Room(product, mib) for product, mib in rooms.get(demand.ask.resource, {}).items()]
        if any(demand.needs_mib.get(room.product, demand.largest_need_mib) <= room.mib for room in usable):
            return None
        return max(usable, key=lambda room: room.mib, default=None)

    def _remember(self, uid: PodUid) -> None:
        if len(self._advised) >= _MOST_REMEMBERED:
            del self._advised[next(iter(self._advised))]
        self._advised[uid] = None


def _rooms(nodes: Sequence[NodeGpus]) -> Rooms:
    found: Rooms = {}
    for node in nodes:
        for pool in node.pools:
            if pool.memory_mib:
                sizes = found.setdefault(pool.resource, {})
                sizes[pool.product] = max(sizes.get(pool.product, 0), *pool.memory_mib)
    return found
