"""kube-scheduler as a process of the control plane, and its configurations in tests."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import urllib3
import yaml

from .eventually import PATIENCE_SECONDS
from .processes import Process, free_port, under_host_name

Json = dict[str, Any]


def scheduler_config(
    *extenders: Mapping[str, Any],
    name: str = "default-scheduler",
    percentage_of_nodes_to_score: int = 100,
    queries_per_second: float = 5000.0,
    **more: Any,
) -> Json:
    """A KubeSchedulerConfiguration; `more` adds or replaces top-level fields (podMaxBackoffSeconds, …)."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        # The default of 50 requests per second would throttle the scheduler's binds and events.
        "clientConnection": {"qps": queries_per_second, "burst": int(queries_per_second)},
        "profiles": [
            {"schedulerName": name, "percentageOfNodesToScore": percentage_of_nodes_to_score},
        ],
        "extenders": [dict(extender) for extender in extenders],
        **more,
    }


def extender(
    url: str, *, weight: int = 20, verbs: Sequence[str] = ("filter", "prioritize", "bind"), **more: Any
) -> Json:
    """One entry of `extenders`; `more` adds or replaces fields (managedResources, ignorable, …)."""
    return {
        "urlPrefix": url,
        **{f"{verb}Verb": verb for verb in verbs},
        "weight": weight,
        "httpTimeout": "5s",
        "nodeCacheCapable": True,
        "ignorable": False,
        **more,
    }


def is_written(certificate: Path) -> bool:
    """Whether a Kubernetes component has written the whole certificate. It writes the key afterwards."""
    key = certificate.with_suffix(".key")
    return key.exists() and key.read_text().rstrip().endswith("PRIVATE KEY-----")


class Scheduler(Process):
    """A kube-scheduler. By default without leader election, so that several can run at once."""

    def __init__(
        self,
        name: str,
        program: Path,
        directory: Path,
        kubeconfig: Path,
        config: Mapping[str, Any] | None,
        host_name: str | None = None,
    ) -> None:
        complete = dict(config or scheduler_config())
        complete["clientConnection"] = {
            **complete.get("clientConnection", {}),
            "kubeconfig": str(kubeconfig),
        }
        config_file = directory / "config.yaml"
        config_file.write_text(yaml.safe_dump(complete))
        self.url = f"https://127.0.0.1:{free_port()}"
        self._certificate = directory / "kube-scheduler.crt"
        self._pool: urllib3.PoolManager | None = None
        command = self._command_line(program, directory, config_file)
        prefix = under_host_name(host_name) if host_name else ()
        super().__init__(name, [*prefix, *command], directory / f"{name}.log")

    def _command_line(self, program: Path, directory: Path, config_file: Path) -> list[str]:
        return [
            str(program),
            f"--config={config_file}",
            f"--secure-port={self.url.rpartition(':')[2]}",
            "--bind-address=127.0.0.1",
            f"--cert-dir={directory}",
            # Only tests read its metrics, so there is no need to ask the API server who does.
            "--authentication-skip-lookup=true",
            "--authorization-always-allow-paths=/healthz,/livez,/readyz,/metrics",
            "--v=2",
        ]

    def ready(self) -> bool:
        """Whether its caches are synced, so that it sees the whole cluster from now on."""
        if not is_written(self._certificate):
            return False
        try:
            return bool(self._get("/readyz").status == 200)
        except urllib3.exceptions.HTTPError:
            return False

    def metrics(self) -> str:
        """Its metrics in Prometheus' text format."""
        return self._get("/metrics").data.decode()

    def terminate(self, grace_seconds: float = 5.0) -> None:
        super().terminate(grace_seconds)
        if self._pool is not None:
            self._pool.clear()

    def _get(self, path: str) -> urllib3.BaseHTTPResponse:
        if self._pool is None:
            tls = ssl.create_default_context(cafile=self._certificate)
            self._pool = urllib3.PoolManager(ssl_context=tls, retries=False)
        return self._pool.request("GET", self.url + path, timeout=PATIENCE_SECONDS)
