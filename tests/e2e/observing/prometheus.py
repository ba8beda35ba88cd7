"""A real Prometheus on loopback, queried without vramcast's own client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.controlplane import PATIENCE_SECONDS, Process, eventually, free_port

Json = dict[str, Any]
START_SECONDS = 60.0
INTERVAL = "1s"


def job(name: str, targets: Mapping[str, str], labels: Mapping[str, str] | None = None, **more: Any) -> Json:
    """`targets`: the URL to scrape (`http://host:port/path`) by instance name."""
    groups = []
    for instance, url in targets.items():
        host, _, path = url.removeprefix("http://").partition("/")
        own = {"instance": instance, "__metrics_path__": f"/{path}"}
        groups.append({"targets": [host], "labels": {**own, **(labels or {})}})
    return {"job_name": name, "static_configs": groups, **more}


class Prometheus:
    """Keeps its port and its data across `stop` and `start`."""

    def __init__(
        self,
        program: Path,
        directory: Path,
        jobs: Sequence[Json],
        rules: Json | None = None,
        options: Sequence[str] = (),
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = directory / "prometheus.yaml"
        rule_file = directory / "rules.yaml"
        rule_file.write_text(yaml.safe_dump(rules or {"groups": []}))
        config.write_text(
            yaml.safe_dump(
                {
                    "global": {
                        "scrape_interval": INTERVAL,
                        "scrape_timeout": INTERVAL,
                        "evaluation_interval": INTERVAL,
                    },
                    "rule_files": [str(rule_file)],
                    "scrape_configs": list(jobs),
                }
            )
        )
        command = [
            str(program),
            f"--config.file={config}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=warn",
            *options,
        ]
        self.process = Process(f"prometheus {directory.name}", command, directory / "prometheus.log")

    def start(self) -> None:
        self.process.start()
        eventually(self._ready, what="Prometheus to be ready")

    def stop(self) -> None:
        self.process.terminate()

    def _ready(self) -> bool:
        self.process.check_alive()
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, path: str, **fields: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=fields, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """An instant vector, or a scalar as a vector of one."""
        data = self.ask("query", query=expression)
        if data["resultType"] == "scalar":
            return [({}, float(data["result"][1]))]
        return [(series["metric"], float(series["value"][1])) for series in data["result"]]

    def total(self, expression: str) -> float:
        """The sum over all series."""
        return sum(value for _, value in self.query(expression))

    def samples(self, selector: str, window: str = "1h") -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Raw samples with their timestamps."""
        data = self.ask("query", query=f"{selector}[{window}]")
        return [(series["metric"], [(at, float(value)) for at, value in series["values"]]) for series in data["result"]]

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}
