"""The pod of a process, by the cgroups that kubelets and container runtimes make."""

from __future__ import annotations

from pathlib import Path

import pytest

from vramcast.agent.cgroups import Owner, pod_of, read_owner

UID = "3ac51fd2-2d4f-4c5b-9a65-0a4f0cd4a0ee"
UNDERSCORED = UID.replace("-", "_")
ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text",
    [
        # cgroup v2, systemd driver: burstable, guaranteed and best effort
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/crio-{ID}.scope",
        # CRI-O 1.28 and newer nest the container once more
        f"0::/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope/container",
        # cgroup v2, cgroupfs driver
        f"0::/kubepods/burstable/pod{UID}/{ID}",
        f"0::/kubepods/pod{UID}/crio-{ID}",
        # cgroup v1, both drivers; some controllers have no path
        f"12:cpuset:/\n4:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/kubepods/burstable/pod{UID}/{ID}\n0::/",
        f"9:devices:/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/docker-{ID}.scope\n0::/system.slice/containerd.service",
        f"11:memory:/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}",
        # from a pod with a cgroup namespace of its own: relative to its own cgroup
        f"0::/../../kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        f"0::/../../pod{UID}/{ID}",
        # kind, and a kubelet with --cgroup-root
        f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        # a cluster inside of a pod: the outer pod
        f"0::/kubepods/pod{UID}/{ID}/kubepods/pod00000000-2d4f-4c5b-9a65-0a4f0cd4a0ee/{ID}",
    ],
)
def test_the_pod_is_found(text: str) -> None:
    assert pod_of(text) == UID


@pytest.mark.parametrize(
    "text",
    [
        "0::/",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/nvidia-persistenced.service",
        f"0::/machine.slice/libpod-{ID}.scope/container",  # Podman
        "4:memory:/kubepods/burstable/pod0d3f1f2a5f5f4a0b8f3e2d1c0b9a8f7e/x",  # a static pod has a hash, not a UID
        f"0::/kubepods/podcast-{UID}",
        f"0::/pod{UID[:-1]}",
        f"0::/pod{UID.replace('-', '_', 1)}",
        "",
    ],
)
def test_anything_else_has_no_pod(text: str) -> None:
    assert pod_of(text) is None


def write(proc: Path, pid: int, cgroup: str, command: str = "python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "comm").write_text(f"{command}\n")


def test_an_owner_is_a_pod_or_kubernetes_or_the_host_or_gone(tmp_path: Path) -> None:
    write(tmp_path, 1, f"0::/kubepods/pod{UID}/{ID}\n")
    write(tmp_path, 2, f"0::/kubepods/burstable/novel/{ID}\n")
    write(tmp_path, 3, f"0::/../crio-{ID}.scope\n")
    write(tmp_path, 4, "0::/system.slice/mps.service\n", "nvidia-cuda-mps")
    assert read_owner(tmp_path, 1) == Owner(UID, of_kubernetes=True)  # type: ignore[arg-type]
    assert read_owner(tmp_path, 2) == read_owner(tmp_path, 3) == Owner(None, of_kubernetes=True)
    assert read_owner(tmp_path, 4) == Owner(None, of_kubernetes=False, mps_server=True)
    assert read_owner(tmp_path, 5) is None
