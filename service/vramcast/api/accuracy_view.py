"""GET /accuracy: what was promised, what was used, and what was learned from it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from vramcast.api import view_models
from vramcast.api.cluster_view import show_status
from vramcast.api.counters import show_counters
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse
from vramcast.api.wire import Reply
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.outcomes.accuracy import Accuracy, Group, GroupAccuracy
from vramcast.outcomes.calibration import CellState
from vramcast.outcomes.oom_history import ABOVE, OomRecord
from vramcast.outcomes.outcome import Outcome
from vramcast.service import Service
from vramcast.task.quantity import ceil_mib
from vramcast.task.run_status import Ending

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Page"])
encode = msgspec.json.Encoder().encode


@router.get(
    "/accuracy",
    name="accuracy",
    operation_id="accuracy",
    summary="Promised against used memory, by group and run, and what calibration has learned",
    response_model=view_models.AccuracyView,
)
async def show_accuracy(request: Request, service: ServiceOf) -> ReplyResponse:
    accuracy, learned = service.tracker.accuracy, service.learned()
    shown = {
        "status": await show_status(request, service),
        "calibration": learned.mode,
        "models": {model.role: model.version for model in learned.models},
        "groups": [_group(group, each) for group, each in sorted(accuracy.groups.items())],
        "counters": [{**shown, **_error(accuracy, shown["counter"])} for shown in show_counters(service)],
        "unmeasured": {why.value: count for why, count in accuracy.unmeasured.items()},
        "outcomes": [_outcome(outcome) for outcome in reversed(accuracy.latest)],
        "cells": [_cell(service, cell) for cell in learned.cells],
        "ooms": [_oom(record) for record in learned.ooms],
    }
    return ReplyResponse(Reply(encode(shown), decision=f"{len(accuracy.latest)} outcomes"))


def _error(accuracy: Accuracy, counter: str) -> dict[str, Any]:
    tallies = [group.utilization[UtilizationCounter(counter)] for group in accuracy.groups.values()]
    runs = sum(sum(tally.counts) for tally in tallies)
    return {"runs": runs, "mean_error": sum(tally.total for tally in tallies) / runs if runs else None}


def _group(group: Group, accuracy: GroupAccuracy) -> dict[str, Any]:
    coverage, promised = accuracy.coverage
    measured = sum(accuracy.reservation.counts)
    return {
        "family": group.family,
        "level": group.level,
        "product": group.product,
        "outcomes": accuracy.endings.total(),
        "ooms": accuracy.endings[Ending.OOM],
        "coverage": coverage,
        "promised": promised,
        "bias": accuracy.bias,
        "over_reservation": accuracy.reservation.total / measured if measured else None,
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {
        "pod": outcome.pod,
        "family": outcome.family,
        "level": outcome.level,
        "product": outcome.product,
        "median_bytes": outcome.median_bytes,
        "bound_bytes": outcome.bound_bytes,
        "peak_bytes": outcome.peak_bytes,
        "risk": outcome.risk,
        "ending": outcome.ending.value,
        "kept": outcome.covered,
        "ended_at": outcome.ended_at,
    }


def _cell(service: Service, cell: CellState) -> dict[str, Any]:
    return {
        "product": cell.product,
        "family": cell.family,
        "outcomes": cell.outcomes,
        "misses": cell.misses,
        "ooms": cell.ooms,
        "median_factor": math.exp(cell.median_correction),
        "bound_factor": math.exp(cell.correction(service.settings.default_oom_risk)),
    }


def _oom(record: OomRecord) -> dict[str, Any]:
    namespace, owner, _ = record.task
    floor_mib = ceil_mib(round(record.short_bytes * ABOVE))
    return {
        "namespace": namespace,
        "owner": owner,
        "short_bytes": record.short_bytes,
        "floor_mib": floor_mib,
        "died_at": record.died_at,
    }
