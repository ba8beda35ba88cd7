"""POST /bind: choose GPUs on the node that the scheduler chose, and write both with one Binding."""

from __future__ import annotations

from dataclasses import replace

from vramcast.admission.limits import ProcessContext, is_capped, limit, limit_annotations
from vramcast.api import wire
from vramcast.api.wire import Reply
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.errors import InvalidTask, NotSynced, WorldUnavailable
from vramcast.forecast.forecast import UNADJUSTED, Adjustment, Forecast
from vramcast.forecast.physics import context_part, least_context_mib
from vramcast.forecast.step_time import UNTIMED, StepTime, builtin_step_timer
from vramcast.names import NodeName, PodUid
from vramcast.placement.changes import PodSeen
from vramcast.placement.promises import Demand, Promise
from vramcast.placement.reasons import Reason, reason_text
from vramcast.placement.state import may_renew
from vramcast.service import Service
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB, ceil_mib, format_mib, human_mib
from vramcast.task.vocabulary import Level, Written
from vramcast.task.written_utilization import write_utilization


async def bind_pod(service: Service, body: bytes) -> Reply:
    args = wire.decode_binding(body)
    uid, node = PodUid(args.pod_uid), NodeName(args.node)
    key = f"{args.pod_namespace}/{args.pod_name}"
    if service.observes:
        text = "mode observe binds nothing: remove bindVerb from the scheduler's configuration"
        return Reply(wire.binding_result(text), key, node, text, cause="not_bound")
    deadline = service.clock() + service.settings.bind_deadline_seconds
    try:
        pod = service.state.being_placed(uid) or await _read(service, args)
        demand = await _described_demand(service, pod)
        fenced = service.leadership.fenced and pod.matters
        version = service.state.renew(pod).resource_version if fenced else ""
        write = BindingWrite(uid, args.pod_namespace, args.pod_name, node, {}, version, deadline)
        if fenced:
            service.leadership.check()
        if demand is None:
            answer = await _bind_undescribed(service, pod, write)
        else:
            service.check_synced()
            answer = await _bind_described(service, pod, demand, write)
    except (NotSynced, WorldUnavailable, InvalidTask) as error:
        return Reply(wire.binding_result(str(error)), key, node, str(error), cause="not_bound")
    service.news.spread()
    return answer


async def _read(service: Service, args: wire.BindingArgs) -> PodRecord:
    """After a restart between filter and bind, the pod comes from the API server."""
    pod: PodRecord | None = await service.workers.binds(service.cluster.read_pod, args.pod_namespace, args.pod_name)
    if pod is None or pod.uid != args.pod_uid:
        raise WorldUnavailable(f"pod {args.pod_namespace}/{args.pod_name} with UID {args.pod_uid} no longer exists")
    return pod


async def _described_demand(service: Service, pod: PodRecord) -> Demand | None:
    """None: filter let the pod pass without a promise, and so does bind."""
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask:
        return None
    return demand if demand is not None and pod.task is not None and not pod.claims else None


async def _bind_undescribed(service: Service, pod: PodRecord, write: BindingWrite) -> Reply:
    board = service.state.ledger.board
    shares = board.sharing(board.columns([write.node]))[0]
    if shares and (pod.ask is not None or pod.invalid is not None):
        text = reason_text(Reason.SHARING, resource=pod.ask.resource if pod.ask else "a GPU")
        return Reply(wire.binding_result(text), pod.key, write.node, text, cause="no_room")
    result = await _send(service, pod, write)
    service.metrics.binds.labels(result.fate).inc()
    return _answer(result, pod, write.node, "bound")


async def _bind_described(service: Service, pod: PodRecord, demand: Demand, write: BindingWrite) -> Reply:
    ledger = service.state.ledger
    service.expire_holds()
    if ledger.is_gone(pod.uid):
        raise WorldUnavailable(f"pod {pod.key} with UID {pod.uid} no longer exists")
    mark = pod.scheduling.requeued if write.resource_version else None
    taken = ledger.assign(demand, write.node, service.clock(), mark)
    # The node is known now, so the holds on all other nodes are free for waiting pods.
    service.news.spread()
    if isinstance(taken, Reason):
        text = reason_text(taken, demand.largest_need_mib, demand.ask.count, demand.ask.resource)
        return Reply(wire.binding_result(f"not bound: {text}"), pod.key, write.node, text, cause="no_room")
    result = await _write(service, pod, taken, write)
    service.metrics.binds.labels(result.fate).inc()
    where = _where(taken)
    if result.fate is Fate.BOUND:
        service.post_event(pod, "GpuAssigned", f"{where} on {write.node}", warning=False)
    return _answer(result, pod, write.node, where)


