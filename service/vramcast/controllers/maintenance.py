"""Twice a second: expire holds, resolve unconfirmed binds, and requeue pods that would fit now."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from vramcast.errors import InvalidTask, WorldUnavailable
from vramcast.placement.changes import PodGone, PodSeen
from vramcast.placement.promises import Promise
from vramcast.service import Service
from vramcast.task.pod import PodRecord

_TICK_SECONDS = 0.5
# Each check sweeps over all GPUs. A long queue is spread over ticks so that it does not delay the scheduler.
_CHECKS_A_TICK = 20

log = structlog.get_logger("vramcast")


async def maintain(service: Service) -> None:
    """Until cancelled. Separate loops, so that a slow API server does not stop holds from expiring."""
    async with asyncio.TaskGroup() as loops:
        loops.create_task(_every(_TICK_SECONDS, _expire_holds, service))
        loops.create_task(_every(_TICK_SECONDS, resolve_unconfirmed, service))
        if interval := service.settings.requeue_interval_seconds:
            loops.create_task(_every(max(interval, _TICK_SECONDS), requeue_unschedulable, service))


async def _every(seconds: float, work: Callable[[Service], Awaitable[None]], service: Service) -> None:
    """After an error, the next round tries again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work(service)
        except Exception:
            service.metrics.defects.inc()
            log.exception("defect: maintenance failed, retrying", work=work.__name__)


async def _expire_holds(service: Service) -> None:
    service.expire_holds()


async def resolve_unconfirmed(service: Service) -> None:
    """A bind without an answer counts until its write can no longer arrive. Then the pod shows what happened.

    Only the attempts that were old when the read began are withdrawn: the scheduler may bind the pod again meanwhile.
    """
    for promise in service.state.ledger.unconfirmed(service.clock() - service.settings.unconfirmed_ttl_seconds):
        started = service.clock()
        try:
            pod = await _read_pod(service, promise)
        except WorldUnavailable:
            return
        if pod is None or pod.uid != promise.uid:
            service.apply([PodGone(promise.uid)])
        elif pod.node is not None:
            service.apply([PodSeen(pod, read_at=started)])
        else:
            service.state.ledger.withdraw(promise)
            service.news.spread()
        log.info("resolved an unconfirmed bind", pod=promise.pod, node=promise.node)


async def _read_pod(service: Service, promise: Promise) -> PodRecord | None:
    namespace, _, name = promise.pod.partition("/")
    pod: PodRecord | None = await service.workers.maintenance(service.cluster.read_pod, namespace, name)
    return pod


async def requeue_unschedulable(service: Service) -> None:
    """The scheduler waits for an event. Where room appeared without one, a patch of the pod is the event."""
    if not service.leadership.leading:
        return
    unschedulable = service.state.unschedulable
    for entry in unschedulable.due(service.clock(), _CHECKS_A_TICK):
        fits = await _fits_now(service, entry.pod)
        unschedulable.postpone(entry.pod.uid, service.clock(), requeued=fits)
        if not fits:
            continue
        try:
            await service.workers.maintenance(
                service.cluster.requeue, entry.pod.namespace, entry.pod.name, entry.pod.uid
            )
        except WorldUnavailable as error:
            log.warning("could not requeue", pod=entry.pod.key, error=str(error))
            return
        service.metrics.requeues.inc()
        log.info("requeued: there is room now", pod=entry.pod.key)


async def _fits_now(service: Service, pod: PodRecord) -> bool:
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask:
        return False
    return demand is not None and bool(demand.needs_mib) and service.state.ledger.fits_somewhere(demand)
