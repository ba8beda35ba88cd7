"""What a sharing pod needs besides its description: the scheduler, the toleration, and the variable with its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from vramcast.admission.change import (
    APPEND,
    AdmittedPod,
    Change,
    Object,
    entries,
    from_annotation,
    mapping,
    set_env,
)
from vramcast.admission.context import Context
from vramcast.admission.resources import add_resource, has_resource, limits
from vramcast.hardware.vendors import SHARED_GPU, is_gpu_resource
from vramcast.placement.gpus import SHARING_TAINT
from vramcast.settings import Mode
from vramcast.task.task import describes
from vramcast.task.vocabulary import PREFIX, Written

SHARE: Final = PREFIX + "share"
# The API server sets it before it calls a webhook, so a pod that names it cannot be told from one that names none.
DEFAULT_SCHEDULER: Final = "default-scheduler"


def share(raw: Object, context: Context) -> list[Change]:
    """`share` for a described pod that asks for no GPU in any other way. Comes first: the description depends on it."""
    spec = mapping(raw.get("spec"))
    annotations = mapping(mapping(raw.get("metadata")).get("annotations"))
    described = any(describes(name) for name in annotations)
    if not context.shares or not described or SHARE in annotations or not is_ours(spec, context):
        return []
    if _has_devices(spec) or spec.get("resourceClaims"):
        return []
    return [Change(("metadata", "annotations", SHARE), "true", "share")]


def fill(pod: AdmittedPod, context: Context) -> list[Change]:
    if pod.record.ask is None or pod.record.task is None or not is_ours(pod.spec, context):
        return []
    changes = [*_scheduler(pod, context), *_task_resource(pod, context)]
    if pod.record.ask.resource == SHARED_GPU:
        changes += _toleration(pod)
        for variable in context.visible_devices:
            changes += set_env(pod, from_annotation(variable, Written.GPU_INDICES), variable)
    return changes


def is_ours(spec: Object, context: Context) -> bool:
    """Placed by vramcast: not by another scheduler, not yet, and not on Windows, whose GPUs nobody shares."""
    if context.settings.mode is Mode.OBSERVE:
        return False
    ours = {None, "", DEFAULT_SCHEDULER, context.settings.webhook_scheduler_name}
    windows = "windows" in (
        mapping(spec.get("os")).get("name"), mapping(spec.get("nodeSelector")).get("kubernetes.io/os")
    )  # fmt: skip
    return spec.get("schedulerName") in ours and not spec.get("nodeName") and not windows


def _has_devices(spec: Object) -> bool:
    containers = [*entries(spec.get("containers")), *entries(spec.get("initContainers"))]
    return any(is_gpu_resource(name) for container in containers for name in limits(mapping(container)))


def _scheduler(pod: AdmittedPod, context: Context) -> list[Change]:
    wanted = context.settings.webhook_scheduler_name
    named = pod.spec.get("schedulerName")
    if not wanted or named == wanted:
        return []
    return [Change(("spec", "schedulerName"), wanted, "schedulerName", replaces=bool(named))]


def _task_resource(pod: AdmittedPod, context: Context) -> list[Change]:
    """The scheduler of the cluster calls vramcast only for pods that request it."""
    name = context.settings.webhook_task_resource
    if not name or has_resource(pod, name):
        return []
    return add_resource(next(pod.containers("containers"), None), name, "1", name)


def _toleration(pod: AdmittedPod) -> list[Change]:
    if any(_tolerates(mapping(entry)) for entry in entries(pod.spec.get("tolerations"))):
        return []
    toleration = {"key": SHARING_TAINT, "operator": "Exists", "effect": "NoSchedule"}
    return [Change(("spec", "tolerations", APPEND), toleration, "toleration")]


def _tolerates(toleration: Mapping[str, Any]) -> bool:
    """The taint as docs/gpu-sharing.md has it: vramcast.dev/gpu-sharing=true:NoSchedule."""
    if toleration.get("effect") not in {None, "", "NoSchedule"}:
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in {None, "", SHARING_TAINT}
    return toleration.get("key") == SHARING_TAINT and toleration.get("value") == "true"
