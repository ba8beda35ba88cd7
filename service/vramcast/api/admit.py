"""POST /admit: the admission webhook. It answers from what is known and changes nothing of it.

The API server calls it for described objects in namespaces that opted in. Any replica answers, leading or not: nothing
is promised here. An AdmissionReview does not have the labels of the namespace, so the namespace's policy comes as the
path: the chart has one webhook per policy, and each selects its namespaces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from vramcast.admission import claims, review, warn
from vramcast.admission.change import AdmittedPod, Object, apply, entries, mapping, tell
from vramcast.admission.context import Context, Needs
from vramcast.admission.filling import fill, read
from vramcast.admission.products import may_use
from vramcast.api.body_limits import Receive, Scope, Send
from vramcast.api.routes import count, error_reply, log, read_body, send_reply
from vramcast.api.wire import Reply
from vramcast.errors import InvalidTask
from vramcast.hardware.vendors import CLAIMED_GPU, NVIDIA, SHARED_GPU, VENDORS, WHOLE_GPU, vendor_of
from vramcast.names import Product
from vramcast.observe.metrics import Admission
from vramcast.service import Service
from vramcast.settings import Validation
from vramcast.task.pod import Ask
from vramcast.task.quantity import MIB
from vramcast.task.vocabulary import Level
from vramcast.task.workloads import find_misplaced, find_templates

# The path, and whether pods of the namespace share GPUs unless they ask for a device.
PATHS: Final = {"/admit": True, "/admit/unshared": False}
# A workload has one template, or a few roles.
_MOST_TEMPLATES: Final = 8


@dataclass(frozen=True, slots=True)
class Study:
    """What a description means here: what it needs, or what is wrong with it. `cause` names an error of ours."""

    needs: Needs | None = None
    invalid: InvalidTask | None = None
    warnings: tuple[str, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    mistakes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    operations: Sequence[dict[str, Any]] = ()
    told: Sequence[str] = ()
    cause: str = ""


class AdmissionRoute(BaseRoute):
    """Of a port that only the API server calls. While a call of the scheduler arrives, it waits."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL, {}) if scope["type"] == "http" and scope["path"] in PATHS else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
        started, status = time.perf_counter(), 200
        try:
            body = await read_body(receive)
            reply = await admit(self._service, body, shares=PATHS[scope["path"]])
        except Exception as error:
            status, reply = error_reply("admit", error)
        await send_reply(send, status, reply)
        count(self._service, "admit", reply, time.perf_counter() - started, log.info)


async def admit(service: Service, body: bytes, *, shares: bool) -> Reply:
    """Raises InvalidRequest."""
    request = review.decode_review(body)
    await service.right_of_way.wait()
    raw, judgement = request.object, Judgement()
    if raw is not None and not request.sub_resource:
        context = Context(service.settings, shares, visible_devices=_visible_devices(service))
        judgement = await _JUDGES.get(request.kind.kind, _judge_workload)(service, raw, context)
    metadata = mapping(raw and raw.get("metadata"))
    name = f"{request.namespace or ''}/{metadata.get('name') or metadata.get('generateName') or ''}"
    return _answer(service, request, name, judgement)


def _answer(service: Service, request: review.AdmissionRequest, name: str, judgement: Judgement) -> Reply:
    service.metrics.invalid_admissions.inc(bool(judgement.mistakes))
    if judgement.mistakes and service.settings.webhook_validate is Validation.DENY:
        decision, text = Admission.REFUSED, "; ".join(judgement.mistakes)
        body = review.refuse(request.uid, text, judgement.warnings)
    else:
        decision = Admission.CHANGED if judgement.operations else Admission.UNCHANGED
        text = f"added {', '.join(judgement.told)}" if judgement.operations else "; ".join(judgement.mistakes)
        body = review.allow(request.uid, judgement.operations, [*judgement.mistakes, *judgement.warnings])
    service.metrics.admissions.labels(decision).inc()
    return Reply(body, name, decision=f"{decision}: {text}" if text else decision, cause=judgement.cause)