async def _write(service: Service, pod: PodRecord, promise: Promise, write: BindingWrite) -> BindResult:
    """One Binding, and what its answer means for the promise."""
    ledger, started, sent = service.state.ledger, service.clock(), False
    try:
        step = await _step_time(service, pod, promise)
        full = replace(write, annotations=assignment_annotations(service, pod, promise, step))
        sent = True
        result = await _send(service, pod, full)
    except BaseException:
        # Cancelled or broken. If the write was sent, it may have arrived.
        if sent:
            ledger.leave_unconfirmed(promise, service.clock())
        else:
            ledger.withdraw(promise)
        raise
    if result.seen is not None and result.seen.uid == promise.uid and result.seen.node is not None:
        # The pod is already bound, perhaps to other GPUs. Count those before ours are withdrawn.
        service.apply([PodSeen(result.seen, read_at=started)])
    match result.fate:
        case Fate.BOUND:
            ledger.confirm(promise, service.clock())
        case Fate.UNKNOWN:
            ledger.leave_unconfirmed(promise, service.clock())
        case Fate.REFUSED:
            ledger.withdraw(promise)
    return result


async def _send(service: Service, pod: PodRecord, write: BindingWrite) -> BindResult:
    """Write the Binding. If the pod has a new version that the watch has not shown yet, try again with that one."""
    while True:
        result: BindResult = await service.workers.binds(service.cluster.bind, write)
        seen = result.seen
        if result.fate is not Fate.REFUSED or not write.resource_version or seen is None:
            return result
        named = replace(pod, resource_version=write.resource_version)
        if not service.leadership.leading or not may_renew(named, seen):
            return result
        write = replace(write, resource_version=seen.resource_version)


def _answer(result: BindResult, pod: PodRecord, node: NodeName, decision: str) -> Reply:
    if result.fate is Fate.BOUND:
        return Reply(wire.binding_result(), pod.key, node, decision)
    message = f"{result.fate}: {result.message}"
    return Reply(wire.binding_result(message), pod.key, node, message, cause=result.fate)


async def _step_time(service: Service, pod: PodRecord, promise: Promise) -> StepTime:
    """On a worker the first time, from the cache afterwards."""
    if pod.task is None or pod.task.level is Level.GIVEN:
        return UNTIMED
    timer, product = builtin_step_timer(), service.state.product_on(promise.node, promise.resource)
    known = timer.cached(pod.task, product)
    return known if known is not None else await service.workers.forecasts(timer.forecast, pod.task, product)


def assignment_annotations(
    service: Service, pod: PodRecord, promise: Promise, step: StepTime = UNTIMED
) -> dict[str, str]:
    """The annotations that the Binding adds to the pod: enough to rebuild the promise after a restart."""
    written: dict[str, str] = {}
    if promise.need_mib is not None:
        written[Written.RESERVED_MEMORY] = format_mib(promise.need_mib)
    if promise.gpu_indices:
        written[Written.GPU_INDICES] = ",".join(map(str, promise.gpu_indices))
    product = service.state.product_on(promise.node, promise.resource)
    forecast = service.forecaster.forecast(pod.task, product) if pod.task else None
    if forecast is not None:
        written[Written.FORECAST_MEMORY] = format_mib(ceil_mib(forecast.median_bytes))
        written[Written.MODEL_VERSION] = forecast.model_version
        adjustment = _applied(forecast, promise)
        if adjustment != UNADJUSTED:
            written[Written.CALIBRATION] = str(adjustment)
        written |= write_utilization(forecast.utilization)
    if step.seconds is not None:
        written[Written.FORECAST_STEP_SECONDS] = f"{step.seconds:.4g}"
    return written | _limits(service, pod, promise)


def _limits(service: Service, pod: PodRecord, promise: Promise) -> dict[str, str]:
    """What holds the pod's runtimes to the promise."""
    node = service.state.ledger.nodes.get(promise.node)
    pool = node.pool(promise.resource) if node else None
    if pool is None or promise.need_mib is None or not is_capped(pod.task, promise.resource):
        return {}
    sizes = [pool.memory_mib[index] for index in promise.gpu_indices] or [min(pool.memory_mib)] * promise.count
    usual_mib = context_part(pool.product, cudnn=False, norms=False).size_bytes // MIB
    context = ProcessContext(least_context_mib(pool.product), usual_mib)
    limited = limit(promise.need_mib, sizes, context, service.settings.webhook_cap_slack)
    return limit_annotations(limited, service.settings.capped_runtimes) if limited else {}


def _applied(forecast: Forecast, promise: Promise) -> Adjustment:
    """Relative to the artifact's own bound, by which the run is judged. The OOM history may have raised the promise."""
    if promise.need_mib is None or promise.need_mib <= forecast.need_mib:
        return forecast.adjustment
    raised = promise.need_mib * MIB / forecast.bound_bytes
    return replace(forecast.adjustment, bound=round(forecast.adjustment.bound * raised, 4))


def _where(promise: Promise) -> str:
    need = f" of {human_mib(promise.need_mib)}" if promise.need_mib is not None else ""
    if promise.gpu_indices:
        gpus = ", ".join(map(str, promise.gpu_indices))
        return f"promise{need} on GPU {gpus}"
    return f"promise{need} on each of {promise.count} {promise.resource}"
