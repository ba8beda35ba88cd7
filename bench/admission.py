"""How many pods a minute the admission webhook answers on one core, and what that costs the scheduler.

    python -m bench.admission [--pods 1000] [--runs 5] [--blocks 15] [--out docs/benchmarks/admission.md]

The real service on a simulated cluster of five GPU products, bound to one core, asked over TLS on four keep-alive
connections. "Pods a minute" divides by the processor time that the service used, forecasts included, so that other load
on the machine does not count. The aim is 1,000 a minute. Latency is what a client saw while the machine did other
things too. Every run starts the service anew; each figure is the median of the runs. Kinds: pods of one large job (one
description, cached after the first), pods that each have a description of their own (a forecast for five products
each), pods with a mistake, and Jobs.

Then filter calls, in blocks of two seconds: alone, and beside 1,000 admissions a minute. Read the ratio.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.filter import ask, body, connect, quantile, typical_container, wait_ready
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
BLOCK_SECONDS = 2.0


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


BESIDE = ("pods of one job", "pods of their own description")


def pod(number: int, task: dict[str, str]) -> Any:
    metadata = {
        "name": f"p-{number}", "namespace": "team-a", "labels": {"app": "train"},
        "annotations": {f"vramcast.dev/{key}": value for key, value in task.items()},
    }  # fmt: skip
    spec = {"containers": [typical_container()], "schedulerName": "default-scheduler", "restartPolicy": "Never"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def review(raw: Any) -> bytes:
    request = {"uid": "u", "kind": {"kind": raw["kind"]}, "namespace": "team-a", "operation": "CREATE", "object": raw}
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    port: int
    webhook_port: int


@contextmanager
def service(python: str, directory: Path, identity: Identity, *, one_core: bool = False) -> Iterator[Running]:
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
        for task in psutil.Process(process.pid).threads() if one_core else ():
            os.sched_setaffinity(task.id, {max(os.sched_getaffinity(0))})
        yield Running(process.pid, port, webhook_port)
    finally:
        process.terminate()
        process.wait()


def measure(kind: str, pods: int, python: str, identity: Identity, trust: ssl.SSLContext) -> Measured:
    bodies = [review(KINDS[kind](number)) for number in range(pods)]
    with (
        tempfile.TemporaryDirectory() as directory,
        service(python, Path(directory), identity, one_core=True) as running,
    ):
        port = running.webhook_port
        # Loads the model and the catalog.
        ask_all([review(one_job(0))], port, trust)
        before = processor_seconds(running.pid)
        with ThreadPoolExecutor(CONNECTIONS) as clients:
            parts = [bodies[start::CONNECTIONS] for start in range(CONNECTIONS)]
            latencies = [each for part in clients.map(lambda p: ask_all(p, port, trust), parts) for each in part]
        return Measured((processor_seconds(running.pid) - before) * 1e3 / pods, latencies)


class Applying(threading.Thread):
    """Creates pods of a kind at the aimed rate; none if `kind` is empty."""

    def __init__(self, port: int, trust: ssl.SSLContext) -> None:
        super().__init__(daemon=True)
        self.kind, self.ended = "", False
        self._port, self._trust = port, trust

    def run(self) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._trust, timeout=60)
        for number in itertools.count():
            time.sleep(60 / REQUIRED_A_MINUTE)
            if self.ended:
                return
            if self.kind:
                connection.request("POST", "/admit", review(KINDS[self.kind](number)))
                connection.getresponse().read()


def measure_filter(blocks: int, python: str, identity: Identity, trust: ssl.SSLContext) -> dict[str, list[float]]:
    """Milliseconds of filter calls, alone and beside admissions."""
    took: dict[str, list[float]] = {"alone": [], **{f"beside 1,000 {kind} a minute": [] for kind in BESIDE}}
    with tempfile.TemporaryDirectory() as directory, service(python, Path(directory), identity) as running:
        applying = Applying(running.webhook_port, trust)
        applying.start()
        connection = connect(running.port)
        for block in range(blocks):
            for beside, milliseconds in took.items():
                applying.kind = next((kind for kind in BESIDE if kind in beside), "")
                until = time.monotonic() + BLOCK_SECONDS
                while time.monotonic() < until:
                    milliseconds.append(ask(connection, body(f"f-{block}", "10Gi", ["a", "b", "c", "d", "e"])))
                    time.sleep(0.002)
        applying.ended = True
        applying.join()
    return took


def filter_table(took: dict[str, list[float]]) -> str:
    lines = ["| filter calls | calls | P50 ms | P99 ms | ratio P50 | ratio P99 |", "|---|---|---|---|---|---|"]
    for name, milliseconds in took.items():
        p50, p99 = (quantile(milliseconds, share) for share in (0.5, 0.99))
        ratios = [quantile(milliseconds, share) / quantile(took["alone"], share) for share in (0.5, 0.99)]
        lines.append(f"| {name} | {len(milliseconds):,} | {p50:.2f} | {p99:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")
    return "\n".join(lines)


def processor_seconds(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def ask_all(bodies: list[bytes], port: int, trust: ssl.SSLContext) -> list[float]:
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
    latencies = []
    for payload in bodies:
        started = time.perf_counter()
        connection.request("POST", "/admit", payload, {"Content-Type": "application/json"})
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
    parser.add_argument("--blocks", type=int, default=15)
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
        filters = measure_filter(arguments.blocks, arguments.python, identity, trust)
    text = f"{table(runs)}\n\n{filter_table(filters)}"
    print(text)
    if arguments.out:
        arguments.out.write_text(f"# Pods a minute through the webhook\n\n{(__doc__ or '').strip()}\n\n{text}\n")


if __name__ == "__main__":
    main()
