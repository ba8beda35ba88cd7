"""Whose memory is it? One GPU's processes, summed by pod; or the reason why that is not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from vramcast.agent.cgroups import Owner
from vramcast.agent.gpus import Blind, GpuLook
from vramcast.names import PodUid


@dataclass(frozen=True, slots=True)
class Shares:
    """By pod. Both are empty where `blind` says why. `busy_percent` None: the driver does not say."""

    memory_mib: Mapping[PodUid, float] = field(default_factory=dict)
    busy_percent: Mapping[PodUid, float] | None = None
    blind: Blind | None = None


def tell_apart(gpu: GpuLook, owner_of: Callable[[int], Owner | None]) -> Shares:
    """`owner_of` looks a PID up; None: it is not there."""
    if gpu.blind is not None:
        return Shares(blind=gpu.blind)
    owners = {pid: owner_of(pid) for pid in gpu.memory_mib}
    blind = _blind(gpu, owners)
    if blind is not None:
        return Shares(blind=blind)
    pods = {pid: owner.pod for pid, owner in owners.items() if owner is not None and owner.pod is not None}
    return Shares(_by_pod(gpu.memory_mib, pods), None if gpu.busy_percent is None else _by_pod(gpu.busy_percent, pods))


def _blind(gpu: GpuLook, owners: Mapping[int, Owner | None]) -> Blind | None:
    if any(owner is not None and owner.mps_server for owner in owners.values()) and not gpu.mps_clients:
        return Blind.MPS
    if None in owners.values():
        return Blind.NOT_VISIBLE
    if any(owner is not None and owner.of_kubernetes and owner.pod is None for owner in owners.values()):
        return Blind.UNKNOWN_CGROUP
    return None


def _by_pod(values: Mapping[int, float], pods: Mapping[int, PodUid]) -> dict[PodUid, float]:
    found: dict[PodUid, float] = dict.fromkeys(pods.values(), 0.0)
    for pid, value in values.items():
        if pid in pods:
            found[pods[pid]] += value
    return found
