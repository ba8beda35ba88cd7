"""POST /preempt: of the evictions that the scheduler proposes, keep those after which the pod would fit."""

from __future__ import annotations

from collections.abc import Iterable

from vramcast.api import wire
from vramcast.api.wire import Reply
from vramcast.errors import InvalidTask
from vramcast.names import NodeName, PodUid
from vramcast.service import Service
from vramcast.task.pod import to_record


async def preempt_pods(service: Service, body: bytes) -> Reply:
    args = wire.decode_preemption(body)
    pod = to_record(args.pod)
    victims = _meta_victims(args)
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask:
        demand = None
    if demand is not None and demand.needs_mib and not service.observes:
        ledger = service.state.ledger
        victims = {
            node: given
            for node, given in victims.items()
            if ledger.fits_after(demand, NodeName(node), _uids(given.pods or ()))
        }
    return Reply(wire.preemption_result(victims), pod.key, decision=f"{len(victims)} nodes would fit after evictions")


def _meta_victims(args: wire.PreemptionArgs) -> dict[str, wire.MetaVictims]:
    """The request has two forms; the answer has one."""
    if args.node_name_to_meta_victims is not None:
        return {
            node: wire.MetaVictims(given.pods or [], given.num_pdb_violations)
            for node, given in args.node_name_to_meta_victims.items()
        }
    return {
        node: wire.MetaVictims(
            [wire.MetaPod(pod.metadata.uid) for pod in given.pods or [] if pod.metadata and pod.metadata.uid],
            given.num_pdb_violations,
        )
        for node, given in (args.node_name_to_victims or {}).items()
    }


def _uids(pods: Iterable[wire.MetaPod]) -> set[PodUid]:
    return {PodUid(pod.uid) for pod in pods}
