"""From runs that ended to outcomes: how each ended is asked of the API server, what it took is known once telemetry
has been read up to its end, and then it is counted, once.

Only the replica that leads counts, and only after it knows what its predecessor has counted.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Protocol, runtime_checkable

import structlog

from vramcast.errors import InvalidTask, WorldUnavailable
from vramcast.forecast.forecast import Forecast
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import PodUid, Product
from vramcast.outcomes.measuring import EndedRun
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.runs import Unmeasured
from vramcast.outcomes.tenancy import Tenant
from vramcast.service import Service
from vramcast.task.fingerprint import task_fingerprint
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending, RunFacts
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level

# Telemetry, or the API server, that has not answered by then is not waited for any longer.
GIVE_UP_SECONDS = 3600.0
_ASKED_AT_ONCE = 16

log = structlog.get_logger("vramcast")


@runtime_checkable
class FinishedPods(Protocol):
    """What catching up needs of the cluster."""

    def list_finished(self, since: float) -> list[PodRecord]:
        """Pods that ended after that time (seconds since the epoch). Blocks; raises WorldUnavailable."""
        ...


async def catch_up(service: Service) -> None:
    """After a start, or a takeover: what ended meanwhile, and was not counted by whoever led before."""
    measuring = service.measuring
    if not service.may_count:
        # Another replica counts: what has ended is its business, and what ended here is looked for again if we lead.
        measuring.caught_up = False
        measuring.ended.clear()
        return
    if measuring.caught_up:
        return
    cluster = service.cluster
    if isinstance(cluster, FinishedPods):
        since = measuring.wall() - service.settings.telemetry_history_hours * 3600
        try:
            finished: list[PodRecord] = await service.offload(cluster.list_finished, since)
        except WorldUnavailable as error:
            log.warning("cannot look for runs that ended before the start, trying again", error=str(error))
            return
        for pod in finished:
            _remember_finished(service, pod)
        # Telemetry has to be read again from their beginning.
        if measuring.ended:
            measuring.state.covered_until = None
    measuring.caught_up = True


def _remember_finished(service: Service, pod: PodRecord) -> None:
    measuring, facts = service.measuring, pod.run
    uid, known = pod.uid, measuring.accuracy.counted
    if facts is None or pod.task is None or pod.ask is None or pod.node is None or facts.ended_at is None:
        return
    if uid in measuring.ended or uid in measuring.runs:
        return
    # One that was counted before the restart is measured again for its record alone.
    if uid in known and (not measuring.observed.keeps or uid in measuring.observed):
        return
    run = measuring.begin(pod, service.forecast_where_it_sits, service.product_of)
    measuring.ended[uid] = EndedRun(run, facts.ended_at, facts)
    indices = pod.assignment.gpu_indices if pod.assignment else ()
    reserved = pod.assignment.reserved_mib if pod.assignment else None
    shared = pod.ask.resource == SHARED_GPU
    tenant = Tenant(uid, pod.key, pod.node, shared, pod.ask.count, indices, reserved, run.since)
    measuring.remember_past(tenant, facts.ended_at)


async def close_runs(service: Service) -> None:
    if not service.may_count:
        return
    measuring = service.measuring
    unknown = [ended for ended in measuring.ended.values() if ended.facts is None]
    for start in range(0, len(unknown), _ASKED_AT_ONCE):
        await asyncio.gather(*(_learn_ending(service, ended) for ended in unknown[start : start + _ASKED_AT_ONCE]))
    for uid, ended in list(measuring.ended.items()):
        if _may_close(service, ended):
            del measuring.ended[uid]
            await _close(service, uid, ended)


async def _learn_ending(service: Service, ended: EndedRun) -> None:
    """To the watch a pod that finishes is deleted; only the API server can tell the two apart."""
    pod = ended.run.pod
    try:
        now: PodRecord | None = await service.offload(service.cluster.read_pod, pod.namespace, pod.name)
    except WorldUnavailable:
        return
    if now is None or now.uid != pod.uid:
        ended.facts = replace(pod.run or RunFacts(), ending=Ending.STOPPED, ended_at=ended.gone_at)
    elif now.run is not None and now.run.ending is not None:
        ended.run.pod, ended.facts = now, now.run


def _may_close(service: Service, ended: EndedRun) -> bool:
    measuring, settings = service.measuring, service.settings
    if measuring.wall() > ended.gone_at + GIVE_UP_SECONDS:
        return True
    if ended.facts is None:
        return False
    covered = measuring.state.covered_until
    read = covered is not None and covered >= ended.ended_at + settings.telemetry_lag_seconds
    return read or not measuring.state.configured


async def _close(service: Service, uid: PodUid, ended: EndedRun) -> None:
    measuring = service.measuring
    why = _unmeasured(service, ended)
    outcome = None if why else await _outcome(service, ended)
    task = ended.run.pod.task
    if outcome is not None and task is not None:
        measuring.observed.add(outcome, task)
    if uid in measuring.accuracy.counted:
        return
    if outcome is None:
        why = why or Unmeasured.UNKNOWN_END
        measuring.accuracy.pass_over(uid, why)
        log.info("no outcome", pod=ended.run.pod.key, why=why.value)
        return
    measuring.accuracy.record(outcome)
    if task is not None and outcome.level != Level.GIVEN:
        measuring.recorder(outcome, task)
    log.info(
        "outcome", pod=outcome.pod, ending=outcome.ending.value, peak_mib=outcome.peak_bytes // MIB,
        promised_mib=outcome.bound_bytes // MIB, kept=outcome.covered,
    )  # fmt: skip


def _unmeasured(service: Service, ended: EndedRun) -> Unmeasured | None:
    if ended.facts is None:
        return Unmeasured.UNKNOWN_END
    if _ending(service, ended.facts) is Ending.OOM or ended.facts.observed_mib is not None:
        return None
    return ended.run.judge(ended.ended_at, service.settings.min_run_seconds)


def _ending(service: Service, facts: RunFacts) -> Ending:
    if facts.ending is Ending.FAILED and facts.exit_code in service.settings.oom_codes:
        return Ending.OOM
    return facts.ending or Ending.STOPPED


async def _outcome(service: Service, ended: EndedRun) -> Outcome | None:
    run, facts = ended.run, ended.facts
    pod, task = run.pod, run.pod.task
    if facts is None or task is None:
        return None
    product = run.product or service.product_of(pod)
    forecast: Forecast | None = await service.offload(_forecast, service, task, product)
    if forecast is None:
        return None
    ending = _ending(service, facts)
    median = run.median_bytes if run.median_bytes is not None else forecast.median_bytes
    bound = run.bound_bytes if run.bound_bytes is not None else forecast.bound_bytes
    peak = max(run.peak_mib, facts.observed_mib or 0) * MIB
    return Outcome(
        uid=pod.uid,
        pod=pod.key,
        owner=pod.owner,
        fingerprint=task_fingerprint(task),
        family=forecast.family,
        level=task.level,
        product=product,
        model_version=facts.model_version or forecast.model_version,
        risk=forecast.risk,
        median_bytes=median,
        bound_bytes=bound,
        # It died at what it had, which the GPU's other tenants may have kept small; it needed more than its promise.
        peak_bytes=max(peak, bound) if ending is Ending.OOM else peak,
        ending=ending,
        ended_at=ended.ended_at,
        gpu_utilization_forecast=forecast.utilization.gpu,
        gpu_utilization_observed=run.utilization,
        adjustment=run.adjustment,
    )


def _forecast(service: Service, task: Task, product: Product) -> Forecast | None:
    """On a worker: after a restart nobody may have asked for it yet."""
    try:
        return service.forecaster.forecast(task, product)
    except InvalidTask:
        return None
