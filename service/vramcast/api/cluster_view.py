"""GET /cluster: every GPU as a bar, with totals. Behind the page's first view.

The page asks once a second, so the cost is bounded: sums are made once for all clients and take at most 2 % of the
time, nodes come in windows, and everything is done in slices between which the scheduler's calls are answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request

from vramcast import __version__
from vramcast.api import view_models
from vramcast.api.probes import ServiceOf
from vramcast.api.routes import ERRORS, InspectionRoute, ReplyResponse
from vramcast.api.wire import Reply
from vramcast.names import NodeName
from vramcast.outcomes.run_tracker import RunTracker
from vramcast.placement.board import DeviceView
from vramcast.placement.gpus import Pool
from vramcast.placement.promises import Promise
from vramcast.service import Service

router = APIRouter(route_class=InspectionRoute, responses=ERRORS, tags=["Page"])

# Each of these slices is about 0.1 ms of work.
_NODES_SUMMED = 20
_NODES_SHOWN = 2
_PODS_COUNTED = 400
# Sums are made anew after a second, or after this many times what they took: 4 s for 5,000 nodes with 40,000 pods.
_SUMS_SECONDS = 1.0
_REST = 50
MOST_LINES = 100
T = TypeVar("T")
GpuBarJson = dict[str, Any]
encode = msgspec.json.Encoder().encode

Offset = Annotated[int, Query(ge=0, le=1_000_000, description="lines to skip")]
Limit = Annotated[int, Query(ge=1, le=MOST_LINES, description="lines to show")]
Search = Annotated[str, Query(max_length=253, description="text to look for in names")]


@dataclass(slots=True)
class Sums:
    gpus: int = 0
    size_mib: int = 0
    promised_mib: int = 0
    used_mib: int = 0
    unmanaged_mib: int = 0


@dataclass(slots=True)
class OneProduct(Sums):
    product: str = ""
    nodes: int = 0


@dataclass(slots=True)
class Totals:
    """`good_until`: on the service's clock."""

    good_until: float = 0.0
    all: Sums = field(default_factory=Sums)
    products: dict[str, OneProduct] = field(default_factory=dict)
    pods: dict[str, int] = field(default_factory=dict)


class Totalling:
    """Sums over all nodes and pods, at most once a second, however many clients ask."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._known: Totals | None = None

    async def get(self) -> Totals:
        async with self._lock:
            clock = self._service.clock
            started = clock()
            if self._known is None or started >= self._known.good_until:
                self._known = await self._sum()
                self._known.good_until = started + max(_SUMS_SECONDS, _REST * (clock() - started))
            return self._known

    async def _sum(self) -> Totals:
        service, totals = self._service, Totals()
        ledger, runs = service.state.ledger, service.tracker.runs
        async for name in in_slices(service, list(ledger.nodes), _NODES_SUMMED):
            if name in ledger.nodes:
                _add_node(service, name, totals)
        counts = dict.fromkeys(("waiting", "placed", "running"), 0)
        async for uid in in_slices(service, list(service.state.pods), _PODS_COUNTED):
            pod = service.state.pods.get(uid)
            if pod is not None:
                counts["waiting" if pod.node is None else "running" if is_running(runs.get(uid)) else "placed"] += 1
        ended = len(service.tracker.ended) + len(service.tracker.accuracy.latest)
        totals.pods = {**counts, "done": ended}
        return totals


def totalling(request: Request) -> Totalling:
    """One for all requests."""
    state = request.app.state
    if not hasattr(state, "totalling"):
        state.totalling = Totalling(state.service)
    found: Totalling = state.totalling
    return found


async def in_slices(service: Service, items: Sequence[T], size: int) -> AsyncIterator[T]:
    """Lets the scheduler's calls go first before every `size` items."""
    for number, item in enumerate(items):
        if number % size == 0:
            await service.right_of_way.wait()
        yield item


def is_running(run: Any) -> bool:
    """Has telemetry or its own status shown it?"""
    return run is not None and (run.last_at is not None or bool(run.pod.run and run.pod.run.started_at))


async def show_status(request: Request, service: Service) -> dict[str, Any]:
    totals = await totalling(request).get()
    return {
        "version": __version__,
        "mode": service.settings.mode,
        "leading": service.leadership.leading,
        "now": service.tracker.wall(),
        "synced": service.state.synced,
        "stale_seconds": round(service.cluster.health().stale_seconds, 1),
        "telemetry": service.tracker.telemetry.configured,
        "telemetry_age_seconds": service.tracker.telemetry_age_seconds,
        "pods": totals.pods,
    }


@router.get(
    "/cluster",
    name="cluster",
    operation_id="cluster",
    summary="Every GPU as a bar, and totals, in windows of nodes",
    response_model=view_models.ClusterBars,
)
async def show_cluster(
    request: Request,
    service: ServiceOf,
    q: Search = "",
    product: Annotated[str, Query(max_length=100, description="only nodes with this GPU product")] = "",
    show: Annotated[Literal["all", "room", "busy", "problems"], Query()] = "all",
    offset: Offset = 0,
    limit: Limit = 40,
) -> ReplyResponse:
    names = await _matching(service, q.lower(), product, show)
    totals = await totalling(request).get()
    nodes = await show_nodes(service, names[offset : offset + limit])
    shown = {
        "status": await show_status(request, service),
        "nodes_total": len(service.state.ledger.nodes),
        "totals": asdict(totals.all),
        "products": [asdict(each) for _, each in sorted(totals.products.items())],
        "matching": len(names),
        "offset": offset,
        "nodes": nodes,
    }
    return ReplyResponse(Reply(encode(shown), decision=f"{len(nodes)} nodes"))


