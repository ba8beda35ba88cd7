"""The real service on a cluster in memory that a test changes: `python -m tests.browser.stage PORT`, commands on stdin.

Each command is a JSON object and is answered with one line: {"create": MANIFEST} creates and schedules a pod, {"try":
MANIFEST} schedules it again, {"end": "namespace/name"} ends it.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from vramcast.app import run
from vramcast.cluster.static import StaticCluster
from vramcast.demo import kubelet
from vramcast.demo.play import DEMO_SETTINGS
from vramcast.demo.scheduler import DemoScheduler
from vramcast.demo.telemetry import DemoTelemetry
from vramcast.observe.logs import configure_logs
from vramcast.settings import load_settings

CLUSTER = Path(__file__).parent / "cluster.yaml"


def act(cluster: StaticCluster, url: str, command: dict[str, Any]) -> str:
    scheduler = DemoScheduler(url)
    match command:
        case {"create": manifest}:
            cluster.create_pod(manifest)
            return place(cluster, scheduler, manifest)
        case {"try": manifest}:
            return place(cluster, scheduler, manifest)
        case {"end": key}:
            namespace, _, name = key.partition("/")
            return str(kubelet.end(cluster, namespace, name))
        case _:
            raise ValueError(command)


def place(cluster: StaticCluster, scheduler: DemoScheduler, manifest: dict[str, Any]) -> str:
    node = scheduler.schedule(manifest).node
    if node:
        kubelet.start(cluster, manifest["metadata"]["namespace"], manifest["metadata"]["name"])
    return node


def follow(cluster: StaticCluster, url: str) -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        print(act(cluster, url, json.loads(line)), flush=True)


def main(port: int) -> None:
    settings = load_settings({**DEMO_SETTINGS, "port": port, "cluster": CLUSTER}, {})
    configure_logs(settings.log_format, settings.log_level)
    cluster = StaticCluster.from_file(CLUSTER)
    run(settings, cluster, partial(follow, cluster), DemoTelemetry(cluster))


if __name__ == "__main__":
    main(int(sys.argv[1]))
