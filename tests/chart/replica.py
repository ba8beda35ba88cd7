"""A pod of the release without a kubelet: the processes of its Deployment, on loopback.

Same arguments, same configuration from the ConfigMap, same ServiceAccount, the pod's name as host name. Only ports and
paths differ, and a kubeconfig replaces the mounted token, because all pods share one machine.
"""

from __future__ import annotations

import base64
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.controlplane import (
    PATIENCE_SECONDS,
    Api,
    ControlPlane,
    Process,
    environment_as_in_the_image,
    eventually,
    free_port,
    under_host_name,
)

Json = dict[str, Any]


def account_kubeconfig(
    plane: ControlPlane, namespace: str, account: str, path: Path, server: str | None = None
) -> Path:
    """A kubeconfig with the rights of the pod's mounted token."""
    config = yaml.safe_load(plane.kubeconfig.read_text())
    request = {"spec": {"expirationSeconds": 24 * 3600}}
    granted = plane.api.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", request)
    config["users"][0]["user"] = {"token": granted["status"]["token"]}
    if server is not None:
        config["clusters"][0]["cluster"]["server"] = server
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(config))
    return path


def write_secret(api: Api, namespace: str, name: str, directory: Path) -> Path:
    """As the kubelet mounts it."""
    directory.mkdir()
    data: dict[str, str] = api.get(f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
    for file, content in data.items():
        (directory / file).write_bytes(base64.b64decode(content))
    return directory


class Replica:
    """Both containers of one pod.

    `api_url`: another address of the API server for vramcast, such as a proxy. `environment`: more variables for it.
    """

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        deployment: str,
        name: str,
        directory: Path,
        api_url: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._runs = False
        self._lock = threading.Lock()
        self._directory = directory
        directory.mkdir(parents=True)
        apps, core = f"/apis/apps/v1/namespaces/{namespace}", f"/api/v1/namespaces/{namespace}"
        spec = plane.api.get(f"{apps}/deployments/{deployment}")["spec"]["template"]["spec"]
        config_name = next(v["configMap"]["name"] for v in spec["volumes"] if v["name"] == "config")
        files = plane.api.get(f"{core}/configmaps/{config_name}")["data"]
        account = spec["serviceAccountName"]
        direct = account_kubeconfig(plane, namespace, account, directory / "scheduler.kubeconfig")
        through = account_kubeconfig(plane, namespace, account, directory / "vramcast.kubeconfig", api_url)
        port, self._metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        self._scheduler_port = free_port()
        self.webhook_port = free_port()
        self._webhook_files = directory / "webhook-tls"
        secret = next((v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "webhook-tls"), None)
        if secret is not None:
            write_secret(plane.api, namespace, secret, self._webhook_files)
        self._write_settings(files["vramcast.yaml"].replace("/etc/vramcast-webhook", str(self._webhook_files)), port)
        containers = {container["name"]: container for container in spec["containers"]}
        self.service = self._service(containers["vramcast"], through, environment or {})
        self.scheduler: Process | None = None
        if "kube-scheduler" in containers:
            self._write_scheduler_config(files["scheduler.yaml"], direct)
            self.scheduler = self._kube_scheduler(containers["kube-scheduler"], plane)

    def _write_settings(self, text: str, port: int) -> None:
        settings = yaml.safe_load(text)
        assert settings["host"] == "127.0.0.1", "the verbs of a sidecar are on loopback"
        settings |= {"port": port, "metrics_port": self._metrics_port, "metrics_host": "127.0.0.1"}
        if "webhook_port" in settings:
            settings["webhook_port"] = self.webhook_port
        (self._directory / "vramcast.yaml").write_text(yaml.safe_dump(settings))

    def _write_scheduler_config(self, text: str, kubeconfig: Path) -> None:
        config = yaml.safe_load(text)
        config["clientConnection"]["kubeconfig"] = str(kubeconfig)
        config["extenders"][0]["urlPrefix"] = self.url
        (self._directory / "scheduler.yaml").write_text(yaml.safe_dump(config))

    def _service(self, container: Json, kubeconfig: Path, more: Mapping[str, str]) -> Process:
        environment = {"KUBECONFIG": str(kubeconfig), **environment_as_in_the_image(), **more}
        for variable in container["env"]:
            path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            environment[variable["name"]] = {"metadata.name": self.name}[path] if path else variable["value"]
        command = [sys.executable, "-m", "vramcast", *self._arguments(container)]
        return Process(f"{self.name}/vramcast", command, self._directory / "vramcast.log", environment)

    def _kube_scheduler(self, container: Json, plane: ControlPlane) -> Process:
        command = [
            *under_host_name(self.name), str(plane.binaries.kube_scheduler), *self._arguments(container),
            f"--secure-port={self._scheduler_port}", "--bind-address=127.0.0.1", f"--cert-dir={self._directory}",
            # Without a controller manager there is no ConfigMap extension-apiserver-authentication to look up.
            "--authentication-skip-lookup=true",
        ]  # fmt: skip
        return Process(f"{self.name}/kube-scheduler", command, self._directory / "kube-scheduler.log")

    def _arguments(self, container: Json) -> list[str]:
        return [argument.replace("/etc/vramcast/", f"{self._directory}/") for argument in container["args"]]

    def start(self) -> Replica:
        self.service.start()
        if self.scheduler is not None:
            self.scheduler.start()
            with self._lock:
                self._runs = True
        eventually(self.ready, what=f"{self.name} to be ready")
        return self

    def revive_scheduler(self) -> None:
        """As the kubelet does: on a machine that is busy enough, a kube-scheduler loses its Lease and exits."""
        with self._lock:
            if self._runs and self.scheduler is not None and not self.scheduler.alive:
                self.scheduler.start()

    def ready(self) -> bool:
        """The kubelet's readiness probe."""
        self.service.check_alive()
        try:
            answer = httpx.get(f"http://127.0.0.1:{self._metrics_port}/readyz", timeout=PATIENCE_SECONDS)
        except httpx.TransportError:
            return False
        return answer.status_code == 200

    def metric(self, name: str, label: str = "") -> float:
        """The sum over all series, or over those with this label."""
        lines = httpx.get(f"http://127.0.0.1:{self._metrics_port}/metrics", timeout=PATIENCE_SECONDS).text.splitlines()
        wanted = (line for line in lines if line.split("{")[0].split(" ")[0] == name and label in line)
        return sum(float(line.rsplit(" ", 1)[1]) for line in wanted)

    @property
    def leading(self) -> bool:
        return self.metric("vramcast_leading") == 1

    @property
    def processes(self) -> list[Process]:
        return [process for process in (self.scheduler, self.service) if process is not None]

    def pause(self) -> None:
        for process in self.processes:
            process.pause()

    def resume(self) -> None:
        for process in self.processes:
            process.resume()

    def kill(self) -> None:
        self._end()
        for process in self.processes:
            process.kill()

    def _end(self) -> None:
        with self._lock:
            self._runs = False

    def stop(self) -> None:
        """As the kubelet stops a pod: SIGTERM to all containers at once."""
        self._end()
        for process in self.processes:
            process.terminate(grace_seconds=5.0)

    def logs(self) -> str:
        return "\n".join(process.log.read_text(errors="replace") for process in self.processes)

    def log_tails(self) -> str:
        return "\n".join(process.log_tail(40) for process in self.processes)
