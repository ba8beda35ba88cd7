"""docs/install-without-helm.md as written: its configuration starts a real kube-scheduler, and its commands work.

Only what every user must change is changed: the path of the kubeconfig and the ports.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.controlplane import PATIENCE_SECONDS, ControlPlane, Process, eventually, free_port
from tests.controlplane.objects import A100_40GB, sharing_node
from tests.docs.pages import README, REPOSITORY, blocks, commands, with_ports

pytestmark = pytest.mark.e2e

TROUBLESHOOTING = REPOSITORY / "docs/troubleshooting.md"
PAGE = REPOSITORY / "docs/install-without-helm.md"
KUBECONFIG = "/home/me/.kube/config"


class Workstation:
    """A shell in which the page's commands find what the page assumes: kubectl, kube-scheduler and a kubeconfig."""

    def __init__(self, plane: ControlPlane, home: Path) -> None:
        self._home = home
        self._ports = {8888: free_port(), 10260: free_port()}
        tools = home / "bin"
        tools.mkdir(parents=True)
        (tools / "kubectl").symlink_to(plane.binaries.kubectl)
        (tools / "kube-scheduler").symlink_to(plane.binaries.kube_scheduler)
        self.kubeconfig = home / ".kube/config"
        self.kubeconfig.parent.mkdir()
        self.kubeconfig.symlink_to(plane.kubeconfig)
        (home / "examples").symlink_to(REPOSITORY / "examples")
        (home / ".venv/bin").mkdir(parents=True)
        (home / ".venv/bin/vramcast").symlink_to(Path(sys.executable).with_name("vramcast"))
        self._environment = {"HOME": str(home), "PATH": f"{tools}:{os.environ['PATH']}"}
        self._started: list[Process] = []

    def write(self, name: str, text: str) -> None:
        text = text.replace(KUBECONFIG, str(self.kubeconfig))
        (self._home / name).write_text(with_ports(text, self._ports))

    def start(self, command: str) -> None:
        """In a terminal of its own, as the page says."""
        name = f"terminal-{len(self._started)}"
        shell = ["bash", "-c", f"cd {self._home} && exec env {with_ports(command, self._ports)}"]
        process = Process(name, shell, self._home / f"{name}.log", self._environment)
        self._started.append(process)
        process.start()

    def run(self, command: str) -> str:
        done = self.attempt(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def succeeds(self, command: str) -> bool:
        for process in self._started:
            process.check_alive()
        return self.attempt(command).returncode == 0

    def attempt(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", with_ports(command, self._ports)], cwd=self._home, env={**os.environ, **self._environment},
            capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
        )  # fmt: skip

    def logs(self) -> str:
        return "\n".join(process.log_tail() for process in self._started)

    def close(self) -> None:
        for process in self._started:
            process.terminate(grace_seconds=1.0)


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        running.api.create_nodes([sharing_node("gpu-1", A100_40GB, 1)])
        # As on every cluster, the cluster's own scheduler holds the Lease that a kube-scheduler asks for by default.
        held = {
            "holderIdentity": "control-plane-1",
            "leaseDurationSeconds": 3600,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        lease = {"metadata": {"name": "kube-scheduler"}, "spec": held}
        running.api.request("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease)
        yield running


@pytest.fixture(scope="module")
def workstation(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workstation]:
    """vramcast and a kube-scheduler, started as the page tells."""
    running = Workstation(plane, tmp_path_factory.mktemp("home"))
    install, serve, ready, schedule, scheduler_ready, *_ = commands(PAGE)
    assert install == "make install"
    try:
        running.start(serve)
        eventually(lambda: running.succeeds(ready), what="vramcast to be ready")
        (configuration,) = blocks(PAGE, "yaml")
        assert yaml.safe_load(configuration)["clientConnection"]["kubeconfig"] == KUBECONFIG
        running.write("scheduler-config.yaml", configuration)
        running.start(schedule)
        eventually(lambda: running.succeeds(scheduler_ready), what="kube-scheduler to be ready")
        yield running
    finally:
        running.close()


def test_the_documented_configuration_starts_and_a_pod_gets_its_gpu(
    plane: ControlPlane, workstation: Workstation
) -> None:
    *_, apply, wait, events = commands(PAGE)
    workstation.run(apply)
    # There is no Job controller here, so the test creates the Job's pod.
    template = plane.api.get("/apis/batch/v1/namespaces/default/jobs/resnet50")["spec"]["template"]
    metadata = {**template["metadata"], "name": "resnet50-x1", "labels": {"job-name": "resnet50"}}
    plane.api.create_pod({"metadata": metadata, "spec": template["spec"]})
    workstation.run(wait)
    assert "GPU 0 on gpu-1" in workstation.run(events)


def test_a_pod_that_fits_nowhere_can_be_explained(workstation: Workstation) -> None:
    """The commands of README.md and docs/troubleshooting.md that ask why."""
    workstation.run("kubectl apply --filename examples/too-large.yaml")
    workstation.run("kubectl wait --for=condition=PodScheduled=false pod/too-large --timeout=600s")
    describe, explain = [c for c in commands(README) if c.startswith(("kubectl describe", "curl"))]
    assert "1 GPU too small for 900.0 GiB" in workstation.run(describe)
    answer = json.loads(workstation.run(explain))
    assert answer["feasible"] == 0
    assert answer["nodes"]
    for command in commands(TROUBLESHOOTING):
        answered = workstation.run(command)
        if command.startswith("curl"):
            assert json.loads(answered)["nodes"]
