"""The first thing that a new leader does: know what its predecessor did, and make sure that it does nothing more.

Every pod is listed afresh, because the watch may be behind. Then every pending pod that could be promised a GPU is
touched, which gives it a new resourceVersion: a Binding of the predecessor that is still on its way names an older
one and will be refused. One that came through just before the touch shows in the touch's own answer. After that each
pod is either bound, and counted, or out of the predecessor's reach.
"""

from __future__ import annotations

import asyncio

import structlog

from vramcast.controllers.leadership import LeaderElectionApi
from vramcast.placement.changes import PodSeen
from vramcast.service import Service
from vramcast.task.pod import PodRecord

log = structlog.get_logger("vramcast")


async def take_over(service: Service, election_api: LeaderElectionApi) -> None:
    """Raises WorldUnavailable: then it was not done, and must be done again."""
    started = service.clock()
    service.check_synced()
    pods: list[PodRecord] = [pod for pod in await service.offload(election_api.list_pods) if pod.matters]
    service.apply([PodSeen(pod) for pod in pods])
    # Of an earlier time active: the scheduler that was told of them has forgotten it.
    for uid in list(service.state.ledger.holds):
        service.state.ledger.release_hold(uid)
    pending = [pod for pod in pods if pod.node is None]
    touched = await asyncio.gather(*(_touch(service, election_api, pod) for pod in pending))
    service.apply([PodSeen(pod) for pod in touched if pod is not None])
    service.metrics.takeovers.inc()
    seconds = round(service.clock() - started, 3)
    log.info("took over", pods=len(pods), touched=len(pending), seconds=seconds)


async def _touch(service: Service, election_api: LeaderElectionApi, pod: PodRecord) -> PodRecord | None:
    touched: PodRecord | None = await service.offload(election_api.touch, pod.namespace, pod.name, pod.uid)
    return touched
