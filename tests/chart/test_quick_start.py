"""Runs the commands of docs/quick-start.md, block by block.

The test fakes what a control plane without kubelets and controllers lacks: the Deployment's pods, the Job's pod,
port-forward, and a Docker that only takes the image's name (tests/image runs the image's steps).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chart.conftest import NAMESPACE
from tests.chart.replica import Replica
from tests.chart.webhook import point_service_at
from tests.controlplane import PATIENCE_SECONDS, Api, ApiError, ControlPlane, eventually
from tests.controlplane.objects import A100_40GB, pod, whole_gpu_node

pytestmark = pytest.mark.e2e

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/quick-start.md"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/vramcast"


def blocks() -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


class Shell:
    """One bash for all blocks, so that exported variables carry over."""

    def __init__(self, tools: Path, kubeconfig: Path) -> None:
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "KUBECONFIG": str(kubeconfig), "HOME": str(tools)}
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=REPOSITORY, env=environment, text=True, process_group=0,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, block: str) -> str:
        """Returns the output. Every command must succeed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        for command in block.strip().splitlines():
            self._bash.stdin.write(f"{command}\necho __status $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        waiting = len(block.strip().splitlines())
        while waiting and (line := self._bash.stdout.readline()):
            if "__status " in line:
                before, _, status = line.partition("__status ")
                lines.append(before)
                assert status.strip() == "0", f"{block}\n{''.join(lines)}"
                waiting -= 1
            else:
                lines.append(line)
        return "".join(lines)

    def close(self) -> None:
        os.killpg(self._bash.pid, 9)
        self._bash.wait()
        for stream in (self._bash.stdin, self._bash.stdout):
            if stream is not None:
                stream.close()


class Controllers(threading.Thread):
    """The Deployment controller and the kubelet for vramcast's own pods, and the Job controller for all others."""

    def __init__(self, plane: ControlPlane, directory: Path) -> None:
        super().__init__(daemon=True)
        self._plane = plane
        self._directory = directory
        self._stopped = threading.Event()
        self.replicas: list[Replica] = []

    def run(self) -> None:
        while not self._stopped.wait(0.1):
            try:
                self._deploy()
                self._start_jobs()
            except ApiError as error:
                if error.status not in (404, 409):
                    raise

    def stop(self) -> None:
        self._stopped.set()
        self.join()
        for replica in self.replicas:
            replica.kill()

    def _deploy(self) -> None:
        deployment = self._plane.api.get(DEPLOYMENT)
        wanted = deployment["spec"]["replicas"]
        while len(self.replicas) < wanted:
            name = f"vramcast-{len(self.replicas)}"
            self.replicas.append(Replica(self._plane, NAMESPACE, "vramcast", name, self._directory / name).start())
            point_service_at(self._plane.api, self.replicas[0].webhook_port)
        if deployment.get("status", {}).get("observedGeneration") != deployment["metadata"]["generation"]:
            status: dict[str, Any] = dict.fromkeys(
                ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), wanted
            )
            status["observedGeneration"] = deployment["metadata"]["generation"]
            self._plane.api.patch(f"{DEPLOYMENT}/status", {"status": status})

    def _start_jobs(self) -> None:
        for job in self._plane.api.get("/apis/batch/v1/namespaces/default/jobs")["items"]:
            template = job["spec"]["template"]
            name = job["metadata"]["name"]
            labels = {**template["metadata"].get("labels", {}), "job-name": name}
            if not self._plane.api.pods("default", labels=f"job-name={name}"):
                metadata = {**template["metadata"], "name": f"{name}-x1", "labels": labels}
                self._plane.api.create_pod({"metadata": metadata, "spec": template["spec"]})
                started = {"active": 1, "startTime": job["metadata"]["creationTimestamp"]}
                path = f"/apis/batch/v1/namespaces/default/jobs/{name}/status"
                self._plane.api.patch(path, {"status": started})


