"""Looking at telemetry, again and again: unmanaged memory onto the board, what pods used into their runs, and runs
that ended into outcomes.

The network and the study of a look run on a worker; what they found is applied on the event loop. Nothing here stands
in the scheduler's way: without telemetry, promises alone decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from vramcast.cluster.telemetry import Telemetry
from vramcast.controllers.run_endings import catch_up, close_runs
from vramcast.errors import WorldUnavailable
from vramcast.outcomes.observation import Findings
from vramcast.outcomes.readings import Fault, Frame
from vramcast.placement.changes import Change, UnmanagedMemorySeen
from vramcast.placement.promises import Promise
from vramcast.service import Service

# What happened longer ago is read as history, more coarsely: an answer stays small whatever was missed.
_MOST_RAW_SECONDS = 600.0

log = structlog.get_logger("vramcast")


async def keep_polling(service: Service, telemetry: Telemetry | None) -> None:
    """Until cancelled. A fault in one look is logged, and the next one tries again."""
    service.measuring.state.configured = telemetry is not None
    while True:
        try:
            await poll(service, telemetry)
        except Exception:
            log.exception("a telemetry poll failed, trying again")
        await asyncio.sleep(service.settings.telemetry_interval_seconds)


async def poll(service: Service, telemetry: Telemetry | None) -> None:
    """One look, and what follows from it."""
    if service.state.synced:
        await catch_up(service)
        if telemetry is not None:
            await _read(service, telemetry)
        await close_runs(service)


async def _read(service: Service, telemetry: Telemetry) -> None:
    measuring = service.measuring
    now = measuring.wall()
    measuring.update_tenants(service.state.ledger.promises(), _since(service, now))
    try:
        findings: Findings = await service.offload(_study, service, _asking(service, telemetry, now))
    except WorldUnavailable as error:
        measuring.state.polls["failed"] += 1
        if str(error) != measuring.state.last_error:
            log.warning("no telemetry: promises alone decide", error=str(error))
        measuring.state.last_error = str(error)
    else:
        measuring.state.polls["ok"] += 1
        if measuring.state.last_error:
            log.info("telemetry is back")
        measuring.state.last_error, measuring.state.covered_until = "", now
        measuring.take(findings)
        _apply_unmanaged(service, findings, now)
        measuring.tenancy.forget_before(now - _MOST_RAW_SECONDS)
    _expire_unmanaged(service, now)


def _asking(service: Service, telemetry: Telemetry, now: float) -> Callable[[], Frame]:
    """What to ask for: what came since the last look, or, after a long time without, history."""
    measuring, settings = service.measuring, service.settings
    covered = measuring.state.covered_until
    if covered is None:
        starts = [run.since for run in measuring.runs.values()] + [e.run.since for e in measuring.ended.values()]
        covered = min([now - settings.telemetry_stale_seconds, *starts])
    covered = max(covered, now - settings.telemetry_history_hours * 3600)
    if now - covered <= _MOST_RAW_SECONDS:
        return lambda: telemetry.poll(covered, now)
    # The newest samples too: steps of history may end before them.
    return lambda: _joined(telemetry.history(covered, now), telemetry.poll(now - settings.telemetry_stale_seconds, now))


def _joined(history: Frame, newest: Frame) -> Frame:
    return Frame(
        sorted(history.memory + newest.memory, key=lambda reading: reading.at),
        history.utilization + newest.utilization,
        history.faults + newest.faults,
    )


def _study(service: Service, ask: Callable[[], Frame]) -> Findings:
    """On a worker: on copies of what the event loop goes on changing."""
    measuring = service.measuring
    nodes, tenants = dict(service.state.ledger.nodes), measuring.tenancy.by_node()
    return measuring.observer.study(ask(), nodes, tenants, measuring.tenancy)


def _since(service: Service, now: float) -> Callable[[Promise], float]:
    """A promise's time is that of another clock, and after a restart the pod itself knows better."""
    monotonic_now = service.clock()

    def since(promise: Promise) -> float:
        pod = service.state.pods.get(promise.uid)
        started_at = pod.run.started_at if pod is not None and pod.run is not None else None
        made_at = now - max(0.0, monotonic_now - promise.made_at)
        return min(made_at, started_at) if started_at is not None else made_at

    return since


def _apply_unmanaged(service: Service, findings: Findings, now: float) -> None:
    measuring, oldest = service.measuring, now - service.settings.telemetry_stale_seconds
    changes: list[Change] = []
    for node, (at, used_mib) in findings.unmanaged_mib.items():
        if at < oldest:
            measuring.state.faults[Fault.STALE] += 1
            continue
        measuring.unmanaged_at[node] = at
        changes.append(UnmanagedMemorySeen(node, used_mib))
    if changes:
        service.apply(changes)


def _expire_unmanaged(service: Service, now: float) -> None:
    """What nobody has confirmed for too long is not known any more."""
    measuring, oldest = service.measuring, now - service.settings.telemetry_stale_seconds
    stale = [node for node, at in measuring.unmanaged_at.items() if at < oldest]
    for node in stale:
        del measuring.unmanaged_at[node]
    if stale:
        log.warning("telemetry is stale: promises alone decide there", nodes=len(stale), first=stale[0])
        service.apply([UnmanagedMemorySeen(node, ()) for node in stale])
