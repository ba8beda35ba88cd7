"""Polls telemetry: unmanaged memory goes onto the board, what pods used into their runs, ended runs become outcomes.

The request and the analysis of its answer run on a worker; the findings are applied on the event loop. Without
telemetry, promises alone decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from vramcast.cluster.telemetry import Telemetry
from vramcast.controllers.run_endings import catch_up, close_runs
from vramcast.errors import WorldUnavailable
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.outcomes.observation import Findings
from vramcast.outcomes.readings import Fault, Frame
from vramcast.placement.changes import Change, UnmanagedSeen, UtilizationSeen
from vramcast.placement.promises import Promise
from vramcast.service import Service

# Older samples are read as history, at a coarser step. That keeps the answer small after a long outage.
_MAX_RAW_SECONDS = 600.0

log = structlog.get_logger("vramcast")


async def keep_polling(service: Service, telemetry: Telemetry | None) -> None:
    """Until cancelled. After an error, the next poll tries again."""
    service.tracker.telemetry.configured = telemetry is not None
    while True:
        try:
            await poll(service, telemetry)
        except Exception:
            log.exception("defect: a telemetry poll failed, retrying")
        await asyncio.sleep(service.settings.telemetry_interval_seconds)


async def poll(service: Service, telemetry: Telemetry | None) -> None:
    if service.state.synced:
        await catch_up(service)
        if telemetry is not None:
            await _read(service, telemetry)
        await close_runs(service)


async def _read(service: Service, telemetry: Telemetry) -> None:
    tracker = service.tracker
    state, now = tracker.telemetry, tracker.wall()
    tracker.update_tenants(service.state.ledger.promises(), _since(service, now))
    try:
        # Copies, made here: the worker must not read what the event loop keeps changing.
        nodes, tenants = dict(service.state.ledger.nodes), tracker.tenancy.by_node()
        request = _request(service, telemetry, now)
        findings: Findings = await service.workers.telemetry(
            lambda: tracker.observer.study(request(), nodes, tenants, tracker.tenancy)
        )
    except WorldUnavailable as error:
        state.polls["failed"] += 1
        if str(error) != state.last_error:
            log.warning("no telemetry: promises alone decide", error=str(error))
        state.last_error = str(error)
    else:
        state.polls["ok"] += 1
        if state.last_error:
            log.info("telemetry is back")
        state.last_error, state.covered_until = "", now
        tracker.add_findings(findings)
        _apply_unmanaged(service, findings, now)
        _apply_utilization(service, findings, now)
        tracker.tenancy.forget_before(now - _MAX_RAW_SECONDS)
    _expire_unmanaged(service, now)


def _request(service: Service, telemetry: Telemetry, now: float) -> Callable[[], Frame]:
    """Everything since the last poll; after a long gap, history."""
    tracker, settings = service.tracker, service.settings
    covered = tracker.telemetry.covered_until
    if covered is None:
        starts = [run.since for run in tracker.runs.values()] + [e.run.since for e in tracker.ended.values()]
        covered = min([now - settings.telemetry_stale_seconds, *starts])
    covered = max(covered, now - settings.telemetry_history_hours * 3600)
    if now - covered <= _MAX_RAW_SECONDS:
        return lambda: telemetry.poll(covered, now)
    # The last step of history may end before the newest samples.
    return lambda: _joined(telemetry.history(covered, now), telemetry.poll(now - settings.telemetry_stale_seconds, now))


def _joined(history: Frame, newest: Frame) -> Frame:
    return Frame(
        sorted(history.memory + newest.memory, key=lambda reading: reading.at),
        {
            counter: history.utilization.get(counter, []) + newest.utilization.get(counter, [])
            for counter in UtilizationCounter
        },
        history.faults + newest.faults,
    )


def _since(service: Service, now: float) -> Callable[[Promise], float]:
    """When a promise began, in seconds since the epoch. After a restart, the pod's start time is more exact."""
    monotonic_now = service.clock()

    def since(promise: Promise) -> float:
        pod = service.state.pods.get(promise.uid)
        started_at = pod.run.started_at if pod is not None and pod.run is not None else None
        made_at = now - max(0.0, monotonic_now - promise.made_at)
        return min(made_at, started_at) if started_at is not None else made_at

    return since


def _apply_unmanaged(service: Service, findings: Findings, now: float) -> None:
    tracker, oldest = service.tracker, now - service.settings.telemetry_stale_seconds
    changes: list[Change] = []
    for node, (at, used_mib) in findings.unmanaged_mib.items():
        if at < oldest:
            tracker.telemetry.faults[Fault.STALE] += 1
            continue
        tracker.unmanaged_at[node] = at
        changes.append(UnmanagedSeen(node, used_mib))
    if changes:
        service.apply(changes)


def _apply_utilization(service: Service, findings: Findings, now: float) -> None:
    """The newest sighting of each pod. Of a pod that is never seen, the forecast counts."""
    oldest = now - service.settings.telemetry_stale_seconds
    newest = {
        sighting.uid: (sighting.utilization.gpu_util, sighting.utilization.memory_util)
        for sighting in findings.sightings
        if sighting.utilization.gpu_util is not None and sighting.used_mib and sighting.at >= oldest
    }
    if newest:
        service.apply([UtilizationSeen(uid, share, memory) for uid, (share, memory) in newest.items()])


def _expire_unmanaged(service: Service, now: float) -> None:
    tracker, oldest = service.tracker, now - service.settings.telemetry_stale_seconds
    stale = [node for node, at in tracker.unmanaged_at.items() if at < oldest]
    for node in stale:
        del tracker.unmanaged_at[node]
    if stale:
        log.warning("telemetry is stale: promises alone decide there", nodes=len(stale), first=stale[0])
        service.apply([UnmanagedSeen(node, ()) for node in stale])
