"""POST /forecast, POST /explain, GET /state, GET /records: for people. They change nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Query, Request

from vramcast.api import models
from vramcast.api.counters import show_counters
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse, read_body
from vramcast.api.wire import Reply
from vramcast.cluster.manifest import manifest_record, parse_yaml
from vramcast.errors import InvalidInput, InvalidRequest, InvalidTask
from vramcast.forecast.report import report, report_json
from vramcast.hardware.products import PRODUCTS
from vramcast.hardware.short_names import find_product
from vramcast.hardware.utilization import Utilization
from vramcast.names import NodeName, Product
from vramcast.outcomes.records import run_json, short_hash
from vramcast.placement.board import DeviceView
from vramcast.placement.ledger import Hold
from vramcast.placement.name_index import Ints
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason, reason_text
from vramcast.service import Service
from vramcast.task.pod import PodRecord
from vramcast.task.task import Task

_NODES_A_PAGE = 500
_MOST_HOLDS_SHOWN = 200
encode = msgspec.json.Encoder().encode

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Inspection"])

MANIFEST = {
    "requestBody": {
        "required": True,
        "description": "a manifest of a pod, or of something that makes pods, as JSON or YAML",
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/PodManifest"}},
            "application/yaml": {"schema": {"type": "string"}},
        },
    }
}


async def read_manifest(
    request: Request,
    service: ServiceOf,
    template: Annotated[
        str | None, Query(max_length=100, description="role of the pod template, where a workload has several")
    ] = None,
) -> PodRecord:
    """YAML is parsed on a worker: it is slow, and the scheduler's calls must not wait for it."""
    body = await read_body(request.receive)
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = await service.workers.inspection(parse_yaml, body)
    return manifest_record(document, template)


async def choose_page(
    service: ServiceOf,
    node: Annotated[str | None, Query(description="only this node")] = None,
    after: Annotated[str, Query(description="nodes after this name; take it from `next_after`")] = "",
) -> NodePage:
    """Nodes by name, and where the next page starts. Pages keep the pause short on a large cluster."""
    nodes = service.state.ledger.nodes
    if node is not None:
        return NodePage([name for name in (NodeName(node),) if name in nodes], None)
    names = sorted(name for name in nodes if name > after)
    page = names[:_NODES_A_PAGE]
    return NodePage(page, page[-1] if len(names) > len(page) else None)


@dataclass(frozen=True, slots=True)
class NodePage:
    names: list[NodeName]
    next_after: NodeName | None


ManifestOf = Annotated[PodRecord, Depends(read_manifest)]
PageOf = Annotated[NodePage, Depends(choose_page)]


def described_task(pod: PodRecord) -> Task:
    """Raises InvalidRequest."""
    if pod.invalid is not None:
        raise InvalidRequest(str(pod.invalid))
    if pod.task is None:
        raise InvalidRequest("metadata.annotations: no vramcast.dev/ annotation describes a task")
    return pod.task


@router.post(
    "/forecast",
    name="forecast",
    operation_id="forecast",
    summary="What the pod needs on each GPU product",
    response_model=models.ForecastAnswer,
    openapi_extra=MANIFEST,
)
async def show_forecast(
    service: ServiceOf,
    pod: ManifestOf,
    gpu: Annotated[str | None, Query(description="such as L40S or a100-80; default: those of the cluster")] = None,
) -> ReplyResponse:
    task = described_task(pod)
    reports = await service.workers.inspection(report, service.forecaster, task, products_of(service, gpu))
    shown = {
        "pod": pod.key,
        "level": task.level,
        "ask": {"resource": pod.ask.resource, "count": pod.ask.count} if pod.ask else None,
        "assumptions": task.assumptions,
        "forecasts": [report_json(given) for given in reports],
    }
    return ReplyResponse(Reply(encode(shown), pod.key, decision=f"{len(reports)} products"))


@router.get(
    "/records",
    name="records",
    operation_id="records",
    summary="The measured runs in memory, and each of their profiles once",
    response_model=models.RecordsAnswer,
)
async def show_records(
    service: ServiceOf, names: Annotated[bool, Query(description="add the names of the pods")] = False
) -> ReplyResponse:
    runs = list(service.tracker.observed)
    profiles = {short_hash(run.task.profile): run.task.profile for run in runs if run.task.profile}
    shown = {"runs": [run_json(run, named=names) for run in runs], "profiles": profiles}
    return ReplyResponse(Reply(encode(shown), decision=f"{len(runs)} runs"))


@router.post(
    "/explain",
    name="explain",
    operation_id="explain",
    summary="What filter would answer now, for every GPU of every node, in pages of 500 nodes",
    response_model=models.ExplainAnswer,
    openapi_extra=MANIFEST,
)
async def explain_pod(service: ServiceOf, pod: ManifestOf, page: PageOf) -> ReplyResponse:
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask as error:
        shown = {"pod": pod.key, "error": str(error), "policy": service.settings.undescribed, "nodes": []}
        return ReplyResponse(Reply(encode(shown), pod.key, decision=str(error)))
    if demand is None or not demand.needs_mib or pod.claims:
        why = "another system hands out its GPU" if pod.claims else "no task is described"
        shown = {"pod": pod.key, "error": why, "policy": service.settings.undescribed, "nodes": []}
        return ReplyResponse(Reply(encode(shown), pod.key, decision=why))
    nodes = _explain_nodes(service, demand, page.names)
    feasible = sum(node["fits"] for node in nodes)
    answer = {
        "pod": pod.key,
        "ask": demand.ask,
        "needs_mib": demand.needs_mib,
        "utilization": _utilization(service, pod, demand),
        "counters": show_counters(service),
        "feasible": feasible,
        "nodes": nodes,
        "next_after": page.next_after,
    }
    return ReplyResponse(Reply(encode(answer), pod.key, decision=f"would fit {feasible} of {len(nodes)} nodes"))


