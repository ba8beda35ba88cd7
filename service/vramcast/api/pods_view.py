"""GET /pods and GET /pods/NAMESPACE/NAME: what waits and why, what runs, what has ended."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.exceptions import HTTPException

from vramcast.api import view_models
from vramcast.api.advice import advise, invalid
from vramcast.api.cluster_view import Limit, Offset, Search, in_slices, is_running, show_status
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse
from vramcast.api.wire import Reply, reason_texts
from vramcast.errors import InvalidTask
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_tracker import EndedRun
from vramcast.outcomes.runs import Run
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason, reason_text
from vramcast.placement.remedies import REMEDIES
from vramcast.service import Service
from vramcast.settings import UndescribedPolicy
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB, ceil_mib
from vramcast.task.task import describe
from vramcast.task.vocabulary import PREFIX
from vramcast.task.words import task_words

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Page"])
encode = msgspec.json.Encoder().encode

Known = PodRecord | EndedRun | Outcome
_STATES = ("waiting", "placed", "running", "done")  # in the order of the page
# These say most: the others are nodes that the pod could not use anyway.
_ABOUT_MEMORY = frozenset(
    reason.label for reason in (Reason.NO_ROOM, Reason.TOO_SMALL, Reason.HELD, Reason.UNMANAGED, Reason.MIXED)
)
# So many pods are looked at before other calls are answered: about 0.1 ms of work.
_SLICE = 200


@router.get(
    "/pods",
    name="pods",
    operation_id="pods",
    summary="Pods that wait, run or have ended, in windows",
    response_model=view_models.PodsView,
)
async def show_pods(
    request: Request,
    service: ServiceOf,
    state: Annotated[Literal["all", "waiting", "placed", "running", "done"], Query()] = "all",
    q: Search = "",
    offset: Offset = 0,
    limit: Limit = 40,
) -> ReplyResponse:
    found = await _find(service, state, q.lower())
    lines = [await _line(service, pod) async for pod in in_slices(service, found[offset : offset + limit], 3)]
    shown = {
        "status": await show_status(request, service),
        "matching": len(found),
        "offset": offset,
        "pods": lines,
    }
    return ReplyResponse(Reply(encode(shown), decision=f"{len(lines)} pods"))


@router.get(
    "/pods/{namespace}/{name}",
    name="pod",
    operation_id="pod",
    summary="One pod: its forecast and its use, or why it waits and what would have to change",
    response_model=view_models.PodView,
    responses={404: ERRORS[400]},
)
async def show_pod(request: Request, service: ServiceOf, namespace: str, name: str) -> ReplyResponse:
    key = f"{namespace}/{name}"
    found = [pod async for pod in in_slices(service, list(_known(service)), _SLICE) if _key(pod) == key]
    if not found:
        raise HTTPException(404, f"vramcast knows no pod {namespace}/{name} that uses a GPU")
    pod = min(found, key=lambda each: _STATES.index(_state(service, each)))
    line = await _line(service, pod)
    record = _record(pod)
    advice: list[dict[str, Any]] = []
    needs: dict[str, int] = {}
    error = ""
    if record is not None and line["state"] == "waiting":
        try:
            demand = await _demand(service, record)
            if demand is not None and demand.needs_mib:
                needs = {str(product): need for product, need in demand.needs_mib.items()}
                advice = [] if record.claims else await advise(service, record, demand)
        except InvalidTask as mistake:
            error, advice = str(mistake), invalid(mistake)
    shown = {
        "status": await show_status(request, service),
        "pod": line,
        "annotations": _annotations(record),
        "needs_mib": needs,
        "owner": record.owner if record else pod.owner if isinstance(pod, Outcome) else "",
        "advice": advice,
        "error": error,
    }
    return ReplyResponse(Reply(encode(shown), f"{namespace}/{name}", decision=line["state"]))


def _known(service: Service) -> Iterator[Known]:
    """Waiting and bound pods, then those that ended, newest first."""
    yield from service.state.pods.values()
    yield from reversed(list(service.tracker.ended.values()))
    yield from reversed(service.tracker.accuracy.latest)


async def _find(service: Service, state: str, wanted: str) -> list[Known]:
    """By state, and those of one state as they came."""
    found: dict[str, list[Known]] = {each: [] for each in _STATES}
    async for pod in in_slices(service, list(_known(service)), _SLICE):
        of_pod = _state(service, pod)
        if state in ("all", of_pod) and (not wanted or wanted in _key(pod).lower()):
            found[of_pod].append(pod)
    return list(chain.from_iterable(found.values()))


def _state(service: Service, pod: Known) -> str:
    if not isinstance(pod, PodRecord):
        return "done"
    if pod.node is None:
        return "waiting"
    return "running" if is_running(service.tracker.runs.get(pod.uid)) else "placed"


def _key(pod: Known) -> str:
    return pod.run.pod.key if isinstance(pod, EndedRun) else pod.pod if isinstance(pod, Outcome) else pod.key


def _record(pod: Known) -> PodRecord | None:
    return pod if isinstance(pod, PodRecord) else pod.run.pod if isinstance(pod, EndedRun) else None


def _annotations(record: PodRecord | None) -> dict[str, str]:
    task = record.task if record else None
    return {PREFIX + key: value for key, value in task_words(task).items()} if task else {}


async def _line(service: Service, pod: Known) -> dict[str, Any]:
    if isinstance(pod, Outcome):
        return _outcome_line(pod)
    record = _record(pod)
    if record is None:
        raise TypeError(pod)
    run = pod.run if isinstance(pod, EndedRun) else service.tracker.runs.get(record.uid)
    promise = service.state.ledger.promise_of(record.uid)
    state = _state(service, pod)
    line = {
        "pod": record.key,
        "state": state,
        "task": _task(record),
        "level": record.task.level if record.task else "",
        "resource": record.ask.resource if record.ask else "",
        "devices": record.ask.count if record.ask else 0,
        "node": record.node or "",
        "gpus": list(promise.gpu_indices) if promise else [],
        "product": service.state.product_of(record),
        "need_mib": promise.need_mib if promise else None,
        "median_mib": None,
        "used_mib": None,
        "peak_mib": None,
        "since": None,
        "ending": "ended" if state == "done" else "",
        "kept": None,
        "reasons": await _reasons(service, record) if state == "waiting" else [],
    }
    return line | (_use(run) if run is not None else {})


def _task(record: PodRecord) -> str:
    if record.invalid is not None:
        return "annotations that are not understood"
    return describe(record.task) if record.task else ""


def _use(run: Run) -> dict[str, Any]:
    bound = ceil_mib(run.bound_bytes) if run.bound_bytes is not None else None
    return {
        "median_mib": ceil_mib(run.median_bytes) if run.median_bytes is not None else None,
        "used_mib": run.last_mib,
        "peak_mib": run.peak_mib if run.last_at is not None else None,
        "since": run.since,
        **({"need_mib": bound} if bound is not None else {}),
    }


def _outcome_line(outcome: Outcome) -> dict[str, Any]:
    return {
        "pod": outcome.pod, "state": "done", "task": outcome.family, "level": outcome.level, "resource": "",
        "devices": 0, "node": "", "gpus": [], "product": outcome.product, "need_mib": ceil_mib(outcome.bound_bytes),
        "median_mib": ceil_mib(outcome.median_bytes), "used_mib": None, "peak_mib": outcome.peak_bytes // MIB,
        "since": outcome.ended_at, "ending": outcome.ending.value, "kept": outcome.covered, "reasons": [],
    }  # fmt: skip


async def _demand(service: Service, pod: PodRecord) -> Demand | None:
    await service.make_forecasts(pod)
    return service.state.demand(pod)


async def _reasons(service: Service, pod: PodRecord) -> list[dict[str, Any]]:
    """As filter would group them now."""
    ledger = service.state.ledger
    try:
        demand = await _demand(service, pod)
    except InvalidTask as error:
        return [_reason(Reason.INVALID_TASK, f"task description: {error}", len(ledger.nodes))]
    if demand is None or pod.claims:
        return []
    if not demand.needs_mib and pod.task is None:
        policy = service.settings.undescribed
        reject = policy is UndescribedPolicy.REJECT
        return [_reason(Reason.UNDESCRIBED, reason_text(Reason.UNDESCRIBED), len(ledger.nodes))] if reject else []
    decision = ledger.decide(demand, ledger.board.columns(ledger.nodes))
    if decision.fits.any():
        return []
    counts = decision.counts()
    texts = reason_texts(demand, [reason for reason in counts if reason is not Reason.FITS])
    listed = [_reason(reason, texts[reason], nodes) for reason, nodes in counts.items() if reason in texts]
    return sorted(listed, key=lambda each: (each["reason"] not in _ABOUT_MEMORY, -each["nodes"]))


def _reason(reason: Reason, text: str, nodes: int) -> dict[str, Any]:
    return {"reason": reason.label, "text": text, "nodes": nodes, "remedy": REMEDIES[reason]}
