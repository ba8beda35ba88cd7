"""POST /prioritize: of the nodes that fit, which one the pod should get."""

from __future__ import annotations

import numpy as np

from vramcast.api import wire
from vramcast.errors import InvalidTask
from vramcast.placement.promises import Demand
from vramcast.service import Reply, Service
from vramcast.task.pod import PodRecord


async def prioritize_nodes(service: Service, body: bytes) -> Reply:
    args = wire.decode_args(body)
    # What filter decided on; a scheduler that only asks for priorities sends the pod all the same.
    pod = service.read(args.pod)
    ledger = service.state.ledger
    asked = wire.ask_board(args, ledger.board)
    demand = None if service.observes else _demand(service, pod)
    if demand is None:
        nothing = np.zeros(len(asked.columns), dtype=np.int64)
        return Reply(wire.priorities(asked, nothing), pod.key, decision="no preference")
    scores = ledger.scores(demand, asked.columns)
    best = int(scores.max(initial=0))
    return Reply(wire.priorities(asked, scores), pod.key, decision=f"best {best} of {len(scores)} nodes")


def _demand(service: Service, pod: PodRecord) -> Demand | None:
    """None: nothing to prefer one node for."""
    try:
        demand = service.state.demand(pod)
    except InvalidTask:
        return None
    return demand if demand is not None and demand.needs_mib else None
