"""What the driver says about one GPU at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Blind(StrEnum):
    """Why the processes on a GPU cannot be told apart; a metric label, so the set is closed."""

    MPS = "mps"  # clients of MPS share the server's process, and the driver does not list them
    MIG = "mig"  # the node has GPUs that are cut into slices; dcgm-exporter knows their pods
    OLD_DRIVER = "old_driver"  # it has no list of processes
    NO_MEMORY = "no_memory"  # the driver lists processes without their memory
    NOT_PERMITTED = "not_permitted"  # the driver lists processes only to root
    NOT_VISIBLE = "not_visible"  # a listed process is not in /proc: it just ended, or the pod lacks hostPID
    UNKNOWN_CGROUP = "unknown_cgroup"  # a process of Kubernetes whose pod its cgroup does not name


REMEDIES: Mapping[Blind, str] = {
    Blind.MPS: "use exit reports, or a driver that lists the clients of MPS",
    Blind.MIG: "none needed: dcgm-exporter names the pods of slices",
    Blind.OLD_DRIVER: "use exit reports, or driver 510 or newer",
    Blind.NO_MEMORY: "use exit reports",
    Blind.NOT_PERMITTED: "use exit reports, or run the agent as root",
    Blind.NOT_VISIBLE: "if it stays, set hostPID: true and mount /proc without hidepid",
    Blind.UNKNOWN_CGROUP: "use exit reports, and report the container runtime as a bug",
}


@dataclass(frozen=True, slots=True)
class GpuLook:
    """`memory_mib` and `busy_percent` by PID. `busy_percent` None: the driver does not say."""

    index: int
    uuid: str
    used_mib: float
    utilization_percent: float | None
    memory_mib: Mapping[int, float] = field(default_factory=dict)
    mps_clients: frozenset[int] = frozenset()
    busy_percent: Mapping[int, float] | None = None
    blind: Blind | None = None
