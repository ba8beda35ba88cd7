"""Mode `extender` on one machine: the Deployment's container, and the scheduler's configuration from the notes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.chart.conftest import NAMESPACE
from tests.chart.helm import Helm
from tests.chart.replica import account_kubeconfig, write_secret
from tests.controlplane import PATIENCE_SECONDS, ControlPlane, Process, eventually, free_port

Json = dict[str, Any]


def extender_snippet(helm: Helm, release: str) -> Json:
    """What the user copies from the notes."""
    notes = helm.run("get", "notes", release, f"--namespace={NAMESPACE}")
    return snippet_in(notes)


def snippet_in(notes: str) -> Json:
    text = notes[notes.index("     extenders:") :].partition("\n\n")[0]
    entry: Json = yaml.safe_load(text)["extenders"][0]
    return entry


class ExtenderService:
    """The container of the release's Deployment, not started yet."""

    def __init__(self, plane: ControlPlane, release: str, directory: Path) -> None:
        server = write_secret(plane.api, NAMESPACE, f"{release}-server-tls", directory / "server")
        self._client = write_secret(plane.api, NAMESPACE, f"{release}-client-tls", directory / "client")
        text = plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{release}")["data"]["vramcast.yaml"]
        settings = yaml.safe_load(text.replace("/etc/vramcast-tls", str(server)))
        self.port, self._metrics_port = free_port(), free_port()
        settings |= {"host": "127.0.0.1", "port": self.port, "metrics_port": self._metrics_port}
        file = directory / "vramcast.yaml"
        file.write_text(yaml.safe_dump(settings))
        kubeconfig = account_kubeconfig(plane, NAMESPACE, release, directory / "kubeconfig")
        command = [sys.executable, "-m", "vramcast", "serve", f"--config={file}"]
        self.process = Process("vramcast", command, directory / "vramcast.log", {"KUBECONFIG": str(kubeconfig)})

    def start(self) -> ExtenderService:
        self.process.start()
        eventually(self._ready, what="readiness")
        return self

    def entry(self, snippet: Json) -> Json:
        """The notes' entry of `extenders`, with the paths and the address of this machine."""
        assert snippet["urlPrefix"] == "https://CLUSTER-IP:8888"
        files = {
            key: value.replace("/etc/kubernetes/vramcast", str(self._client))
            for key, value in snippet["tlsConfig"].items()
        }
        return {**snippet, "urlPrefix": f"https://127.0.0.1:{self.port}", "tlsConfig": files}

    @property
    def client_ca(self) -> Path:
        return self._client / "ca.crt"

    def _ready(self) -> bool:
        try:
            answer = httpx.get(f"http://127.0.0.1:{self._metrics_port}/readyz", timeout=PATIENCE_SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == 200
