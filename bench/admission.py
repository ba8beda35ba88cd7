"""How many pods a minute the admission webhook answers on one core.

    python -m bench.admission [--pods 1000] [--runs 5] [--python PYTHON] [--out docs/benchmarks/admission.md]

The real service on a simulated cluster of five GPU products, bound to one core, asked over TLS on four keep-alive
connections. "Pods a minute" divides by the processor time that the service used, forecasts included, so that other load
on the machine does not count. The aim is 1,000 a minute. Latency is what a client saw while the machine did other
things too. Every run starts the service anew; each figure is the median of the runs. Kinds: pods of one large job (one
description, cached after the first), pods that each have a description of their own (a forecast for five products
each), pods with a mistake, and Jobs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.filter import quantile, wait_ready
from tests.controlplane import free_port
from tests.serve.identities import Identity, make_identity

CLUSTER = """
nodes:
- {name: a, product: Tesla-T4, gpus: 8, sharing: true}
- {name: b, product: NVIDIA-L40S, gpus: 8, sharing: true}
- {name: c, product: NVIDIA-A100-SXM4-40GB, gpus: 8, sharing: true}
- {name: d, product: NVIDIA-A100-SXM4-80GB, gpus: 8, sharing: true}
- {name: e, product: NVIDIA-H100-80GB-HBM3, gpus: 8, sharing: true}
"""
CONNECTIONS = 4
REQUIRED_A_MINUTE = 1000


@dataclass(frozen=True, slots=True)
class Measured:
    processor_ms: float  # of one pod
    latencies_ms: list[float]

    @property
    def a_minute(self) -> float:
        return 60_000 / self.processor_ms


def one_job(number: int) -> Any:
    return pod(number, {"model": "timm/resnet50", "batch-size": "64", "precision": "amp-fp16"})


def own_description(number: int) -> Any:
    return pod(number, {"model": "timm/resnet50", "batch-size": str(number + 1)})


def mistake(number: int) -> Any:
    return pod(number, {"model": "timm/resnet50", "batch-sise": "64"})


def job(number: int) -> Any:
    made = one_job(number)
    template = {"metadata": made["metadata"], "spec": made["spec"]}
    return {"kind": "Job", "metadata": {"name": f"j-{number}"}, "spec": {"template": template}}


KINDS: dict[str, Callable[[int], Any]] = {
    "pods of one job": one_job,
    "pods of their own description": own_description,
    "pods with a mistake": mistake,
    "Jobs": job,
}


def pod(number: int, task: dict[str, str]) -> Any:
    """The size of a typical training pod, not the bare minimum."""
    container = {
        "name": "train", "image": "registry.example/team/train:2024.11", "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(12)],
        "resources": {"limits": {"cpu": "8", "memory": "64Gi"}, "requests": {"cpu": "8", "memory": "64Gi"}},
        "volumeMounts": [{"name": f"data-{i}", "mountPath": f"/data/{i}"} for i in range(4)],
    }  # fmt: skip
    metadata = {
        "name": f"p-{number}", "namespace": "team-a", "labels": {"app": "train"},
        "annotations": {f"vramcast.dev/{key}": value for key, value in task.items()},
    }  # fmt: skip
    spec = {"containers": [container], "schedulerName": "default-scheduler", "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def review(raw: Any) -> bytes:
    request = {"uid": "u", "kind": {"kind": raw["kind"]}, "namespace": "team-a", "operation": "CREATE", "object": raw}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


@contextmanager
def service(python: str, directory: Path, identity: Identity) -> Iterator[tuple[int, int]]:
    """Its process and the port of the webhook."""
    port, webhook_port = free_port(), free_port()
    (directory / "cluster.yaml").write_text(CLUSTER)
    settings = {
        "port": port, "webhook_port": webhook_port, "webhook_cert_file": str(identity.cert),
        "webhook_key_file": str(identity.key), "webhook_scheduler_name": "vramcast-scheduler",
        "cluster": str(directory / "cluster.yaml"), "log_level": "info", "log_format": "json",
    }  # fmt: skip
    (directory / "settings.json").write_text(json.dumps(settings))
    command = [python, "-m", "vramcast", "serve", f"--config={directory / 'settings.json'}"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        wait_ready(port)
        for task in psutil.Process(process.pid).threads():
            os.sched_setaffinity(task.id, {max(os.sched_getaffinity(0))})
        yield process.pid, webhook_port
    finally:
        process.terminate()
        process.wait()


def measure(kind: str, pods: int, python: str, identity: Identity, trust: ssl.SSLContext) -> Measured:
    bodies = [review(KINDS[kind](number)) for number in range(pods)]
    with tempfile.TemporaryDirectory() as directory, service(python, Path(directory), identity) as (pid, port):
        ask_all(bodies[:1] if kind != "pods of their own description" else [review(one_job(0))], port, trust)
        before = processor_seconds(pid)
        with ThreadPoolExecutor(CONNECTIONS) as clients:
            parts = [bodies[start::CONNECTIONS] for start in range(CONNECTIONS)]
            latencies = [each for part in clients.map(lambda p: ask_all(p, port, trust), parts) for each in part]
        return Measured((processor_seconds(pid) - before) * 1e3 / pods, latencies)


def processor_seconds(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def ask_all(bodies: list[bytes], port: int, trust: ssl.SSLContext) -> list[float]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
    latencies = []
    for body in bodies:
        started = time.perf_counter()
        connection.request("POST", "/admit", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = json.loads(response.read())
        latencies.append((time.perf_counter() - started) * 1e3)
        if response.status != 200 or not answer["response"]["allowed"]:
            raise SystemExit(f"a call failed: {answer}")
    connection.close()
    return latencies


def table(runs: dict[str, list[Measured]]) -> str:
    header = "objects | processor ms each | a minute on one core (every run) | ratio to the aim | latency P50 / P99 ms"
    lines = [f"| {header} |", "|---|---|---|---|---|"]
    for kind, measured in runs.items():
        rate = statistics.median(each.a_minute for each in measured)
        every = ", ".join(f"{each.a_minute:,.0f}" for each in measured)
        p50, p99 = (statistics.median(quantile(each.latencies_ms, share) for each in measured) for share in (0.5, 0.99))
        each_ms = statistics.median(each.processor_ms for each in measured)
        lines.append(
            f"| {kind} | {each_ms:.2f} | **{rate:,.0f}** ({every}) | {rate / REQUIRED_A_MINUTE:.0f} "
            f"| {p50:.1f} / {p99:.1f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="runs the service; an environment that has vramcast")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as directory:
        authority = make_identity(Path(directory), "ca")
        identity = make_identity(Path(directory), "webhook", signed_by=authority)
        trust = ssl.create_default_context(cafile=str(authority.cert))
        for _ in range(arguments.runs):
            for kind, measured in runs.items():
                measured.append(measure(kind, arguments.pods, arguments.python, identity, trust))
                print(f"{kind}: {measured[-1].a_minute:,.0f} a minute", file=sys.stderr, flush=True)
    text = table(runs)
    print(text)
    if arguments.out:
        arguments.out.write_text(f"# Pods a minute through the webhook\n\n{(__doc__ or '').strip()}\n\n{text}\n")


if __name__ == "__main__":
    main()
