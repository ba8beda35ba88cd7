"""Probes for the kubelet, metrics for Prometheus. They reveal no secrets and change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse, Response

from vramcast.errors import NotSynced
from vramcast.service import Service

router = APIRouter(tags=["Probes"])


def get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


ServiceOf = Annotated[Service, Depends(get_service)]


class MetricsResponse(Response):
    media_type = "text/plain; version=0.0.4; charset=utf-8"


def probe(path: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A GET route that also answers HEAD, which the description leaves out."""

    def add(endpoint: Callable[..., Any]) -> Callable[..., Any]:
        router.add_api_route(path, endpoint, methods=["GET"], **options)
        router.add_api_route(path, endpoint, methods=["HEAD"], include_in_schema=False, **options)
        return endpoint

    return add


@probe("/healthz", summary="The process answers", response_class=PlainTextResponse)
async def healthz() -> Response:
    return PlainTextResponse("ok\n")


@probe(
    "/readyz",
    summary="The state of the cluster is known",
    response_class=PlainTextResponse,
    responses={503: {"description": "It is not known, or stale", "content": {"text/plain": {}}}},
)
async def readyz(service: ServiceOf) -> Response:
    try:
        service.check_synced()
    except NotSynced as error:
        return PlainTextResponse(f"{error}\n", 503)
    return PlainTextResponse("ready\n")


@probe("/metrics", summary="Metrics, in the text format of Prometheus", response_class=MetricsResponse)
async def metrics(service: ServiceOf) -> Response:
    return MetricsResponse(service.metrics.render())
