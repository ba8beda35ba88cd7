"""Pods as the API server sends them to a webhook, and what they become."""

from __future__ import annotations

from typing import Any

from tests.admission.json_patch import patched
from vramcast.admission.context import Context
from vramcast.admission.filling import fill, read
from vramcast.settings import load_settings
from vramcast.task.vocabulary import PREFIX

SCHEDULER = "vramcast-scheduler"
MODEL = {"model": "timm/resnet50", "batch-size": "64"}


def new_context(settings: dict[str, Any] | None = None, **more: Any) -> Context:
    """Without caps, which have tests of their own."""
    given = {"webhook_scheduler_name": SCHEDULER, "webhook_caps": "", **(settings or {})}
    return Context(load_settings(given, {}), **more)


def new_pod(task: dict[str, str] | None = None, *, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    """Described by name, with one container, and with what the API server fills in itself."""
    described = {PREFIX + name: value for name, value in (MODEL if task is None else task).items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "team", "annotations": {**described, **(annotations or {})}},
        "spec": {"schedulerName": "default-scheduler", "containers": [new_container()], **spec},
    }


def new_container(name: str = "train", **more: Any) -> dict[str, Any]:
    return {"name": name, "image": "trainer", "resources": {}, **more}


def admitted(raw: Any, context: Context | None = None) -> Any:
    """The pod after the webhook."""
    context = context or new_context()
    return patched(raw, fill(raw, read(raw, context), context).operations)