async def show_nodes(service: Service, names: Sequence[NodeName]) -> list[dict[str, Any]]:
    return [
        _node(service, name)
        async for name in in_slices(service, names, _NODES_SHOWN)
        if name in service.state.ledger.nodes
    ]


async def _matching(service: Service, wanted: str, product: str, show: str) -> list[NodeName]:
    names = sorted(service.state.ledger.nodes)
    if not wanted and not product and show == "all":
        return names
    return [
        name
        async for name in in_slices(service, names, _NODES_SUMMED)
        if _matches(service, name, wanted, product, show)
    ]


def _matches(service: Service, name: NodeName, wanted: str, product: str, show: str) -> bool:
    ledger = service.state.ledger
    node = ledger.nodes.get(name)
    if node is None or (product and all(pool.product != product for pool in node.pools)):
        return False
    if wanted and wanted not in name.lower() and not any(wanted in p.pod.lower() for p in ledger.promises_on(name)):
        return False
    match show:
        case "busy":
            return any(True for _ in ledger.promises_on(name))
        case "problems":
            return bool(node.problem) or any(node.misplaces(p.resource) for p in ledger.promises_on(name))
        case "room":
            return any(view.room_mib and view.free_devices for view in ledger.device_views(name))
        case _:
            return True


def _node(service: Service, name: NodeName) -> dict[str, Any]:
    ledger = service.state.ledger
    node, views = ledger.nodes[name], ledger.device_views(name)
    return {
        "name": name,
        "sharing": node.sharing,
        "problem": node.problem,
        "pools": [
            {
                "resource": pool.resource,
                "product": pool.product,
                "picked_by_kubelet": pool.picked_by_kubelet,
                "devices": pool.count * pool.replicas,
                "replicas": pool.replicas,
                "gpus": list(_bars(service, pool, [view for view in views if view.pool is pool])),
            }
            for pool in node.pools
        ],
    }


def _bars(service: Service, pool: Pool, views: Sequence[DeviceView]) -> Iterator[GpuBarJson]:
    """One bar per GPU. Where the kubelet picks, each pod is drawn on devices of its own, in any order."""
    if not pool.picked_by_kubelet:
        for view in views:
            yield _bar(service, view, view.index, view.size_mib, view.promises)
        return
    for view in views:
        if pool.replicas > 1:
            # Replicas of one GPU: which of them a pod got is not known, so all GPUs of the pool are one bar.
            yield _bar(service, view, 0, view.size_mib * pool.count, view.promises)
            continue
        taken = [(promise,) for promise in view.promises for _ in range(promise.count)]
        for index in range(max(pool.count, len(taken))):
            yield _bar(service, view, index, view.size_mib, taken[index] if index < len(taken) else ())


def _bar(
    service: Service, view: DeviceView, index: int, size_mib: int, promises: Sequence[Promise]
) -> dict[str, Any]:  # fmt: skip
    shared = not view.pool.picked_by_kubelet
    promised, used = _promised(promises), _used(service.tracker, promises)
    whole = any(promise.need_mib is None for promise in promises)
    free = 0 if whole and not shared else max(0, size_mib - promised - view.unmanaged_mib - view.held_mib)
    return {
        "index": index,
        "size_mib": size_mib,
        "promised_mib": promised,
        "used_mib": used,
        "unmanaged_mib": view.unmanaged_mib,
        "held_mib": view.held_mib,
        "room_mib": view.room_mib if shared else free,
        "whole": whole,
        "holders": [_holder(service, promise) for promise in promises],
    }


def _holder(service: Service, promise: Promise) -> dict[str, Any]:
    run = service.tracker.runs.get(promise.uid)
    return {
        "pod": promise.pod,
        "need_mib": promise.need_mib,
        "used_mib": run.last_mib if run else None,
        "state": promise.state,
        "since": run.since if run else None,
    }


def _promised(promises: Iterable[Promise]) -> int:
    return sum(promise.need_mib or 0 for promise in promises)


def _used(tracker: RunTracker, promises: Iterable[Promise]) -> int:
    runs = (tracker.runs.get(promise.uid) for promise in promises)
    return sum(run.last_mib or 0 for run in runs if run is not None)


def _add_node(service: Service, name: NodeName, totals: Totals) -> None:
    ledger, runs = service.state.ledger, service.tracker.runs
    node = ledger.nodes[name]
    column = ledger.board.column(name)
    promises = list(ledger.promises_on(name))
    for pool in node.pools:
        own = totals.products.setdefault(pool.product, OneProduct(product=pool.product))
        own.nodes += 1
        gpus = pool.count if pool.picked_by_kubelet else len(pool.memory_mib)
        size_mib = pool.memory_mib[0] * pool.count if pool.picked_by_kubelet else sum(pool.memory_mib)
        here = [promise for promise in promises if promise.resource == pool.resource]
        promised = sum((promise.need_mib or 0) * promise.count for promise in here)
        seen = ((runs.get(promise.uid), promise.count) for promise in here)
        used = sum((run.last_mib or 0) * count for run, count in seen if run is not None)
        unmanaged = int(ledger.board.tables[pool.resource].unmanaged[:, column].sum()) if column is not None else 0
        for sums in (own, totals.all):
            sums.gpus += gpus
            sums.size_mib += size_mib
            sums.promised_mib += promised
            sums.used_mib += used
            sums.unmanaged_mib += unmanaged