def _utilization(service: Service, pod: PodRecord, demand: Demand) -> dict[Product, Utilization]:
    """From the cache: the demand has just been forecast."""
    if pod.task is None:
        return {}
    return {product: service.forecaster.forecast(pod.task, product).utilization for product in demand.needs_mib}


def _explain_nodes(service: Service, demand: Demand, names: list[NodeName]) -> list[dict[str, Any]]:
    ledger = service.state.ledger
    columns = ledger.board.columns(names)
    decision, scores = ledger.decide(demand, columns), ledger.scores(demand, columns).tolist()
    terms = _score_terms(service, demand, columns)
    explained = []
    for position, (name, code, points) in enumerate(zip(names, decision.reasons.tolist(), scores, strict=True)):
        reason = Reason(code)
        pool = ledger.nodes[name].pool(demand.ask.resource)
        need_mib = demand.needs_mib[pool.product] if pool else 0
        explained.append({
            "node": name,
            "fits": reason is Reason.FITS,
            "reason": reason.label,
            "text": reason_text(reason, need_mib, demand.ask.count, demand.ask.resource) if reason else "",
            "problem": ledger.nodes[name].problem,
            "score": points,
            "terms": terms[position] if terms and decision.fits[position] else None,
            "gpus": [
                {"index": view.index, "size_mib": view.size_mib, "room_mib": view.room_mib, "need_mib": need_mib,
                 "short_mib": max(0, need_mib - view.room_mib)}
                for view in ledger.device_views(name) if view.pool.resource == demand.ask.resource
            ],
        })  # fmt: skip
    return explained


def _score_terms(service: Service, demand: Demand, columns: Ints) -> list[dict[str, float]]:
    """Of each node; empty if no node has such a resource."""
    ledger = service.state.ledger
    found, ranking = ledger.score_terms(demand, columns), ledger.board.ranking
    if found is None:
        return []
    worths = found.worth(ranking)
    rows = zip(
        found.packing.tolist(), found.node_packing.tolist(), found.slowdown.tolist(), worths.tolist(), strict=True
    )
    return [
        {
            "packing": round(packing, 3),
            "node_packing": round(node_packing, 3),
            "slowdown": round(slowdown, 3),
            "slowdown_weight": ranking.slowdown_weight,
            "harmless_slowdown": ranking.harmless_slowdown,
            "node_weight": ranking.node_weight,
            "worth": round(worth, 4),
        }
        for packing, node_packing, slowdown, worth in rows
    ]


@router.get(
    "/state",
    name="state",
    operation_id="state",
    summary="What is promised and held on each GPU, in pages of 500 nodes",
    response_model=models.StateAnswer,
)
async def show_state(service: ServiceOf, page: PageOf) -> ReplyResponse:
    ledger = service.state.ledger
    health = service.cluster.health()
    now = service.clock()
    shown = {
        "synced": service.state.synced,
        "stale_seconds": round(health.stale_seconds, 1),
        "nodes_total": len(ledger.nodes),
        "next_after": page.next_after,
        "nodes": [_node_json(service, name) for name in page.names],
        "holds_total": len(ledger.holds),
        "holds": [_hold_json(hold, now) for hold in list(ledger.holds.values())[:_MOST_HOLDS_SHOWN]],
        "unschedulable_total": len(service.state.unschedulable),
        "unschedulable": service.state.unschedulable.names(_MOST_HOLDS_SHOWN),
    }
    return ReplyResponse(Reply(encode(shown), decision=f"{len(page.names)} nodes"))


def _node_json(service: Service, name: NodeName) -> dict[str, Any]:
    ledger = service.state.ledger
    node, views = ledger.nodes[name], ledger.device_views(name)
    return {
        "name": name,
        "sharing": node.sharing,
        **({"tainted": node.tainted} if node.sharing else {}),
        "problem": node.problem,
        "pools": [
            {
                "resource": pool.resource,
                "product": pool.product,
                "devices": pool.count * pool.replicas,
                "replicas": pool.replicas,
                "gpus": [_device_json(view) for view in views if view.pool is pool],
            }
            for pool in node.pools
        ],
        "misplaced_pods": [
            {"pod": p.pod, "resource": p.resource, "devices": p.count}
            for p in ledger.promises_on(name)
            if node.misplaces(p.resource)
        ],
    }


def _device_json(view: DeviceView) -> dict[str, Any]:
    return {
        "index": view.index,
        "size_mib": view.size_mib,
        "promised_mib": sum((p.need_mib or 0) for p in view.promises),
        "held_mib": view.held_mib,
        "unmanaged_mib": view.unmanaged_mib,
        "room_mib": view.room_mib,
        **({"free_devices": view.free_devices} if view.pool.picked_by_kubelet else {}),
        "pods": [{"pod": p.pod, "need_mib": p.need_mib, "state": p.state, "devices": p.count} for p in view.promises],
    }


def _hold_json(hold: Hold, now: float) -> dict[str, Any]:
    return {
        "pod": hold.pod,
        "resource": hold.resource,
        "need_mib": int(hold.needs_mib.max(initial=0)),
        "nodes": len(hold.columns),
        "expires_in_seconds": round(hold.expires_at - now, 1),
    }


def products_of(service: Service, wanted: str | None) -> list[Product]:
    """Raises InvalidRequest for a name that means no product."""
    if wanted is not None:
        try:
            return [find_product(wanted, service.state.ledger.products)]
        except InvalidInput as error:
            raise InvalidRequest(str(error)) from None
    return list(service.state.ledger.products) or list(map(Product, PRODUCTS))
