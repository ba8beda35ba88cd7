"""What must happen without being asked: holds expire, unanswered binds are settled, forgotten pods are requeued."""

from __future__ import annotations

import asyncio

import structlog

from vramcast.errors import InvalidTask, WorldUnavailable
from vramcast.placement.changes import PodGone, PodSeen
from vramcast.placement.promises import Promise, State
from vramcast.service import Service
from vramcast.task.pod import PodRecord

_TICK_SECONDS = 0.5
# One look costs a sweep over all GPUs; spread over ticks, a long queue does not stand in the scheduler's way.
_CHECKS_A_TICK = 20

log = structlog.get_logger("vramcast")


async def maintain(service: Service) -> None:
    """Until cancelled. A fault in one round is logged, and the next round tries again."""
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
            log.exception("maintenance failed, trying again")


def expire_holds(service: Service) -> None:
    expired = service.state.ledger.expire_holds(service.clock())
    if expired:
        service.metrics.hold_expirations.inc(len(expired))
        log.info("holds expired", pods=[hold.pod for hold in expired[:10]], count=len(expired))
        service.news.spread()


async def resolve_unconfirmed(service: Service) -> None:
    """A bind that got no answer counts until no write of it can come through any more; then the pod is asked."""
    long_ago = service.clock() - service.settings.unconfirmed_ttl_seconds
    unconfirmed = [p for p in service.state.ledger.promises() if p.state is State.UNCONFIRMED and p.made_at <= long_ago]
    for promise in unconfirmed:
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
        log.info("settled an unanswered bind", pod=promise.pod, node=promise.node)


async def _read_pod(service: Service, promise: Promise) -> PodRecord | None:
    namespace, _, name = promise.pod.partition("/")
    pod: PodRecord | None = await service.offload(service.cluster.read_pod, namespace, name)
    return pod


async def requeue_unschedulable(service: Service) -> None:
    """The scheduler waits for an event; where room came without one, the pod itself is touched."""
    if not service.leadership.leading:
        return
    for entry in service.unschedulable.due(service.clock(), _CHECKS_A_TICK):
        fits = _fits_now(service, entry.pod)
        service.unschedulable.postpone(entry.pod.uid, service.clock(), requeued=fits)
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
