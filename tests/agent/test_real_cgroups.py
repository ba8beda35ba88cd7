"""Real processes in real cgroups, as a kubelet would make them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.conftest import Agent
from tests.agent.machine import CONTAINER, FakeProcess, Machine
from tests.controlplane import eventually
from vramcast.outcomes.agent_series import MEMORY

V1, V2 = "cgroup", "cgroup2"
SYSTEMD = "vramcast-test.slice/kubepods-burstable-pod{underscored}.slice/cri-containerd-{container}.scope"
CGROUPFS = "vramcast-test/kubepods/burstable/pod{uid}/{container}"
ONE = "11111111-aaaa-4bbb-8ccc-0123456789ab"
TWO = "22222222-aaaa-4bbb-8ccc-0123456789ab"


def hierarchies(kind: str) -> list[Path]:
    """Where this machine has mounted cgroups that we may change."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    named = [Path(mount[1]) for mount in mounts if mount[2] == kind and (kind == V2 or "name=systemd" in mount[3])]
    return [path for path in named if os.access(path / "cgroup.procs", os.W_OK)]


Spawn = Callable[[str, str], int]


@pytest.fixture(params=[V1, V2])
def spawn(request: pytest.FixtureRequest) -> Iterator[Spawn]:
    """`spawn(layout, uid)` starts a process in a container of that pod and returns its PID."""
    found = hierarchies(request.param)
    if not found:
        pytest.skip(f"no {request.param} that this user may change")
    root, running = found[0], list[subprocess.Popen[bytes]]()

    def start(layout: str, uid: str) -> int:
        path = layout.format(uid=uid, underscored=uid.replace("-", "_"), container=CONTAINER)
        (root / path).mkdir(parents=True, exist_ok=True)
        # `exec cat` waits for its input to be closed.
        program = f'echo $$ > "{root / path}/cgroup.procs" && echo ready && exec cat'
        child = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        running.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        return child.pid

    yield start
    for child in running:
        child.communicate()
    for top in ("vramcast-test.slice", "vramcast-test"):
        for directory, _, _ in os.walk(root / top, topdown=False):
            # A cgroup is empty a moment after its last process was waited for.
            eventually(lambda path=Path(directory): _removed(path), what=f"{directory} to be empty")  # type: ignore[misc]


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("layout", [SYSTEMD, CGROUPFS])
def test_real_processes_are_told_apart_by_their_cgroups(agent: Agent, spawn: Spawn, layout: str) -> None:
    agent.looks.proc = Path("/proc")
    first, second, host = spawn(layout, ONE), spawn(layout, TWO), os.getpid()
    agent.machine.show([FakeProcess(first, 3_000), FakeProcess(second, 2_000), FakeProcess(host, 100)])
    assert agent.scrape().by_pod(MEMORY) == {"": 5_100, ONE: 3_000, TWO: 2_000}


def test_an_agent_with_its_own_view_of_cgroups_sees_the_same(machine: Machine, spawn: Spawn) -> None:
    """Containers get a cgroup namespace, in which the paths of others are relative to their own."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-C", "true"], check=False).returncode:
        pytest.skip("no cgroup namespaces for this user")
    neighbour = spawn(SYSTEMD, ONE)
    own = spawn(SYSTEMD, TWO)
    procs = next(
        path / SYSTEMD.format(underscored=TWO.replace("-", "_"), container=CONTAINER) / "cgroup.procs"
        for path in [*hierarchies(V1), *hierarchies(V2)]
        if str(own) in _members(path / SYSTEMD.format(underscored=TWO.replace("-", "_"), container=CONTAINER))
    )
    machine.use_real_processes("sh", "-c", f'echo $$ > "{procs}" && exec unshare -C "$@"', "sh")
    machine.show([FakeProcess(neighbour, 3_000)])
    machine.start()
    assert machine.scrape().by_pod(MEMORY) == {"": 3_000, ONE: 3_000}
    # A cgroup with a process in it cannot be removed.
    machine.process.terminate()


def _members(path: Path) -> list[str]:
    return (path / "cgroup.procs").read_text().split() if path.exists() else []
