"""GET /pods/NAMESPACE/NAME/nodes: what filter would answer about a known pod, node by node."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from vramcast.api import models
from vramcast.api.cluster_view import in_slices
from vramcast.api.inspection import PageOf, explain_pod
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Inspection"])

_SLICE = 200


@router.get(
    "/pods/{namespace}/{name}/nodes",
    name="pod_nodes",
    operation_id="pod_nodes",
    summary="What filter would answer now about a pod of the cluster, in pages of 500 nodes",
    response_model=models.ExplainAnswer,
    responses={404: ERRORS[400]},
)
async def explain_known_pod(service: ServiceOf, namespace: str, name: str, page: PageOf) -> ReplyResponse:
    """As POST /explain, for a client that need not send the pod."""
    key = f"{namespace}/{name}"
    async for pod in in_slices(service, list(service.state.pods.values()), _SLICE):
        if pod.key == key:
            return await explain_pod(service, pod, page)
    raise HTTPException(404, f"vramcast knows no pod {key} that uses a GPU")
