"""POST /preempt: of the evictions that the scheduler proposes, keep those after which the pod would fit.

The scheduler's dry run knows its own filters and no GPU memory. It may propose too few evictions, or none at all: then
the lowest sufficient pods are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np

from vramcast.api import wire
from vramcast.api.wire import Reply
from vramcast.errors import InvalidTask
from vramcast.names import NodeName, PodUid
from vramcast.placement import fit
from vramcast.placement.fit import Decision
from vramcast.placement.pool_table import Bools
from vramcast.placement.promises import Demand, Promise, State
from vramcast.service import Service
from vramcast.task.pod import PodRecord, to_record

# With 8 pods on each node this takes about 7 ms.
_MOST_SEARCHED = 500


async def preempt_pods(service: Service, body: bytes) -> Reply:
    args = wire.decode_preemption(body)
    pod = to_record(args.pod)
    proposed = _meta_victims(args)
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask:
        demand = None
    answer = proposed
    if demand is not None and demand.needs_mib and not service.observes:
        found = {node: _sufficient(service, pod, demand, NodeName(node), given) for node, given in proposed.items()}
        answer = {node: victims for node, victims in found.items() if victims is not None}
    return Reply(wire.preemption_result(answer), pod.key, decision=f"{len(answer)} nodes would fit after evictions")


def _sufficient(
    service: Service, pod: PodRecord, demand: Demand, node: NodeName, proposed: wire.MetaVictims
) -> wire.MetaVictims | None:
    """The proposed victims and as few others as possible, lowest priority first. None: evicting does not help."""
    ledger = service.state.ledger
    uids = [PodUid(victim.uid) for victim in proposed.pods or ()]
    if ledger.fits_after(demand, node, set(uids)):
        return proposed
    lower = [p.uid for p in _lower(service, pod, ledger.promises_on(node)) if p.uid not in uids]
    lower.sort(key=lambda uid: -_priority(service, uid))
    if not lower or not ledger.fits_after(demand, node, {*uids, *lower}):
        return None
    # As the scheduler does it: the most important pod is the first to be spared.
    evicted = list(lower)
    for uid in lower:
        without = [other for other in evicted if other != uid]
        if ledger.fits_after(demand, node, {*uids, *without}):
            evicted = without
    # The scheduler expects the most important victim first.
    victims = sorted([*uids, *evicted], key=lambda uid: -_priority(service, uid))
    return wire.MetaVictims([wire.MetaPod(uid) for uid in victims], proposed.num_pdb_violations)


def nodes_to_evict_from(service: Service, pod: PodRecord, decision: Decision) -> Bools | None:
    """Which of the rejected nodes would fit the pod if all pods of lower priority were evicted; None if none.

    In a large cluster a part of the nodes is searched, and another part after the next change. The scheduler itself
    considers a hundred candidates, or a tenth of the nodes.
    """
    state, ledger = service.state, service.state.ledger
    if pod.scheduling.priority <= state.lowest_priority or not ledger.nodes:
        return None
    names = list(ledger.nodes)
    start = state.revision * _MOST_SEARCHED % len(names)
    searched = (names[start:] + names[:start])[:_MOST_SEARCHED]
    lower = _lower(service, pod, chain.from_iterable(map(ledger.promises_on, searched)))
    helped = fit.fits_without(ledger.board, decision, lower)
    return helped if np.any(helped) else None


def _lower(service: Service, pod: PodRecord, promises: Iterable[Promise]) -> Iterable[Promise]:
    """The promises of bound pods that this pod may evict."""
    for promise in promises:
        if promise.state is State.BOUND and _priority(service, promise.uid) < pod.scheduling.priority:
            yield promise


def _priority(service: Service, uid: PodUid) -> int:
    pod = service.state.pods.get(uid)
    return pod.scheduling.priority if pod is not None else 0


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