@pytest.fixture
def controllers(plane: ControlPlane, api: Api, tmp_path: Path) -> Iterator[Controllers]:
    running = Controllers(plane, tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def shell(plane: ControlPlane, controllers: Controllers, tmp_path: Path) -> Iterator[Shell]:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "helm").symlink_to(plane.binaries.helm)
    curl = shutil.which("curl")
    assert curl, "the quick start uses curl"
    _script(tools / "docker", 'case "$1" in build|push) echo "$@";; *) exit 1;; esac')
    # Without a kubelet there is no port-forward. The leader listens on this loopback anyway.
    _script(
        tools / "kubectl",
        f'case "$*" in *port-forward*) exec {sys.executable} {tools}/forward.py "$@";; '
        f'*) exec {plane.binaries.kubectl} "$@";; esac',
    )
    (tools / "forward.py").write_text(_FORWARD.format(directory=str(tmp_path)))
    running = Shell(tools, plane.kubeconfig)
    yield running
    running.close()
    # The page's last block uninstalls too, unless an earlier one failed.
    subprocess.run(
        [plane.binaries.helm, "uninstall", "vramcast", f"--namespace={NAMESPACE}", "--ignore-not-found"],
        env={"KUBECONFIG": str(plane.kubeconfig), "HOME": str(tools)}, capture_output=True, check=True,
    )  # fmt: skip


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


_FORWARD = """
import http.server, sys, urllib.request, yaml, pathlib
files = pathlib.Path("{directory}").glob("vramcast-*/vramcast.yaml")
replicas = [yaml.safe_load(file.read_text()) for file in files]
wanted = int(sys.argv[-1])
which = "metrics_port" if wanted == 9090 else "port"
def read(replica, which, path):
    return urllib.request.urlopen(f"http://127.0.0.1:{{replica[which]}}{{path}}").read()
class Forward(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        leads = [one for one in replicas if b"vramcast_leading 1" in read(one, "metrics_port", "/metrics")]
        text = read((leads or replicas)[0], which, self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", wanted), Forward).serve_forever()
"""


def _read(url: str) -> str:
    try:
        return httpx.get(url, timeout=PATIENCE_SECONDS).raise_for_status().text
    except httpx.TransportError:
        return ""


def webhook_answers(api: Api) -> bool:
    probe = pod("probe", {"gpu-memory": "1Gi"})
    made = api.request("POST", "/api/v1/namespaces/default/pods", probe, query={"dryRun": "All"})
    return "vramcast.dev/injected" in made["metadata"]["annotations"]


def test_the_quick_start_works_word_for_word(plane: ControlPlane, api: Api, shell: Shell) -> None:
    api.create_nodes([whole_gpu_node("gpu-1", A100_40GB)])
    image, install, share, job, poll, too_large, page, watch, monitor, leave = blocks()
    assert "build --tag registry.example.com/gpu/vramcast" in shell.run(image)
    assert 'deployment "vramcast" successfully rolled out' in shell.run(install)
    shared = shell.run(share)
    assert "node/gpu-1 labeled" in shared
    assert "node/gpu-1 tainted" in shared
    eventually(lambda: webhook_answers(api), what="the API server to know the webhook's endpoint")
    applied = shell.run(job)
    assert re.search(r"^Warning: vramcast: needs [\d.]+ GiB at risk 0.05; fits A100-SXM4-40GB$", applied, re.MULTILINE)
    assert "condition met" in applied
    seen = shell.run(poll)
    assert '"vramcast.dev/gpu-indices":"0"' in seen
    assert '"vramcast.dev/forecast-memory"' in seen
    assert "GPU 0 on gpu-1" in seen
    assert "GPU too small for 900.0 GiB" in shell.run(too_large)
    shell.run(page)
    shown = eventually(lambda: _read("http://127.0.0.1:8888/pods?state=waiting"), what="the page to be forwarded")
    assert "default/too-large" in shown
    assert "<title>vramcast</title>" in _read("http://127.0.0.1:8888/")
    assert re.search(r'vramcast_promised_bytes\{state="bound"\} [1-9]', shell.run(watch))
    assert "has been upgraded" in shell.run(monitor)
    assert 'release "vramcast" uninstalled' in shell.run(leave)
    with pytest.raises(ApiError, match="404"):
        api.get(DEPLOYMENT)
