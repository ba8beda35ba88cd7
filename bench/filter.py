"""How long a filter call takes, compared with a bare ASGI app that parses the body and echoes the node names.

    python bench/filter.py [--nodes 100 1000 5000] [--calls 400] [--runs 5] [--out docs/benchmarks/filter.md]

Both servers run at the same time and are called in turn, each over one keep-alive connection, so that other load on the
machine affects both alike. Read the ratio. Node names come in a new order with every call, as they do from the
scheduler's parallel filters. Three pods: one fits every node, one fits some, and one fits none (its answer has a reason
for each node). Every run starts both servers anew; each figure is the median of the runs. "Ready" is the time from the
start of the process to the first 200 of /readyz, with the simulated cluster built in between; memory is what the
process has resident after its calls. `make bench` runs the service in an environment with what the image has installed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from big_cluster import node_name  # noqa: E402 - in this directory, not a package

# The GPUs have 40, 80 and 46 GB, about half of it free.
PODS = {"fits every node": "4Gi", "fits some nodes": "24Gi", "fits no node": "60Gi"}
FLOOR_PORT, SERVICE_PORT = 18881, 18882
# The last section of the page, which before.py makes.
BEFORE = "## Before utilization was in the ranking\n"


@dataclass(frozen=True, slots=True)
class Result:
    nodes: int
    pod: str
    floor_ms: list[float]
    service_ms: list[float]
    resident_mib: float
    ready_seconds: float

    def ratio(self, share: float) -> float:
        return quantile(self.service_ms, share) / quantile(self.floor_ms, share)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def typical_container() -> dict[str, object]:
    """The size of a typical training pod, not the bare minimum."""
    return {
        "name": "train", "image": "registry.example/team/train:2024.11", "command": ["python", "train.py"],
        "env": [{"name": f"SETTING_{i}", "value": f"value-{i}"} for i in range(12)],
        "resources": {"limits": {"cpu": "8", "memory": "64Gi"}, "requests": {"cpu": "8", "memory": "64Gi"}},
        "volumeMounts": [{"name": f"data-{i}", "mountPath": f"/data/{i}"} for i in range(4)],
    }  # fmt: skip


def body(pod: str, memory: str, names: list[str]) -> bytes:
    manifest = {
        "metadata": {
            "name": pod, "namespace": "team-a", "uid": f"uid-{pod}", "resourceVersion": "123456",
            "labels": {"app": "train", "batch.kubernetes.io/job-name": pod},
            "annotations": {"vramcast.dev/share": "true", "vramcast.dev/gpu-memory": memory},
        },
        "spec": {"containers": [typical_container()], "schedulerName": "vramcast-scheduler", "priority": 0},
        "status": {"phase": "Pending"},
    }  # fmt: skip
    # Compact, like Go's encoder.
    return json.dumps({"Pod": manifest, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()


def binding(pod: str, node: str) -> bytes:
    names = {"PodName": pod, "PodNamespace": "team-a", "PodUID": f"uid-{pod}", "Node": node}
    return json.dumps(names).encode()


def ask(connection: http.client.HTTPConnection, payload: bytes, path: str = "/filter") -> float:
    started = time.perf_counter()
    connection.request("POST", path, payload, {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read()
    elapsed = (time.perf_counter() - started) * 1e3
    if response.status != 200:
        raise SystemExit(f"a call failed with {response.status}")
    return elapsed


def measure(nodes: int, calls: int, python: str) -> list[Result]:
    names = [str(node_name(number)) for number in range(nodes)]
    floor = subprocess.Popen([sys.executable, str(HERE / "floor.py"), str(FLOOR_PORT)])
    to_floor = connect(FLOOR_PORT)
    started = time.perf_counter()
    service = subprocess.Popen(
        [python, str(HERE / "big_cluster.py"), str(SERVICE_PORT), str(nodes)], stderr=subprocess.DEVNULL
    )
    try:
        wait_ready(SERVICE_PORT)
        ready_seconds = time.perf_counter() - started
        to_service = connect(SERVICE_PORT)
        return [measure_pod(nodes, pod, names, calls, to_floor, to_service, service.pid, ready_seconds) for pod in PODS]
    finally:
        for process in (floor, service):
            process.terminate()
            process.wait()


def measure_pod(
    nodes: int, pod: str, names: list[str], calls: int,
    to_floor: http.client.HTTPConnection, to_service: http.client.HTTPConnection, pid: int,
    ready_seconds: float,
) -> Result:  # fmt: skip
    shuffle = random.Random(nodes).shuffle
    floor_ms, service_ms = [], []
    for call in range(calls + 50):
        shuffle(names)
        name = f"{pod.replace(' ', '-')}-{call}"
        payload = body(name, PODS[pod], names)
        pair = (ask(to_floor, payload), ask(to_service, payload))
        # A scheduler would bind next. The bind is refused, so the cluster stays half full.
        ask(to_service, binding(name, names[0]), "/bind")
        if call >= 50:
            floor_ms.append(pair[0])
            service_ms.append(pair[1])
    resident_mib = psutil.Process(pid).memory_info().rss / 2**20
    return Result(nodes, pod, floor_ms, service_ms, resident_mib, ready_seconds)


def connect(port: int) -> http.client.HTTPConnection:
    deadline = time.monotonic() + 30
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.connect()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return connection


def wait_ready(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        connection = connect(port)
        connection.request("GET", "/readyz")
        if connection.getresponse().status == 200:
            return
        time.sleep(0.01)
    raise SystemExit("the service was not ready within two minutes")


def table(runs: list[list[Result]]) -> str:
    """Each run has the same rows."""
    header = "nodes x 8 GPUs | pod | floor P50 / P99 ms | vramcast P50 / P99 ms | ratio P50 (every run) | ratio P99"
    lines = [f"| {header} | memory MB | ready s |", "|---|---|---|---|---|---|---|---|"]
    for rows in zip(*runs, strict=True):

        def middle(figure: Callable[[Result], float], rows: tuple[Result, ...] = rows) -> float:
            return statistics.median(map(figure, rows))

        floor = [middle(lambda r, share=share: quantile(r.floor_ms, share)) for share in (0.5, 0.99)]
        service = [middle(lambda r, share=share: quantile(r.service_ms, share)) for share in (0.5, 0.99)]
        every = ", ".join(f"{each.ratio(0.5):.2f}" for each in rows)
        lines.append(
            f"| {rows[0].nodes} | {rows[0].pod} | {floor[0]:.2f} / {floor[1]:.2f} "
            f"| {service[0]:.2f} / {service[1]:.2f} "
            f"| **{middle(lambda r: r.ratio(0.5)):.2f}** ({every}) | {middle(lambda r: r.ratio(0.99)):.2f} "
            f"| {middle(lambda r: r.resident_mib) * 1.048576:.0f} | {middle(lambda r: r.ready_seconds):.2f} |"
        )
    return "\n".join(lines)


def parts(page: str) -> tuple[str, str]:
    """What this command makes, and what before.py makes."""
    own, heading, rest = page.partition(BEFORE)
    return own.rstrip() + "\n", heading + rest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 1000, 5000])
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--python", default=sys.executable, help="runs the service; an environment that has vramcast")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    runs = []
    for run in range(1, arguments.runs + 1):
        results = []
        for nodes in arguments.nodes:
            print(f"run {run} of {arguments.runs}, {nodes} nodes ...", file=sys.stderr, flush=True)
            results += measure(nodes, arguments.calls, arguments.python)
        runs.append(results)
    text = table(runs)
    print(text)
    if arguments.out:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        _, before = parts(arguments.out.read_text() if arguments.out.exists() else "")
        page = f"# Filter latency compared with a bare server\n\n{(__doc__ or '').strip()}\n\n{text}\n"
        arguments.out.write_text(page + f"\n{before}" if before else page)


if __name__ == "__main__":
    main()
