"""The HTTP API: a FastAPI application. `/docs` and `/openapi.json` describe it."""

from __future__ import annotations

from enum import StrEnum

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from vramcast import __version__
from vramcast.api import (
    accuracy_view,
    advice_view,
    cluster_view,
    description,
    forecast_view,
    inspection,
    models,
    page,
    pods_view,
    probes,
    why_view,
)
from vramcast.api.admit import AdmissionRoute
from vramcast.api.bind import bind_pod
from vramcast.api.filter import filter_nodes
from vramcast.api.preempt import preempt_pods
from vramcast.api.prioritize import prioritize_nodes
from vramcast.api.routes import VerbRoute, error_body
from vramcast.service import Service

_ABOUT = """\
vramcast forecasts the GPU memory of deep learning tasks and places their pods.

* **kube-scheduler** calls the verbs of the extender protocol.
* **Inspection** is for people. It changes nothing.
* **Probes** are for the kubelet and Prometheus.
"""


class Surface(StrEnum):
    """What a port serves."""

    ALL = "all"  # but the webhook
    PROBES = "probes"  # may be open to the network: it changes nothing and reveals no secrets
    WEBHOOK = "webhook"
    VIEW = "view"  # what people may ask, and no verb: for `kubectl vramcast`


def new_http_app(service: Service, surface: Surface = Surface.ALL) -> FastAPI:
    app = FastAPI(
        title="vramcast",
        version=__version__,
        description=_ABOUT,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,  # FastAPI's page needs a CDN
        redoc_url=None,
        openapi_url=None,  # generated on a worker: it takes longer than a scheduler should wait
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},
        exception_handlers={HTTPException: _refuse},
    )
    app.state.service = service
    if surface is Surface.WEBHOOK:
        app.router.routes.append(AdmissionRoute(service))
        return app
    if surface is Surface.VIEW:
        for views in (inspection, cluster_view, pods_view, why_view, accuracy_view):
            app.include_router(views.router)
    if surface is Surface.ALL:
        # First, because routes are tried in order.
        app.router.routes += _verb_routes(service)
        for views in (inspection, advice_view, cluster_view, pods_view, why_view, forecast_view, accuracy_view):
            app.include_router(views.router)
        if service.settings.page:
            app.include_router(page.router)
        app.include_router(description.router)
    app.include_router(probes.router)
    return app


def _verb_routes(service: Service) -> list[VerbRoute]:
    return [
        VerbRoute(
            service, "/filter", filter_nodes, takes=models.NodeArgs, gives=models.FilterAnswer,
            summary="Which nodes fit the pod, and why the others do not",
        ),
        VerbRoute(
            service, "/prioritize", prioritize_nodes, takes=models.NodeArgs, gives=models.PrioritizeAnswer,
            summary="A score from 0 to 10 for each node",
        ),
        VerbRoute(
            service, "/bind", bind_pod, takes=models.BindArgs, gives=models.BindAnswer,
            summary="Bind the pod to the node and to GPUs of that node",
        ),
        VerbRoute(
            service, "/preempt", preempt_pods, takes=models.PreemptArgs, gives=models.PreemptAnswer,
            summary="Of the evictions that the scheduler proposes, those after which the pod would fit",
        ),
    ]  # fmt: skip


async def _refuse(request: Request, error: HTTPException) -> Response:
    """A path that does not exist, or the wrong method."""
    message = error.detail
    if error.status_code == 404:
        message = f"there is no {request.url.path[:100]}; see /docs"
    if error.status_code == 405:
        message = f"expected {(error.headers or {}).get('Allow', 'another method')}"
    return Response(error_body(message), error.status_code, error.headers, "application/json")