async def _judge_pod(service: Service, raw: Object, context: Context) -> Judgement:
    pod = read(raw, context)
    study = await _study(service, pod, tell=_is_told(service, raw))
    if study.invalid is not None:
        return Judgement(warn.mistakes(study.invalid), study.warnings)
    # A forecast may have taken its time.
    await service.right_of_way.wait()
    filled = fill(raw, pod, replace(context, needs=study.needs))
    return Judgement((), study.warnings, filled.operations, filled.told, study.cause)


async def _judge_claim(service: Service, raw: Object, context: Context) -> Judgement:
    """A ResourceClaim or a template of such, if it describes a task."""
    pod = read(claims.stand_in(raw), context)
    study = await _study(service, pod, tell=_is_told(service, raw))
    if study.invalid is not None:
        return Judgement(warn.mistakes(study.invalid), study.warnings)
    await service.right_of_way.wait()
    changes = claims.fill(raw, replace(context, needs=study.needs))
    operations = apply(raw, tell(raw, changes))[1]
    return Judgement((), study.warnings, operations, [change.told for change in changes], study.cause)


async def _judge_workload(service: Service, raw: Object, context: Context) -> Judgement:
    """A Job, or anything else that makes pods. Its pods come here too, so it is not changed."""
    mistakes: list[str] = []
    warnings = warn.misplaced(find_misplaced(raw))
    cause = ""
    for template in find_templates(raw)[:_MOST_TEMPLATES]:
        study = await _study(service, read(template.pod(), context), tell=_is_told(service, raw), role=template.role)
        mistakes += warn.mistakes(study.invalid, template.role) if study.invalid else ()
        warnings += study.warnings
        cause = cause or study.cause
    return Judgement(mistakes, warnings, cause=cause)


_JUDGES: Final = {"Pod": _judge_pod, **dict.fromkeys(claims.KINDS, _judge_claim)}


def _is_told(service: Service, raw: Object) -> bool:
    """Whoever made a workload was told then. What a controller makes of it needs no warning in the controller's log."""
    owners = map(mapping, entries(mapping(raw.get("metadata")).get("ownerReferences")))
    return service.settings.webhook_tell_forecast and not any(owner.get("controller") for owner in owners)


async def _study(service: Service, pod: AdmittedPod, *, tell: bool, role: str = "") -> Study:
    record = pod.record
    if record.invalid is not None:
        return Study(invalid=record.invalid)
    if record.task is None or record.ask is None:
        return Study()
    try:
        async with asyncio.timeout(service.settings.webhook_forecast_seconds):
            await service.make_forecasts(record, service.workers.admission)
        demand = service.state.demand(record)
    except InvalidTask as error:
        return Study(invalid=error)
    except TimeoutError:
        return Study(warnings=(warn.not_ready(),), cause="slow_forecast")
    sizes = _sizes_mib(service, record.ask)
    products = may_use(pod.spec, sizes)
    if demand is None or not products:
        missing = (warn.no_such_gpu(record.ask.resource, record.ask.count),) if tell and service.state.synced else ()
        return Study(warnings=missing)
    forecasts = {product: service.forecaster.forecast(record.task, product) for product in products}
    needs = Needs(
        {product: demand.needs_mib[product] * MIB for product in products},
        {product: forecast.median_bytes for product, forecast in forecasts.items()},
        {product: sizes[product] * MIB for product in products},
        record.ask.count,
        next(iter(forecasts.values())).risk,
    )
    given = record.task.level is Level.GIVEN
    return Study(needs, warnings=(warn.forecast(needs, given=given, of=role),) if tell else ())


def _sizes_mib(service: Service, ask: Ask) -> dict[Product, int]:
    """Of the GPUs that the pod may get. Another system may hand out those of the device plugin, too."""
    resources = (WHOLE_GPU, CLAIMED_GPU) if ask.resource == CLAIMED_GPU else (ask.resource,)
    board = service.state.ledger.board
    return {product: size for resource in resources for product, size in board.sizes_mib(resource, ask.count).items()}


def _visible_devices(service: Service) -> tuple[str, ...]:
    """Of the vendors whose GPUs are shared here."""
    shared = service.state.ledger.board.sizes_mib(SHARED_GPU, 1)
    vendors = [vendor for vendor in VENDORS if vendor in map(vendor_of, shared)] or [NVIDIA]
    return tuple(name for vendor in vendors for name in vendor.visible_devices)
