"""POST /prioritize: score the nodes that fit."""

from __future__ import annotations

import numpy as np

from vramcast.api import wire
from vramcast.api.wire import Reply
from vramcast.errors import InvalidTask
from vramcast.placement.promises import Demand
from vramcast.service import Service
from vramcast.task.pod import PodRecord


async def prioritize_nodes(service: Service, body: bytes) -> Reply:
    args = wire.decode_args(body)
    pod = service.state.read(args.pod)
    ledger = service.state.ledger
    demand = None if service.observes else await _demand(service, pod)
    asked = wire.ask_board(args, ledger.board)
    if demand is None:
        nothing = np.zeros(len(asked.columns), dtype=np.int64)
        return Reply(wire.priorities(asked, nothing), pod.key, decision="no preference")
    scores = ledger.scores(demand, asked.columns)
    best = int(scores.max(initial=0))
    return Reply(wire.priorities(asked, scores), pod.key, decision=f"best {best} of {len(scores)} nodes")


async def _demand(service: Service, pod: PodRecord) -> Demand | None:
    """None: no reason to prefer any node."""
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask:
        return None
    return demand if demand is not None and demand.needs_mib and not pod.claims else None
