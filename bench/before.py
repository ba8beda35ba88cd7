"""What utilization in the ranking costs: filter and prioritize, compared with the revision before it.

    python -m bench.before [--before REVISION] [--nodes 1000 5000] [--calls 400] [--runs 5] [--out PAGE]

All services run at the same time, on the same clusters as above, and take turns in being asked first. As the scheduler
does, each cycle asks filter about every node, and prioritize about the nodes that filter offered (the 100 best). The
times are for the whole HTTP call. *Before* is a checkout of that revision, which ranks by packing alone. *Now* is
vramcast as installed: these pods' utilization is not known, so they count with `assumed_utilization`, and their
slowdown is harmless. *Busy* is the same with `assumed_utilization` 0.9, so that slowdown is weighed on every GPU. The
times are P10, because other load on the machine affects the fastest tenth of the calls least.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.big_cluster import node_name
from bench.filter import BEFORE as HEADING
from bench.filter import PODS, binding, body, connect, parts, quantile, wait_ready

ROOT = Path(__file__).parents[1]
BEFORE, NOW, BUSY = "before", "now", "busy"
_PORTS = {BEFORE: 18883, NOW: 18884, BUSY: 18885}
_BUSY_SHARE = "0.9"
_SHARE = 0.1  # of the calls are faster than what is told
_WARM_UP = 50


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of every call, by service."""

    nodes: int
    pod: str
    filter_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _PORTS})
    prioritize_ms: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _PORTS})

    def both_ms(self, service: str) -> float:
        """Filter and prioritize together."""
        return quantile(self.filter_ms[service], _SHARE) + quantile(self.prioritize_ms[service], _SHARE)

    def ratio(self, service: str) -> float:
        return self.both_ms(service) / self.both_ms(BEFORE)


def check_out(revision: str, into: Path) -> None:
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")


def start(name: str, before: Path, nodes: int) -> subprocess.Popen[bytes]:
    checkout = before if name == BEFORE else ROOT
    environment = {**os.environ, "PYTHONPATH": str(checkout / "service")}
    command = [sys.executable, str(checkout / "bench/big_cluster.py"), str(_PORTS[name]), str(nodes)]
    command += [_BUSY_SHARE] if name == BUSY else []
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def measure(before: Path, nodes: int, calls: int) -> list[Result]:
    services = [start(name, before, nodes) for name in _PORTS]
    try:
        for port in _PORTS.values():
            wait_ready(port)
        asked = {name: connect(port) for name, port in _PORTS.items()}
        return [measure_pod(asked, nodes, pod, calls) for pod in PODS]
    finally:
        for process in services:
            process.terminate()
            process.wait()


def measure_pod(asked: dict[str, http.client.HTTPConnection], nodes: int, pod: str, calls: int) -> Result:
    names, shuffle = [str(node_name(number)) for number in range(nodes)], random.Random(nodes).shuffle
    found, turn = Result(nodes, pod), list(asked)
    for call in range(calls + _WARM_UP):
        shuffle(names)
        turn.append(turn.pop(0))
        name = f"{pod.replace(' ', '-')}-{call}"
        payload = body(name, PODS[pod], names)
        for service in turn:
            offered, filter_ms = timed(asked[service], "/filter", payload)
            prioritize_ms = 0.0
            if offered["NodeNames"]:
                preferred = body(name, PODS[pod], offered["NodeNames"])
                _, prioritize_ms = timed(asked[service], "/prioritize", preferred)
            # A scheduler would bind next. The bind is refused, so the cluster stays half full.
            timed(asked[service], "/bind", binding(name, names[0]))
            if call >= _WARM_UP:
                found.filter_ms[service].append(filter_ms)
                found.prioritize_ms[service].append(prioritize_ms)
    return found


def timed(connection: http.client.HTTPConnection, path: str, payload: bytes) -> tuple[dict[str, list[str]], float]:
    """The answer, and how long it took in milliseconds."""
    started = time.perf_counter()
    connection.request("POST", path, payload, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    elapsed_ms = (time.perf_counter() - started) * 1e3
    if response.status != 200:
        raise SystemExit(f"{path} failed with {response.status}")
    return json.loads(answer), elapsed_ms


def table(runs: list[list[Result]]) -> str:
    """Each run has the same rows."""
    header = "nodes x 8 GPUs | pod | filter P10 before / now / busy ms | prioritize P10"
    lines = [f"| {header} | both, now / before (every run) | both, busy / before |", "|---|---|---|---|---|---|"]
    for rows in zip(*runs, strict=True):

        def told(of: Callable[[Result], dict[str, list[float]]], rows: tuple[Result, ...] = rows) -> str:
            values = [statistics.median(quantile(of(row)[name], _SHARE) for row in rows) for name in _PORTS]
            return " / ".join(f"{value:.2f}" for value in values) if values[0] else "-"

        def ratio(service: str, rows: tuple[Result, ...] = rows) -> str:
            every = ", ".join(f"{row.ratio(service):.2f}" for row in rows)
            return f"**{statistics.median(row.ratio(service) for row in rows):.2f}** ({every})"

        lines.append(
            f"| {rows[0].nodes} | {rows[0].pod} | {told(lambda r: r.filter_ms)} "
            f"| {told(lambda r: r.prioritize_ms)} | {ratio(NOW)} | {ratio(BUSY)} |"
        )
    return "\n".join(lines)


def section(revision: str, calls: int, text: str) -> str:
    about = (__doc__ or "").split("\n", 2)[2].strip("\n")
    return f"{HEADING}\n{about}\n\nBefore: `{revision}`. {calls} calls of each kind in every run.\n\n{text}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="5db12cf", help="a revision")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1000, 5000])
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a page, whose last section this becomes")
    arguments = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as directory:
        check_out(arguments.before, Path(directory))
        for run in range(1, arguments.runs + 1):
            print(f"run {run} of {arguments.runs} ...", file=sys.stderr, flush=True)
            runs.append([one for nodes in arguments.nodes for one in measure(Path(directory), nodes, arguments.calls)])
    text = table(runs)
    print(text)
    if arguments.out:
        page, _ = parts(arguments.out.read_text(encoding="utf-8"))
        arguments.out.write_text(f"{page}\n{section(arguments.before, arguments.calls, text)}", encoding="utf-8")


if __name__ == "__main__":
    main()
