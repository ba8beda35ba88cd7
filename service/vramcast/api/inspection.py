"""POST /forecast, POST /explain, GET /state, GET /records: for people. They change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from vramcast.api.wire import Reply
from vramcast.cluster.manifest import manifest_record, parse_yaml
from vramcast.errors import InvalidRequest, InvalidTask
from vramcast.forecast.report import report, report_json
from vramcast.hardware.products import PRODUCTS, base_product
from vramcast.names import NodeName, Product
from vramcast.outcomes.records import run_json, short_hash
from vramcast.placement.board import DeviceView
from vramcast.placement.ledger import Hold
from vramcast.placement.promises import Demand
from vramcast.placement.reasons import Reason, reason_text
from vramcast.service import Service
from vramcast.task.pod import PodRecord

_NODES_A_PAGE = 500
_MOST_HOLDS_SHOWN = 200
encode = msgspec.json.Encoder().encode


async def show_forecast(service: Service, body: bytes, query: Mapping[str, str]) -> Reply:
    pod = await _read_manifest(service, body)
    if pod.invalid is not None:
        raise InvalidRequest(str(pod.invalid))
    if pod.task is None:
        raise InvalidRequest("metadata.annotations: no vramcast.dev/ annotation describes a task")
    reports = await service.workers.inspection(
        report, service.forecaster, pod.task, _products(service, query.get("gpu"))
    )
    shown = {
        "pod": pod.key,
        "level": pod.task.level,
        "ask": {"resource": pod.ask.resource, "count": pod.ask.count} if pod.ask else None,
        "assumptions": pod.task.assumptions,
        "forecasts": [report_json(given) for given in reports],
    }
    return Reply(encode(shown), pod.key, decision=f"{len(reports)} products")


async def show_records(service: Service, _body: bytes, query: Mapping[str, str]) -> Reply:
    """The measured runs in memory, and each of their profiles once. `?names=true` adds the pods' names."""
    runs, named = list(service.tracker.observed), query.get("names") == "true"
    profiles = {short_hash(run.task.profile): run.task.profile for run in runs if run.task.profile}
    shown = {"runs": [run_json(run, named=named) for run in runs], "profiles": profiles}
    return Reply(encode(shown), decision=f"{len(runs)} runs")


async def explain_pod(service: Service, body: bytes, query: Mapping[str, str]) -> Reply:
    """What filter would answer now, for every GPU of every node; paged like /state."""
    pod = await _read_manifest(service, body)
    try:
        await service.make_forecasts(pod)
        demand = service.state.demand(pod)
    except InvalidTask as error:
        shown = {"pod": pod.key, "error": str(error), "policy": service.settings.undescribed, "nodes": []}
        return Reply(encode(shown), pod.key, decision=str(error))
    if demand is None or not demand.needs_mib:
        shown = {"pod": pod.key, "error": "no task is described", "policy": service.settings.undescribed, "nodes": []}
        return Reply(encode(shown), pod.key, decision="not described")
    names, next_after = _page(service, query)
    nodes = _explain_nodes(service, demand, names)
    feasible = sum(node["fits"] for node in nodes)
    answer = {
        "pod": pod.key,
        "ask": demand.ask,
        "needs_mib": demand.needs_mib,
        "feasible": feasible,
        "nodes": nodes,
        "next_after": next_after,
    }
    return Reply(encode(answer), pod.key, decision=f"would fit {feasible} of {len(nodes)} nodes")


def _page(service: Service, query: Mapping[str, str]) -> tuple[list[NodeName], NodeName | None]:
    """Nodes by name, and where the next page starts. Pages keep the pause short on a large cluster."""
    nodes = service.state.ledger.nodes
    if "node" in query:
        return [name for name in (NodeName(query["node"]),) if name in nodes], None
    names = sorted(name for name in nodes if name > query.get("after", ""))
    page = names[:_NODES_A_PAGE]
    return page, page[-1] if len(names) > len(page) else None


def _explain_nodes(service: Service, demand: Demand, names: list[NodeName]) -> list[dict[str, Any]]:
    ledger = service.state.ledger
    columns = ledger.board.columns(names)
    decision, scores = ledger.decide(demand, columns), ledger.scores(demand, columns).tolist()
    explained = []
    for name, code, points in zip(names, decision.reasons.tolist(), scores, strict=True):
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
            "gpus": [
                {"index": view.index, "size_mib": view.size_mib, "room_mib": view.room_mib, "need_mib": need_mib,
                 "short_mib": max(0, need_mib - view.room_mib)}
                for view in ledger.device_views(name) if view.pool.resource == demand.ask.resource
            ],
        })  # fmt: skip
    return explained


async def show_state(service: Service, _body: bytes, query: Mapping[str, str]) -> Reply:
    """Nodes by name in pages of 500 (?after=NAME for the next), or one node with ?node=NAME."""
    ledger = service.state.ledger
    page, next_after = _page(service, query)
    health = service.cluster.health()
    now = service.clock()
    shown = {
        "synced": service.state.synced,
        "stale_seconds": round(health.stale_seconds, 1),
        "nodes_total": len(ledger.nodes),
        "next_after": next_after,
        "nodes": [_node_json(service, name) for name in page],
        "holds_total": len(ledger.holds),
        "holds": [_hold_json(hold, now) for hold in list(ledger.holds.values())[:_MOST_HOLDS_SHOWN]],
        "unschedulable_total": len(service.state.unschedulable),
        "unschedulable": service.state.unschedulable.names(_MOST_HOLDS_SHOWN),
    }
    return Reply(encode(shown), decision=f"{len(page)} nodes")


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


def _products(service: Service, wanted: str | None) -> list[Product]:
    if wanted is not None:
        return [base_product(wanted)]
    return list(service.state.ledger.products) or list(map(Product, PRODUCTS))


async def _read_manifest(service: Service, body: bytes) -> PodRecord:
    """YAML is parsed on a worker: it is slow, and the scheduler's calls must not wait for it."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = await service.workers.inspection(parse_yaml, body)
    return manifest_record(document)
