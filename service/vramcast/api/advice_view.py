"""POST /advise: what would make a pod fit, and the lines to change. For people; it changes nothing."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query

from vramcast.advice.report import advice_json
from vramcast.advice.search import GpuAdvice, Room, advise, parse_keep, whole
from vramcast.api import advice_models
from vramcast.api.inspection import MANIFEST, ManifestOf, described_task, products_of
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse
from vramcast.api.wire import Reply
from vramcast.errors import InvalidInput, InvalidRequest
from vramcast.forecast.report import COMMON_PRODUCTS, usable_mib
from vramcast.names import Product
from vramcast.service import Service
from vramcast.task.task import Task

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Inspection"])
encode = msgspec.json.Encoder().encode

# Each forecast takes about 10 ms of a thread that the scheduler's own forecasts may need.
_MOST_TRIED = 150
_MOST_PRODUCTS = 3


@router.post(
    "/advise",
    name="advise",
    operation_id="advise",
    summary="What would make the pod fit a GPU, the cheapest change first, with the lines to change",
    response_model=advice_models.AdviseAnswer,
    openapi_extra=MANIFEST,
)
async def show_advice(
    service: ServiceOf,
    pod: ManifestOf,
    gpu: Annotated[
        str | None, Query(max_length=100, description="such as L40S or a100-80; default: the cluster's largest")
    ] = None,
    keep: Annotated[str, Query(max_length=500, description="annotations that must stay, separated by commas")] = "",
) -> ReplyResponse:
    task = described_task(pod)
    try:
        kept, rooms = parse_keep([keep]), _rooms(service, gpu)
    except InvalidInput as error:
        raise InvalidRequest(str(error)) from None
    found = await service.workers.inspection(_advise, service, task, rooms, kept)
    shown = {"pod": pod.key, "level": task.level, "advice": [advice_json(advice) for advice in found]}
    proposals = sum(len(advice.proposals) for advice in found)
    return ReplyResponse(Reply(encode(shown), pod.key, decision=f"{proposals} proposals"))


def _rooms(service: Service, gpu: str | None) -> list[Room]:
    """Empty GPUs: what is free now is what the page's advice is about."""
    known = [product for product in products_of(service, gpu) if usable_mib(product) is not None]
    if gpu is not None and not known:
        whole(products_of(service, gpu)[0])  # says that its memory is unknown
    return sorted(map(whole, known), key=lambda room: -room.mib)[:_MOST_PRODUCTS]


def _advise(service: Service, task: Task, rooms: list[Room], keep: frozenset[str]) -> list[GpuAdvice]:
    here = [product for product in service.state.ledger.products if usable_mib(product) is not None]
    others = [whole(Product(product)) for product in dict.fromkeys((*here, *COMMON_PRODUCTS))]
    return [advise(service.forecaster, task, room, keep, others, _MOST_TRIED) for room in rooms]
