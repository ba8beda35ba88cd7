"""Turns ended runs into outcomes. The API server shows how each ended, telemetry what it used; then it counts once.

Only the leader counts, and only after it has read what its predecessor counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import structlog

from vramcast.errors import InvalidTask, WorldUnavailable
from vramcast.forecast.forecast import Forecast
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import PodUid, Product
from vramcast.outcomes.outcome import Outcome, Truth
from vramcast.outcomes.readings import Fault
from vramcast.outcomes.run_tracker import EndedRun
from vramcast.outcomes.runs import Unmeasured
from vramcast.outcomes.tenancy import Tenant
from vramcast.service import Service
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB
from vramcast.task.regime import regime
from vramcast.task.run_status import Ending, RunFacts
from vramcast.task.task import Task, task_fingerprint
from vramcast.task.vocabulary import Level

# How long to wait for telemetry or the API server before a run is closed without them.
GIVE_UP_SECONDS = 3600.0
_PARALLEL_READS = 16

log = structlog.get_logger("vramcast")


@runtime_checkable
class FinishedPods(Protocol):
    """The call of the cluster that catching up needs."""

    def list_finished(self, since: float) -> list[PodRecord]:
        """Pods that ended after that time (seconds since the epoch). Blocks; raises WorldUnavailable."""
        ...


async def catch_up(service: Service) -> None:
    """After a start or a takeover: find runs that ended meanwhile and that no leader has counted."""
    tracker = service.tracker
    if not service.may_count():
        # The leader counts these. If this replica takes over, it reads them again.
        tracker.caught_up = False
        tracker.ended.clear()
        return
    if tracker.caught_up:
        return
    cluster = service.cluster
    if isinstance(cluster, FinishedPods):
        since = tracker.wall() - service.settings.telemetry_history_hours * 3600
        try:
            finished: list[PodRecord] = await service.workers.telemetry(cluster.list_finished, since)
        except WorldUnavailable as error:
            log.warning("cannot list runs that ended before the start, retrying", error=str(error))
            return
        for pod in finished:
            _add_finished(service, pod)
        # Read telemetry again from the start of the oldest of them.
        if tracker.ended:
            tracker.telemetry.covered_until = None
    tracker.caught_up = True


def _add_finished(service: Service, pod: PodRecord) -> None:
    tracker, facts = service.tracker, pod.run
    uid, known = pod.uid, tracker.accuracy.counted
    if facts is None or pod.task is None or pod.ask is None or pod.node is None or facts.ended_at is None:
        return
    if uid in tracker.ended or uid in tracker.runs:
        return
    # A run that was counted before the restart is measured again only for its record.
    if uid in known and (not tracker.observed.keeps or uid in tracker.observed):
        return
    run = tracker.begin(pod)
    tracker.ended[uid] = EndedRun(run, facts.ended_at, facts)
    indices = pod.assignment.gpu_indices if pod.assignment else ()
    reserved = pod.assignment.reserved_mib if pod.assignment else None
    shared = pod.ask.resource == SHARED_GPU
    tenant = Tenant(uid, pod.key, pod.node, shared, pod.ask.count, indices, reserved, run.since)
    tracker.add_past_tenant(tenant, facts.ended_at)


async def close_runs(service: Service) -> None:
    if not service.may_count():
        return
    tracker = service.tracker
    unknown = [ended for ended in tracker.ended.values() if ended.facts is None]
    for start in range(0, len(unknown), _PARALLEL_READS):
        await asyncio.gather(*(_learn_ending(service, ended) for ended in unknown[start : start + _PARALLEL_READS]))
    # The last run of a task says the most, and the API server lists pods by name.
    for uid, ended in sorted(tracker.ended.items(), key=lambda item: item[1].ended_at):
        if _may_close(service, ended):
            del tracker.ended[uid]
            await _close(service, uid, ended)


async def _learn_ending(service: Service, ended: EndedRun) -> None:
    """The watch shows a finished pod as deleted. Only the API server can tell the two apart."""
    pod = ended.run.pod
    try:
        now: PodRecord | None = await service.workers.telemetry(service.cluster.read_pod, pod.namespace, pod.name)
    except WorldUnavailable:
        return
    if now is None or now.uid != pod.uid:
        ended.facts = replace(pod.run or RunFacts(), ending=Ending.STOPPED, ended_at=ended.gone_at)
    elif now.run is not None and now.run.ending is not None:
        ended.run.pod, ended.facts = now, now.run


def _may_close(service: Service, ended: EndedRun) -> bool:
    tracker, settings = service.tracker, service.settings
    if tracker.wall() > ended.gone_at + GIVE_UP_SECONDS:
        return True
    if ended.facts is None:
        return False
    covered = tracker.telemetry.covered_until
    read = covered is not None and covered >= ended.ended_at + settings.telemetry_lag_seconds
    return read or not tracker.telemetry.configured


async def _close(service: Service, uid: PodUid, ended: EndedRun) -> None:
    tracker = service.tracker
    found = await _judge(service, ended)
    task = ended.run.pod.task
    if isinstance(found, Outcome) and task is not None:
        tracker.observed.add(found, task)
    if uid in tracker.accuracy.counted:
        return
    if isinstance(found, Unmeasured):
        tracker.accuracy.pass_over(uid, found)
        log.info("no outcome", pod=ended.run.pod.key, why=found.value)
        return
    tracker.accuracy.record(found)
    if task is not None and found.level != Level.GIVEN:
        service.learn(found, task)
    log.info(
        "outcome", pod=found.pod, ending=found.ending.value, peak_mib=found.peak_bytes // MIB,
        promised_mib=found.bound_bytes // MIB, kept=found.covered, known_by=found.truth.value,
    )  # fmt: skip


async def _judge(service: Service, ended: EndedRun) -> Outcome | Unmeasured:
    """The job's own word counts more than samples."""
    run, facts = ended.run, ended.facts
    task = run.pod.task
    if facts is None or task is None:
        return Unmeasured.UNKNOWN_END
    ending = _ending(service, facts)
    unseen = run.judge(ended.ended_at, service.settings.min_run_seconds)
    told_nothing = facts.observed_mib is None and facts.report is None
    if unseen is not None and told_nothing and ending is not Ending.OOM:
        return unseen
    product = run.product or service.state.product_of(run.pod)
    forecast: Forecast | None = await service.workers.telemetry(_forecast, service, task, product)
    if forecast is None:
        return Unmeasured.UNKNOWN_END
    told = _told_bytes(facts, forecast)
    _drop_impossible_report(service, run.pod, told)
    if unseen is not None and not told and ending is not Ending.OOM:
        return unseen
    return _outcome(ended, task, ending, forecast, told)


