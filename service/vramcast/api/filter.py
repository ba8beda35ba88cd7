"""POST /filter: which nodes have GPUs with room for the pod, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vramcast.api import wire
from vramcast.errors import InvalidTask, NotLeading, NotSynced
from vramcast.placement.fit import Decision
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason, reason_text
from vramcast.service import Reply, Service
from vramcast.settings import UndescribedPolicy
from vramcast.task.pod import PodRecord


async def filter_nodes(service: Service, body: bytes) -> Reply:
    args = wire.decode_args(body)
    pod = service.read(args.pod)
    if service.observes or (pod.task is None and pod.invalid is None and pod.ask is None):
        service.remember(pod)
        why = "mode observe" if service.observes else "asks for no GPU"
        return Reply(wire.everything_passes(args), pod.key, decision=f"passes: {why}")
    try:
        demand = service.state.demand(pod)
    except InvalidTask as error:
        return _filter_undescribed(service, args, pod, error)
    if demand is None or (not demand.needs_mib and pod.task is None):
        return _filter_undescribed(service, args, pod, None)
    try:
        service.check_synced()
        await service.leadership.await_lead()
        # In this order: who is stopped in between finds its lead over, or its version outdated.
        pod = service.newest(pod)
        service.leadership.check()
    except NotSynced as error:
        return Reply(wire.filter_error(str(error)), pod.key, decision=str(error), cause="not_synced")
    except NotLeading as error:
        return Reply(wire.filter_error(str(error)), pod.key, decision=str(error), cause="not_leading")
    return await _filter_described(service, args, pod, demand)


async def _filter_described(service: Service, args: wire.ExtenderArgs, pod: PodRecord, demand: Demand) -> Reply:
    ledger = service.state.ledger
    # Asked again, the scheduler has forgotten what it was told before.
    ledger.release_hold(pod.uid)
    asked = wire.ask_board(args, ledger.board)
    decision = ledger.decide(demand, asked.columns)
    if not decision.fits.any() and _worth_waiting(service, decision):
        asked, decision = await _wait_for_holds(service, args, demand)
    # From here to the end no await: what was seen is what is taken.
    feasible = int(np.count_nonzero(decision.fits))
    service.remember(pod)
    offered = decision
    if feasible:
        offered = _take(service, asked, decision, feasible)
        service.unschedulable.discard(pod.uid)
    else:
        service.unschedulable.add(pod, service.state.revision, service.clock())
    counts = decision.counts() if feasible < len(decision.fits) else {}
    texts = wire.reason_texts(demand, counts)
    said = _count(service, pod, decision, feasible, counts, texts)
    # A choice is no verdict on the others, and the scheduler asks for reasons only where nothing fits.
    told = texts if offered is decision else {}
    return Reply(wire.filter_result(args, asked, offered.fits, decision.reasons, told), pod.key, decision=said)


def _take(service: Service, asked: wire.Asked, decision: Decision, feasible: int) -> Decision:
    """Hold room on the nodes that the scheduler is offered; a simulation gets to see all of them and holds nothing."""
    settings, ledger = service.settings, service.state.ledger
    if asked.items is not None and settings.node_cache_capable:
        return decision
    if 0 < settings.most_nodes_offered < feasible:
        decision = ledger.offer_best(decision, settings.most_nodes_offered)
    ledger.hold(decision, service.clock())
    return decision


def _worth_waiting(service: Service, decision: Decision) -> bool:
    """Is it worth a moment? Only holds stand in the way, or the scheduler has heard something that we have not."""
    held = bool((decision.reasons == Reason.HELD).any())
    return held or service.unschedulable.knows_no_news(decision.demand.uid, service.state.revision)


async def _wait_for_holds(service: Service, args: wire.ExtenderArgs, demand: Demand) -> tuple[wire.Asked, Decision]:
    """Wait for news, decide again; nodes may have come and gone meanwhile, so they are looked up again too."""
    ledger = service.state.ledger
    deadline = service.clock() + service.settings.hold_wait_seconds
    while True:
        left = deadline - service.clock()
        happened = left > 0 and await service.news.wait(left)
        asked = wire.ask_board(args, ledger.board)
        decision = ledger.decide(demand, asked.columns)
        fits = bool(decision.fits.any())
        if fits or not happened or not _worth_waiting(service, decision):
            service.metrics.hold_waits.labels("fits" if fits else "timed_out").inc()
            return asked, decision


def _count(
    service: Service, pod: PodRecord, decision: Decision, feasible: int,
    counts: Mapping[Reason, int], texts: Mapping[Reason, str],
) -> str:  # fmt: skip
    """The metrics of one decision, and the line for the log."""
    metrics = service.metrics
    if pod.task is not None and (product := next(iter(decision.demand.needs_mib), None)) is not None:
        metrics.forecasts.labels(service.forecaster.forecast(pod.task, product).source).inc()
    if not counts:
        return f"fits {feasible} nodes"
    for reason, nodes in counts.items():
        metrics.node_rejections.labels(reason.label).inc(nodes)
    if not feasible:
        metrics.pods_rejected.labels(max(counts, key=counts.__getitem__).label).inc()
    why = "; ".join(f"{nodes} {texts[reason]}" for reason, nodes in counts.items())
    return f"fits {feasible} of {len(decision.reasons)} nodes: {why}"


def _filter_undescribed(service: Service, args: wire.ExtenderArgs, pod: PodRecord, error: InvalidTask | None) -> Reply:
    """A pod without a usable description: as the policy says, but never beside pods that share by promise."""
    service.remember(service.newest(pod))
    if error is not None:
        service.metrics.invalid_tasks.inc()
        service.tell_pod(pod, "InvalidTaskDescription", str(error), warning=True)
    asked = wire.ask_board(args, service.state.ledger.board)
    rejected = service.state.ledger.board.sharing(asked.columns)
    if service.settings.undescribed is UndescribedPolicy.REJECT:
        rejected = np.ones(len(asked.columns), dtype=np.bool_)
    reason, text = _undescribed_reason(service, pod, error)
    reasons = np.where(rejected, np.uint8(reason), np.uint8(Reason.FITS))
    if rejected.any():
        service.metrics.node_rejections.labels(reason.label).inc(int(np.count_nonzero(rejected)))
    if rejected.all() and len(rejected):
        service.metrics.pods_rejected.labels(reason.label).inc()
        service.unschedulable.add(pod, service.state.revision, service.clock())
    said = f"not described: passes {np.count_nonzero(~rejected)} of {len(rejected)} nodes"
    said += f": {error}" if error is not None else ""
    return Reply(wire.filter_result(args, asked, ~rejected, reasons, {reason: text}), pod.key, decision=said)


def _undescribed_reason(service: Service, pod: PodRecord, error: InvalidTask | None) -> tuple[Reason, str]:
    if error is not None:
        return Reason.INVALID_TASK, f"task description: {str(error)[:300]}"
    if service.settings.undescribed is UndescribedPolicy.REJECT:
        return Reason.UNDESCRIBED, reason_text(Reason.UNDESCRIBED)
    resource = pod.ask.resource if pod.ask else "a GPU"
    return Reason.SHARING, reason_text(Reason.SHARING, resource=resource)
