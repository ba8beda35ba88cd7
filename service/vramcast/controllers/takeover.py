"""What a new leader does first: learn what its predecessor did, and make sure that it can do nothing more.

It lists every pod from the API server, because the watch may lag. Then it patches every pending pod that could get a
GPU, which gives the pod a new resourceVersion. A Binding of the predecessor that is still under way names an older
version and is refused. A Binding that arrived just before shows in the answer to the patch. After that, every pod is
either bound and counted, or out of the predecessor's reach.
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
    """Raises WorldUnavailable if it could not finish. Then it has to be repeated."""
    started = service.clock()
    service.check_synced()
    pods: list[PodRecord] = [pod for pod in await service.workers.maintenance(election_api.list_pods) if pod.matters]
    service.apply([PodSeen(pod, read_at=started) for pod in pods])
    # Holds of an earlier term: the scheduler no longer remembers what it was offered.
    for uid in list(service.state.ledger.holds):
        service.state.ledger.release_hold(uid)
    pending = [pod for pod in pods if pod.node is None]
    touching = service.clock()
    touched = await asyncio.gather(*(_touch(service, election_api, pod) for pod in pending))
    service.apply([PodSeen(pod, read_at=touching) for pod in touched if pod is not None])
    for pod in touched:
        if pod is not None and pod.node is None:
            # Our own Bindings of an earlier term are too late as well. The leader in between may have given their room
            # to others, so those promises must neither count nor be repeated.
            service.state.ledger.withdraw_all(pod.uid)
    service.metrics.takeovers.inc()
    seconds = round(service.clock() - started, 3)
    log.info("took over", pods=len(pods), touched=len(pending), seconds=seconds)


async def _touch(service: Service, election_api: LeaderElectionApi, pod: PodRecord) -> PodRecord | None:
    touched: PodRecord | None = await service.workers.maintenance(election_api.touch, pod.namespace, pod.name, pod.uid)
    return touched
