"""What kube-state-metrics says about pods: who made them, what they asked for, and how they ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Final

from vramcast.hardware.vendors import is_gpu_resource
from vramcast.outcomes.readings import LabelNames, Series, first_label
from vramcast.recommend.window import PodFacts, PodOwner

POD_SERIES: Final = (
    "kube_pod_created", "kube_pod_owner", "kube_pod_completion_time", "kube_pod_status_phase",
    "kube_pod_container_resource_requests",
)  # fmt: skip
# By the kind that they lead up from, and the label with its name.
CHAIN: Final = {
    "ReplicaSet": ("kube_replicaset_owner", "replicaset"),
    "Job": ("kube_job_owner", "job_name"),
}
_NOBODY: Final = ("", "<none>")
_NAMES: Final = LabelNames()
_MIG_RESOURCE: Final = re.compile(r"nvidia_com_mig_(?P<compute>[0-9]+g)_(?P<memory>[0-9]+gb)(?P<more>.*)")

Chain = Mapping[tuple[str, str, str], PodOwner]  # (namespace, kind, name) -> its owner
Key = tuple[str, str, str]


def read_pods(series: Iterable[Series]) -> list[PodFacts]:
    """Of the newest sample of each series."""
    known: dict[Key, PodFacts] = {}
    for one in series:
        namespace, pod = first_label(one.labels, _NAMES.namespace), first_label(one.labels, _NAMES.pod)
        uid, value = one.labels.get("uid", ""), one.samples[-1][1] if one.samples else math.nan
        if pod and math.isfinite(value):
            key = (namespace, pod, uid)
            _note(known.setdefault(key, PodFacts(*key)), one.labels, value)
    return list(known.values())


def _note(facts: PodFacts, labels: Mapping[str, str], value: float) -> None:
    match labels.get("__name__"):
        case "kube_pod_created":
            facts.created_at = value
        case "kube_pod_completion_time":
            facts.completed_at = value
        case "kube_pod_status_phase" if labels.get("phase") == "Failed" and value == 1:
            facts.failed = True
        case "kube_pod_owner" if labels.get("owner_is_controller") != "false":
            facts.owner = facts.root = _owner(labels)
        case "kube_pod_container_resource_requests":
            resource = resource_name(labels.get("resource", ""))
            if is_gpu_resource(resource) and value > 0:
                facts.devices[resource] = facts.devices.get(resource, 0) + int(value)
                name = first_label(labels, ("exported_container", "container"))
                facts.containers = tuple(dict.fromkeys((*facts.containers, name)))


def resource_name(label: str) -> str:
    """kube-state-metrics writes nvidia.com/gpu as nvidia_com_gpu."""
    if mig := _MIG_RESOURCE.fullmatch(label):
        return f"nvidia.com/mig-{mig['compute']}.{mig['memory']}{mig['more'].replace('_', '.')}"
    vendor, _, device = label.partition("_com_")
    # AMD's own names have underscores.
    return f"{vendor}.com/{device.replace('_', '.') if vendor == 'nvidia' else device}" if device else label


def read_chain(series: Iterable[Series]) -> dict[Key, PodOwner]:
    """The owners of ReplicaSets and Jobs."""
    kinds = {metric: (kind, label) for kind, (metric, label) in CHAIN.items()}
    owners: dict[Key, PodOwner] = {}
    for one in series:
        found, owner = kinds.get(one.labels.get("__name__", "")), _owner(one.labels)
        if found is not None and owner is not None:
            kind, label = found
            owners[first_label(one.labels, _NAMES.namespace), kind, one.labels.get(label, "")] = owner
    return owners


def root_of(namespace: str, owner: PodOwner, chain: Chain) -> PodOwner:
    return chain.get((namespace, owner.kind, owner.name), owner)


def _owner(labels: Mapping[str, str]) -> PodOwner | None:
    kind, name = labels.get("owner_kind", ""), labels.get("owner_name", "")
    return None if kind in _NOBODY or name in _NOBODY else PodOwner(kind, name)
