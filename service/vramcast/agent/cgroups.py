"""The pod of a process, from /proc/PID/cgroup.

    cgroup v2, systemd, containerd  0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
    cgroup v1, cgroupfs, CRI-O      4:memory:/kubepods/burstable/podUID/crio-ID
    from a pod with its own view    0::/../../kubepods-burstable-podUID.slice/cri-containerd-ID.scope

systemd allows no dashes in a part of a slice's name, so the UID has underscores there. The file is readable by everyone.
"""  # noqa: E501

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vramcast.names import PodUid

_UID = r"[0-9a-f]{8}(?P<mark>[-_])(?:[0-9a-f]{4}(?P=mark)){3}[0-9a-f]{12}"
# A part of the path that ends with the pod. The first one counts: a cluster inside of a pod nests its own below it.
_POD = re.compile(rf"(?:^|[/-])pod(?P<uid>{_UID})(?:\.slice)?(?=[/:]|$)")
# Parts that only the kubelet and container runtimes make.
_KUBERNETES = re.compile(r"kubepods|/(?:cri-containerd|crio)-[0-9a-f]{64}")
# /proc/PID/comm has 15 characters.
_MPS_SERVER = "nvidia-cuda-mps-server"[:15]


@dataclass(frozen=True, slots=True)
class Owner:
    """`pod` None and not `of_kubernetes`: a process of the host."""

    pod: PodUid | None
    of_kubernetes: bool
    mps_server: bool = False


def read_owner(proc: Path, pid: int) -> Owner | None:
    """None: there is no such process any more, or it cannot be seen from here."""
    try:
        cgroup = (proc / str(pid) / "cgroup").read_text()
        command = (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return None
    pod = pod_of(cgroup)
    return Owner(pod, pod is not None or bool(_KUBERNETES.search(cgroup)), command == _MPS_SERVER)


def pod_of(cgroup: str) -> PodUid | None:
    """From the text of /proc/PID/cgroup. All its lines name the same pod, but some have no path."""
    for line in cgroup.splitlines():
        path = line.split(":", 2)[-1]
        found = _POD.search(path)
        if found is not None:
            return PodUid(found["uid"].replace("_", "-"))
    return None
