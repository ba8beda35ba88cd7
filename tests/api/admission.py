"""Plays the API server that calls the webhook."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from typing import Any

import msgspec

from tests.admission.json_patch import patched
from tests.api.client import Client
from vramcast.api.http import Surface
from vramcast.api.server import new_app
from vramcast.service import Service

KINDS = {"Pod": "", "Job": "batch", "CronJob": "batch", "Deployment": "apps"}


@dataclass(frozen=True, slots=True)
class Admitted:
    """The answer, and the object as the API server stores it."""

    allowed: bool
    object: Any
    warnings: list[str]
    message: str


def new_review(raw: Any, operation: str = "CREATE", **more: Any) -> dict[str, Any]:
    kind = raw["kind"]
    request = {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "kind": {"group": KINDS.get(kind, ""), "version": "v1", "kind": kind},
        "resource": {"group": KINDS.get(kind, ""), "version": "v1", "resource": f"{kind.lower()}s"},
        "namespace": raw["metadata"].get("namespace", "team"),
        "operation": operation,
        "userInfo": {"username": "ada", "groups": ["system:authenticated"]},
        "object": raw,
        "oldObject": None,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        **more,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def webhook(service: Service) -> Client:
    client = Client(service)
    client.app = new_app(service, Surface.WEBHOOK)
    return client


async def review(client: Client, raw: Any, path: str = "/admit", **more: Any) -> Admitted:
    body = new_review(raw, **more)
    response = await client.send("POST", path, msgspec.json.encode(body))
    assert response.status == 200, response
    answer = response.json()
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["kind"] == "AdmissionReview"
    given = answer["response"]
    assert given["uid"] == body["request"]["uid"]
    operations = msgspec.json.decode(base64.b64decode(given["patch"])) if "patch" in given else []
    assert given.get("patchType", "") == ("JSONPatch" if operations else "")
    message = given.get("status", {}).get("message", "")
    return Admitted(given["allowed"], patched(raw, operations), given.get("warnings", []), message)


def admit(service: Service, raw: Any, path: str = "/admit", **more: Any) -> Admitted:
    return asyncio.run(review(webhook(service), raw, path, **more))
