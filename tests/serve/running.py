"""`vramcast serve` as a real process on a static cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.controlplane import PATIENCE_SECONDS, Process, eventually, free_port

CLUSTER = """
nodes:
- {name: share, product: NVIDIA-A100-SXM4-40GB, gpus: 2, sharing: true}
- {name: whole, product: Tesla-T4, gpus: 2}
pods:
- {name: waits, uid: uid-waits, annotations: {share: true, gpu-memory: 10Gi}}
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vramcast", *arguments]


def run_to_the_end(*arguments: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a command that exits without being stopped."""
    return subprocess.run(
        command(*arguments),
        env={**os.environ, **(environ or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def filter_body(name: str = "waits", memory: str = "10Gi") -> dict[str, Any]:
    annotations = {"vramcast.dev/share": "true", "vramcast.dev/gpu-memory": memory}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": annotations}
    pod = {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}}
    return {"Pod": pod, "Nodes": None, "NodeNames": ["share", "whole"]}


class Serve(Process):
    """One service. Its log has both standard output and standard error."""

    def __init__(
        self,
        directory: Path,
        *flags: str,
        environ: Mapping[str, str] | None = None,
        scheme: str = "http",
    ) -> None:
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        cluster = directory / "cluster.yaml"
        cluster.write_text(CLUSTER)
        arguments = command("serve", "--cluster", str(cluster), "--port", str(self.port), *flags)
        super().__init__("vramcast", arguments, directory / "vramcast.log", environ)

    def __enter__(self) -> Serve:
        self.start()
        eventually(self.serves, what="the service to log that it is synced")
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def serves(self) -> bool:
        self.check_alive()
        return "synced" in self.text()

    def text(self) -> str:
        return self.log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        """The log. Fails if a line is not a JSON object."""
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in self.text().splitlines()]

    def send_signal(self, number: signal.Signals) -> None:
        self._signal(number)

    def wait(self) -> int:
        """Waits until it exits and returns its exit code."""
        assert self._popen is not None
        return self._popen.wait(PATIENCE_SECONDS)

    def filter(self, client: httpx.Client | None = None, **pod: str) -> list[str]:
        post = client.post if client else httpx.post
        answer = post(f"{self.url}/filter", json=filter_body(**pod), timeout=PATIENCE_SECONDS)
        names: list[str] = answer.raise_for_status().json()["NodeNames"]
        return names
