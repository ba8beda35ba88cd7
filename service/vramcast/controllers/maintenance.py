"""Twice a second: expire holds, resolve unconfirmed binds, and requeue pods that would fit now."""

from __future__ import annotations

import asyncio

import structlog

from vramcast.errors import InvalidTask, WorldUnavailable
from vramcast.placement.changes import PodGone, PodSeen
from vramcast.placement.promises import Promise, State
from vramcast.service import Service
from vramcast.task.pod import PodRecord

_TICK_SECONDS = 0.5
# Each check sweeps over all GPUs. A long queue is spread over ticks so that it does not delay the scheduler.
_CHECKS_A_TICK = 20

log = structlog.get_logger("vramcast")


async def maintain(service: Service) -> None:
    """Until cancelled. After an error, the next tick tries again."""
    requeue_at = 0.0
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        try:
            expire_holds(service)
            await resolve_unconfirmed(service)
            if service.settings.requeue_interval_seconds and service.clock() >= requeue_at:
                requeue_at = service.clock() + service.settings.requeue_interval_seconds
                await requeue_unschedulable(service)
        except Exception:
            log.exception("defect: maintenance failed, retrying")


def expire_holds(service: Service) -> None:
    expired = service.state.ledger.expire_holds(service.clock())
    if expired:
        service.metrics.hold_expirations.inc(len(expired))
        log.info("holds expired", pods=[hold.pod for hold in expired[:10]], count=len(expired))
        service.news.spread()


async def resolve_unconfirmed(service: Service) -> None:
    """A bind without an answer counts until its write can no longer arrive. Then the pod shows what happened."""
    expired_at = service.clock() - service.settings.unconfirmed_ttl_seconds
    for promise in list(service.state.ledger.promises()):
        if promise.state is not State.UNCONFIRMED or promise.made_at > expired_at:
            continue
        try:
            pod = await _read_pod(service, promise)
        except WorldUnavailable:
            return
        if pod is None or pod.uid != promise.uid:
            service.apply([PodGone(promise.uid)])
        elif pod.node is not None:
            service.apply([PodSeen(pod)])
        else:
            service.state.ledger.withdraw(promise.uid, promise.node)
            service.news.spread()
        log.info("resolved an unconfirmed bind", pod=promise.pod, node=promise.node)


async def _read_pod(service: Service, promise: Promise) -> PodRecord | None:
    namespace, _, name = promise.pod.partition("/")
    pod: PodRecord | None = await service.offload(service.cluster.read_pod, namespace, name)
    return pod


async def requeue_unschedulable(service: Service) -> None:
    """The scheduler waits for an event. Where room appeared without one, a patch of the pod is the event."""
    if not service.leadership.leading:
        return
    unschedulable = service.state.unschedulable
    for entry in unschedulable.due(service.clock(), _CHECKS_A_TICK):
        fits = _fits_now(service, entry.pod)
        unschedulable.postpone(entry.pod.uid, service.clock(), requeued=fits)
        if not fits:
            continue
        try:
            await service.offload(service.cluster.requeue, entry.pod.namespace, entry.pod.name, entry.pod.uid)
        except WorldUnavailable as error:
            log.warning("could not requeue", pod=entry.pod.key, error=str(error))
            return
        service.metrics.requeues.inc()
        log.info("requeued: there is room now", pod=entry.pod.key)


def _fits_now(service: Service, pod: PodRecord) -> bool:
    try:
        demand = service.state.demand(pod)
    except InvalidTask:
        return False
    return demand is not None and bool(demand.needs_mib) and service.state.ledger.fits_somewhere(demand)
