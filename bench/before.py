"""What utilization in the ranking costs: filter and prioritize, compared with the revision before it.

    python -m bench.before [--before REVISION] [--nodes 1000 5000] [--calls 400] [--runs 5] [--out PAGE]

Both services run at the same time, on the same clusters as above, and take turns to be asked first. Each cycle asks
filter with every node, and prioritize with those that filter offered (the 100 best), as the scheduler does. The times
are those of the whole HTTP call. The service before runs from a checkout of its revision; it knows no slowdown, and
ranks by packing alone.
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
from bench.filter import PODS, binding, body, connect, quantile, wait_ready

ROOT = Path(__file__).parents[1]
BEFORE, AFTER = "before", "after"
_PORTS = {BEFORE: 18883, AFTER: 18884}
_WARM_UP = 50
_HEADING = "## Before utilization was in the ranking\n"


@dataclass(frozen=True, slots=True)
class Result:
    """Milliseconds of every call, by revision."""

    nodes: int
    pod: str
    filter_ms: dict[str, list[float]] = field(default_factory=lambda: {BEFORE: [], AFTER: []})
    prioritize_ms: dict[str, list[float]] = field(default_factory=lambda: {BEFORE: [], AFTER: []})

    def both_ms(self, revision: str) -> float:
        """The median filter and the median prioritize together."""
        return statistics.median(self.filter_ms[revision]) + statistics.median(self.prioritize_ms[revision])

    @property
    def ratio(self) -> float:
        return self.both_ms(AFTER) / self.both_ms(BEFORE)


def check_out(revision: str, into: Path) -> None:
    archive = subprocess.run(["git", "archive", revision], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")


def start(checkout: Path, port: int, nodes: int) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "service")}
    command = [sys.executable, str(checkout / "bench/big_cluster.py"), str(port), str(nodes)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def measure(before: Path, nodes: int, calls: int) -> list[Result]:
    services = {name: start({BEFORE: before, AFTER: ROOT}[name], port, nodes) for name, port in _PORTS.items()}
    try:
        for port in _PORTS.values():
            wait_ready(port)
        asked = {name: connect(port) for name, port in _PORTS.items()}
        return [measure_pod(asked, nodes, pod, calls) for pod in PODS]
    finally:
        for process in services.values():
            process.terminate()
            process.wait()


def measure_pod(asked: dict[str, http.client.HTTPConnection], nodes: int, pod: str, calls: int) -> Result:
    names, shuffle = [str(node_name(number)) for number in range(nodes)], random.Random(nodes).shuffle
    found = Result(nodes, pod)
    for call in range(calls + _WARM_UP):
        shuffle(names)
        name = f"{pod.replace(' ', '-')}-{call}"
        payload = body(name, PODS[pod], names)
        for revision in (BEFORE, AFTER) if call % 2 else (AFTER, BEFORE):
            offered, filter_ms = timed(asked[revision], "/filter", payload)
            prioritize_ms = 0.0
            if offered["NodeNames"]:
                preferred = body(name, PODS[pod], offered["NodeNames"])
                _, prioritize_ms = timed(asked[revision], "/prioritize", preferred)
            # A scheduler would bind next. The bind is refused, so the cluster stays half full.
            timed(asked[revision], "/bind", binding(name, names[0]))
            if call >= _WARM_UP:
                found.filter_ms[revision].append(filter_ms)
                found.prioritize_ms[revision].append(prioritize_ms)
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
    header = "nodes x 8 GPUs | pod | filter P50 before / after ms | prioritize P50 | filter P99 | both, after / before"
    lines = [f"| {header} (every run) |", "|---|---|---|---|---|---|"]
    for rows in zip(*runs, strict=True):

        def told(share: float, of: Callable[[Result], dict[str, list[float]]], rows: tuple[Result, ...] = rows) -> str:
            middle = [statistics.median(quantile(of(row)[name], share) for row in rows) for name in (BEFORE, AFTER)]
            return " / ".join(f"{value:.2f}" for value in middle) if middle[0] else "-"

        every = ", ".join(f"{row.ratio:.2f}" for row in rows)
        lines.append(
            f"| {rows[0].nodes} | {rows[0].pod} | {told(0.5, lambda r: r.filter_ms)} "
            f"| {told(0.5, lambda r: r.prioritize_ms)} | {told(0.99, lambda r: r.filter_ms)} "
            f"| **{statistics.median(row.ratio for row in rows):.2f}** ({every}) |"
        )
    return "\n".join(lines)


def section(revision: str, text: str) -> str:
    about = (__doc__ or "").split("\n", 2)[2].strip()
    return f"{_HEADING}\n{about}\n\nBefore: `{revision}`.\n\n{text}\n"


def with_section(page: str, section: str) -> str:
    """The page with this section at its end, instead of the one it had."""
    return page.partition(_HEADING)[0].rstrip() + "\n\n" + section


def section_of(page: str) -> str:
    """What another command has to leave as it is; empty if there is none."""
    _, heading, rest = page.partition(_HEADING)
    return heading + rest


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
        page = arguments.out.read_text(encoding="utf-8")
        arguments.out.write_text(with_section(page, section(arguments.before, text)), encoding="utf-8")


if __name__ == "__main__":
    main()
