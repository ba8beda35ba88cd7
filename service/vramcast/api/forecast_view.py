"""GET /models and POST /sweep: what the page's forecast form needs beside POST /forecast."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query

from vramcast.api import view_models
from vramcast.api.cluster_view import Search
from vramcast.api.inspection import MANIFEST, ManifestOf, described_task, products_of
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse
from vramcast.api.wire import Reply
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.step_curve import step_curve
from vramcast.forecast.sweep import parse_sweep
from vramcast.forecast.sweep_report import sweep_json, sweep_task

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Page"])
encode = msgspec.json.Encoder().encode

_MOST_MODELS = 50


@router.get(
    "/models",
    name="models",
    operation_id="models",
    summary="Models that a pod can name",
    response_model=view_models.ModelsView,
)
async def show_models(service: ServiceOf, q: Search = "") -> ReplyResponse:
    shown = await service.workers.inspection(_find_models, q)
    return ReplyResponse(Reply(encode(shown), decision=f"{shown['matching']} models"))


def _find_models(wanted: str) -> dict[str, Any]:
    """Names that begin as asked come first, then short ones."""
    catalog = builtin_catalog()
    lines = list(catalog.lines(wanted))
    first = wanted.lower().strip()

    def rank(line: Line) -> tuple[bool, bool, int, str]:
        own = line.name.lower()
        return not own.startswith(first), not own.partition("/")[2].startswith(first), len(own), own

    lines.sort(key=rank)
    return {"known": len(catalog), "matching": len(lines), "models": list(map(model_json, islice(lines, _MOST_MODELS)))}


def model_json(line: Line) -> dict[str, Any]:
    return {
        "model": line.name,
        "architecture": line.family,
        "parameters": line.parameters,
        "layers": line.layers,
        "activations": line.activations,
        "input_size": line.input_shape,
        "sequence_length": line.sequence_length,
    }


@router.post(
    "/sweep",
    name="sweep",
    operation_id="sweep",
    summary="How memory grows with the batch size or the sequence length, and the largest value that fits each GPU",
    response_model=view_models.SweepView,
    openapi_extra=MANIFEST,
)
async def show_sweep(
    service: ServiceOf,
    pod: ManifestOf,
    over: Annotated[str, Query(max_length=200, description="as `vramcast forecast --sweep` takes it")] = (
        "batch-size=1..256"
    ),
    gpu: Annotated[str | None, Query(max_length=100, description="default: those of the cluster")] = None,
    largest: Annotated[bool, Query(description="search for the largest values, which takes seconds")] = True,
) -> ReplyResponse:
    task, sweep = described_task(pod), parse_sweep(over)
    products = products_of(service, gpu)
    report = await service.workers.inspection(sweep_task, service.forecaster, task, products, sweep, largest)
    return ReplyResponse(Reply(encode(sweep_json(report)), pod.key, decision=over))


@router.post(
    "/step",
    name="step",
    operation_id="step",
    summary="Memory over a training step, for a task that is described by a recording",
    response_model=view_models.StepView,
    openapi_extra=MANIFEST,
)
async def show_step(service: ServiceOf, pod: ManifestOf) -> ReplyResponse:
    curve = await service.workers.inspection(step_curve, described_task(pod))
    return ReplyResponse(Reply(encode({"step": curve}), pod.key, decision="recorded" if curve else "not recorded"))
