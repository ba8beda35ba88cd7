"""GPU memory as an extended resource, so that ResourceQuota, LimitRange and Kueue count it.

No node offers it. The scheduler is told to ignore it (`ignoredResources` of NodeResourcesFit, or `ignoredByScheduler`
of the extender), and the kubelet drops what its node does not know: `removeMissingExtendedResources` in
pkg/kubelet/lifecycle/predicate.go of Kubernetes.
"""

from __future__ import annotations

from typing import Final

from vramcast.admission.change import AdmittedPod, Change
from vramcast.admission.context import Context
from vramcast.admission.inject import is_ours
from vramcast.admission.resources import add_resource, has_resource
from vramcast.task.quantity import ceil_mib

GPU_MEMORY: Final = "vramcast.dev/gpu-memory"


def fill(pod: AdmittedPod, context: Context) -> list[Change]:
    """The memory of all the pod's GPUs, on its first container: a quota adds the containers up."""
    needs = context.needs
    if not context.settings.webhook_resource or needs is None or not is_ours(pod.spec, context):
        return []
    if has_resource(pod, GPU_MEMORY):
        return []
    quantity = f"{ceil_mib(needs.reserved_bytes) * needs.gpus}Mi"
    return add_resource(next(pod.containers("containers"), None), GPU_MEMORY, quantity, GPU_MEMORY)
