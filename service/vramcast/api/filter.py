"""POST /filter: which nodes have GPUs with room for the pod, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from vramcast.api import wire
from vramcast.api.preempt import nodes_to_evict_from
from vramcast.api.wire import Reply
from vramcast.errors import InvalidTask, NotLeading, NotSynced
from vramcast.placement.fit import Decision
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason, reason_text
from vramcast.service import Service
from vramcast.settings import UndescribedPolicy
from vramcast.task.pod import PodRecord


async def filter_nodes(service: Service, body: bytes) -> Reply:
    args = wire.decode_args(body)
    state = service.state
    pod = state.read(args.pod)
    if why := _why_not_judged(service, pod):
        wire.check_nodes(args)
        state.begin_placing(pod)
        return Reply(wire.everything_passes(args), pod.key, decision=f"passes: {why}")
    try:
        await service.make_forecasts(pod)
        demand = state.demand(pod)
    except InvalidTask as error:
        return _filter_undescribed(service, args, pod, error)
    if demand is None or (not demand.needs_mib and pod.task is None):
        return _filter_undescribed(service, args, pod, None)
    try:
        service.check_synced()
        await service.leadership.await_lead()
        # The version first, then the check. A process that is paused in between fails the check, or names a version
        # that the next leader has replaced.
        pod = state.with_newest_version(pod)
        service.leadership.check()
    except NotSynced as error:
        return Reply(wire.filter_error(str(error)), pod.key, decision=str(error), cause="not_synced")
    except NotLeading as error:
        return Reply(wire.filter_error(str(error)), pod.key, decision=str(error), cause="not_leading")
    return await _filter_described(service, args, pod, demand)


def _why_not_judged(service: Service, pod: PodRecord) -> str:
    """Empty for a pod that wants one of our GPUs, or made a mistake in saying so."""
    if service.observes:
        return "mode observe"
    if pod.claims:
        return "claims its GPU from another system"
    return "asks for no GPU" if pod.task is None and pod.invalid is None and pod.ask is None else ""


async def _filter_described(service: Service, args: wire.ExtenderArgs, pod: PodRecord, demand: Demand) -> Reply:
    state, ledger, started = service.state, service.state.ledger, service.clock()
    service.expire_holds()
    ledger.start_over(demand, started)
    asked = wire.ask_board(args, ledger.board)
    decision = ledger.decide(demand, asked.columns)
    if not decision.fits.any() and _worth_waiting(service, decision):
        asked, decision = await _wait_for_holds(service, args, demand)
    if state.is_gone(pod.uid, started):
        text = f"pod {pod.key} no longer exists"
        return Reply(wire.filter_error(text), pod.key, decision=text, cause="gone")
    # No await from here to the end: the room that was read is the room that is taken.
    feasible = int(np.count_nonzero(decision.fits))
    state.begin_placing(pod)
    offered = decision
    if feasible:
        offered = _offer(service, asked, decision, feasible)
        state.unschedulable.discard(pod.uid)
    else:
        ledger.give_up(demand, service.clock())
        # As of the start of the call: a list that began later, without the pod, must remove it.
        state.unschedulable.add(pod, state.revision, started)
    counts = decision.counts() if feasible < len(decision.fits) else {}
    texts = wire.reason_texts(demand, counts)
    summary = _count(service, pod, decision, feasible, counts, texts)
    # The scheduler reads reasons only if no node fits. Nodes that fit and are not offered have none.
    sent = texts if offered is decision else {}
    evictable = None if feasible else nodes_to_evict_from(service, pod, decision)
    answer = wire.filter_result(args, asked, offered.fits, decision.reasons, sent, evictable)
    return Reply(answer, pod.key, decision=summary)


def _offer(service: Service, asked: wire.Asked, decision: Decision, feasible: int) -> Decision:
    """Hold room on the nodes that the scheduler is offered. A simulation is offered all nodes and holds nothing.

    A pod with a promise is offered the nodes where it has one. The promise counts already, so nothing is held.

    A member of a gang is offered one node: the next member is filtered before the scheduler shows which it chose.
    """
    settings, ledger = service.settings, service.state.ledger
    if asked.items is not None and settings.node_cache_capable:
        return decision
    if (own := ledger.offer_own(decision)) is not None:
        return own
    most = 1 if decision.demand.gang else settings.most_nodes_offered
    if 0 < most < feasible:
        decision = ledger.offer_best(decision, most)
    ledger.hold(decision, service.clock())
    return decision


def _worth_waiting(service: Service, decision: Decision) -> bool:
    """Only holds are in the way, or the scheduler has seen an event that has not arrived here yet.

    The holds of a gang stay until all its members are filtered, so a member does not wait for them.
    """
    held = bool((decision.reasons == Reason.HELD).any())
    if held and service.state.ledger.holds_gang(decision.demand.gang):
        return False
    return held or service.state.unschedulable.unchanged_since(decision.demand.uid, service.state.revision)


async def _wait_for_holds(service: Service, args: wire.ExtenderArgs, demand: Demand) -> tuple[wire.Asked, Decision]:
    """Decide again after each change until something fits or time is up. Nodes may come and go meanwhile."""
    ledger = service.state.ledger
    deadline = service.clock() + service.settings.hold_wait_seconds
    while True:
        left = deadline - service.clock()
        changed = left > 0 and await service.news.wait(left)
        service.expire_holds()
        asked = wire.ask_board(args, ledger.board)
        decision = ledger.decide(demand, asked.columns)
        fits = bool(decision.fits.any())
        if fits or not changed or not _worth_waiting(service, decision):
            service.metrics.hold_waits.labels("fits" if fits else "timed_out").inc()
            return asked, decision


def _count(
    service: Service, pod: PodRecord, decision: Decision, feasible: int,
    counts: Mapping[Reason, int], texts: Mapping[Reason, str],
) -> str:  # fmt: skip
    """Count the decision in the metrics, and summarize it for the log."""
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
    """A pod without a usable description follows the policy, but never onto nodes that share their GPUs."""
    state = service.state
    state.begin_placing(state.with_newest_version(pod))
    if error is not None:
        service.metrics.invalid_tasks.inc()
        service.post_event(pod, "InvalidTaskDescription", str(error), warning=True)
    asked = wire.ask_board(args, state.ledger.board)
    rejected = state.ledger.board.sharing(asked.columns)
    if service.settings.undescribed is UndescribedPolicy.REJECT:
        rejected = np.ones(len(asked.columns), dtype=np.bool_)
    reason, text = _undescribed_reason(service, pod, error)
    reasons = np.where(rejected, np.uint8(reason), np.uint8(Reason.FITS))
    if rejected.any():
        service.metrics.node_rejections.labels(reason.label).inc(int(np.count_nonzero(rejected)))
    if rejected.all() and len(rejected):
        service.metrics.pods_rejected.labels(reason.label).inc()
        state.unschedulable.add(pod, state.revision, service.clock())
    summary = f"not described: passes {np.count_nonzero(~rejected)} of {len(rejected)} nodes"
    summary += f": {error}" if error is not None else ""
    return Reply(wire.filter_result(args, asked, ~rejected, reasons, {reason: text}), pod.key, decision=summary)


def _undescribed_reason(service: Service, pod: PodRecord, error: InvalidTask | None) -> tuple[Reason, str]:
    if error is not None:
        return Reason.INVALID_TASK, f"task description: {str(error)[:300]}"
    if service.settings.undescribed is UndescribedPolicy.REJECT:
        return Reason.UNDESCRIBED, reason_text(Reason.UNDESCRIBED)
    resource = pod.ask.resource if pod.ask else "a GPU"
    return Reason.SHARING, reason_text(Reason.SHARING, resource=resource)