def _ending(service: Service, facts: RunFacts) -> Ending:
    if facts.ending is Ending.FAILED and facts.exit_code in service.settings.oom_codes:
        return Ending.OOM
    return facts.ending or Ending.STOPPED


def _told_bytes(facts: RunFacts, forecast: Forecast) -> dict[Truth, int]:
    """What the job says that it took, as the driver would report it. The more trusted first."""
    told = {}
    if facts.report is not None:
        # torch does not count the contexts of processes.
        told[Truth.REPORT] = facts.report.reserved_mib * MIB + facts.report.processes * forecast.context_bytes
    if facts.observed_mib is not None:
        told[Truth.ANNOTATION] = facts.observed_mib * MIB
    return told


def _drop_impossible_report(service: Service, pod: PodRecord, told: dict[Truth, int]) -> None:
    """A report of more memory than the GPU has is wrong or forged, and as good as none."""
    node = service.state.ledger.nodes.get(pod.node) if pod.node is not None else None
    largest_mib = max((size for pool in node.pools for size in pool.memory_mib), default=0) if node is not None else 0
    said = told.get(Truth.REPORT, 0)
    if largest_mib and said > largest_mib * MIB:
        del told[Truth.REPORT]
        service.tracker.telemetry.faults[Fault.REPORT] += 1
        log.warning("exit report ignored: more memory than the GPU has", pod=pod.key, said_mib=said // MIB)


def _outcome(ended: EndedRun, task: Task, ending: Ending, forecast: Forecast, told: Mapping[Truth, int]) -> Outcome:
    run, pod = ended.run, ended.run.pod
    facts = ended.facts or RunFacts()
    median = run.median_bytes if run.median_bytes is not None else forecast.median_bytes
    bound = run.bound_bytes if run.bound_bytes is not None else forecast.bound_bytes
    truth, peak = next(iter(told.items()), (run.peak_truth, run.peak_mib * MIB))
    sampled = {source: mib * MIB for source, mib in run.peaks_mib(ended.ended_at).items()}
    return Outcome(
        uid=pod.uid,
        pod=pod.key,
        owner=pod.owner,
        fingerprint=task_fingerprint(task),
        family=forecast.family,
        level=task.level,
        product=forecast.product,
        model_version=facts.model_version or forecast.model_version,
        risk=forecast.risk,
        median_bytes=median,
        bound_bytes=bound,
        # An OOM proves that the run needed more than its promise, even if its neighbours left it less than that.
        peak_bytes=max(peak, bound) if ending is Ending.OOM else peak,
        ending=ending,
        ended_at=ended.ended_at,
        utilization_forecast=facts.utilization.completed(forecast.utilization),
        utilization_observed=run.utilization,
        adjustment=run.adjustment,
        truth=truth,
        peaks_bytes={**told, **sampled},
        regime=regime(task),
        step_seconds_forecast=facts.step_seconds,
        step_seconds_observed=_step_seconds(facts) if truth is Truth.REPORT else None,
    )


def _step_seconds(facts: RunFacts) -> float | None:
    """Of the slowest process, by its exit report."""
    rate = facts.report.steps_per_second if facts.report is not None else None
    return 1.0 / rate if rate is not None else None


def _forecast(service: Service, task: Task, product: Product) -> Forecast | None:
    """On a worker: after a restart the forecast may not be cached."""
    try:
        return service.forecaster.forecast(task, product)
    except InvalidTask:
        return None
