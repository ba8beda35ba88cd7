"""Pods per second of the real kube-scheduler: alone, with a trivial extender, and with vramcast.

    python -m bench.scheduler --out docs/benchmarks/scheduler.md

All variants share one control plane and one set of nodes. They take turns, so that a slow minute of the machine
affects all of them, and each turn runs only its own processes. The pods are created before their scheduler starts, so
the time from the first bind to the last, by the scheduler's own log, is scheduling and not pod creation. KWOK is
stopped once the nodes are ready: with two cores, simulating a thousand kubelets would dominate the result.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shlex
import statistics
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import urllib3
from tests.controlplane import (
    ControlPlane,
    Process,
    Scheduler,
    eventually,
    extender,
    free_port,
    scheduler_config,
)
from tests.controlplane.objects import Json, shared_pod, sharing_node

ROOT = Path(__file__).parents[1]
_BOUND = b'"Successfully bound pod to node"'
VERBS = ("filter", "prioritize", "bind")
TRIVIAL = f"{shlex.quote(sys.executable)} -m bench.trivial_extender --port {{port}}"
VRAMCAST = f"{shlex.quote(sys.executable)} -m vramcast serve --port {{port}}"


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    command: str | None  # starts the extender; "{port}" is filled in


@dataclass(frozen=True, slots=True)
class Result:
    """One turn of one variant."""

    pods_per_second: float
    cpu_seconds: Mapping[str, float]  # by process, between the first and the last bind
    scheduler_seconds: float  # by the scheduler's metric: from taking a pod to choosing its node
    verb_seconds: Mapping[str, float]  # by the extender's metric
    verb_calls: Mapping[str, int]
    pods: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Metrics in Prometheus text format."""

    text: str

    def total(self, pattern: str) -> float:
        found = re.findall(rf"^{pattern}(?:\s)(\S+)$", self.text, re.MULTILINE)
        return sum(float(value) for value in found)

    def verb(self, verb: str, suffix: str) -> float:
        """Matches any histogram with a verb label, because the two extenders use different names."""
        return self.total(rf'\w+_seconds_{suffix}\{{[^}}]*verb="{verb}"[^}}]*\}}')


def run_turn(plane: ControlPlane, variant: Variant, turn: int, pods: int) -> Result:
    """Creates the pods, lets one scheduler bind them, and cleans up."""
    name = f"bench-{variant.name}-{turn}"
    names = [f"{name}-{number}" for number in range(pods)]
    plane.api.create_pods(shared_pod(pod, "10Gi", scheduler=name) for pod in names)
    process = None if variant.command is None else start_extender(plane, name, variant.command)
    try:
        entries = [] if process is None else [extender(process.url)]
        scheduler = plane.scheduler(scheduler_config(*entries, name=name))
        try:
            return _measure(plane, scheduler, process, pods)
        finally:
            scheduler.terminate()
            plane.schedulers.remove(scheduler)
    finally:
        if process is not None:
            process.terminate()
        plane.api.delete_pods(names)


class Extender(Process):
    """An extender's process and its URL."""

    def __init__(self, plane: ControlPlane, name: str, command: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        environment = {"KUBECONFIG": str(plane.kubeconfig), "PYTHONPATH": _python_path()}
        arguments = shlex.split(command.format(port=port))
        super().__init__("extender", arguments, plane.directory / f"{name}.log", environment)

    def ready(self) -> bool:
        self.check_alive()
        try:
            return self._get("/readyz").status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def samples(self) -> Samples:
        return Samples(self._get("/metrics").data.decode())

    def _get(self, path: str) -> urllib3.BaseHTTPResponse:
        return urllib3.request("GET", self.url + path, timeout=2.0, retries=False)


def _python_path() -> str:
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def start_extender(plane: ControlPlane, name: str, command: str) -> Extender:
    process = Extender(plane, name, command)
    process.start()
    try:
        eventually(process.ready, 60, "the extender is ready")
    except BaseException:
        print(process.log_tail(), file=sys.stderr)
        process.terminate()
        raise
    return process


def _measure(plane: ControlPlane, scheduler: Scheduler, process: Extender | None, pods: int) -> Result:
    watched = [plane.apiserver, plane.etcd, scheduler, *([process] if process else [])]

    # The scheduler may have bound pods before it was ready. CPU is counted from here, so those pods are not counted.
    before = {_label(one): one.cpu_seconds() for one in watched}
    already = _bound(scheduler.log)
    # Poll rarely and cheaply: polling takes CPU from what is measured.
    eventually(lambda: _bound(scheduler.log) >= pods, 600, f"{pods} pods are bound", interval_seconds=0.2)
    share = pods / max(1, pods - already)
    cpu = {_label(one): (one.cpu_seconds() - before[_label(one)]) * share for one in watched}
    times = _bind_times(scheduler.log)
    own = Samples(scheduler.metrics())
    theirs = process.samples() if process else Samples("")
    return Result(
        pods_per_second=(pods - 1) / (times[-1] - times[0]),
        cpu_seconds=cpu,
        scheduler_seconds=own.total(r"scheduler_scheduling_algorithm_duration_seconds_sum"),
        verb_seconds={verb: theirs.verb(verb, "sum") for verb in VERBS},
        verb_calls={verb: int(theirs.verb(verb, "count")) for verb in VERBS},
        pods=pods,
    )


def _label(process: Process) -> str:
    return "kube-scheduler" if isinstance(process, Scheduler) else process.name


def _bound(log: Path) -> int:
    return log.read_bytes().count(_BOUND)


def _bind_times(log: Path) -> list[float]:
    """When the scheduler logged a successful bind, in seconds."""
    year = datetime.now().year  # klog omits the year
    stamps = [line[1:21].decode() for line in log.read_bytes().splitlines() if _BOUND in line]
    return sorted(datetime.strptime(f"{year}{stamp}", "%Y%m%d %H:%M:%S.%f").timestamp() for stamp in stamps)


# --- the report


def report(results: Mapping[str, Sequence[Result]], nodes: int, pods: int) -> str:
    rates = {name: statistics.median(r.pods_per_second for r in turns) for name, turns in results.items()}
    turns_each = len(next(iter(results.values())))
    setting = (
        "`python -m bench.scheduler --out docs/benchmarks/scheduler.md`: pods per second with no extender, with a "
        f"trivial extender that accepts everything, and with vramcast. {nodes} nodes with 8 GPUs each, {pods} shared "
        f"pods per turn, {turns_each} turns for each variant in rotation, {os.cpu_count()} cores for everything "
        f"({platform.machine()}, Python {platform.python_version()}). Medians, with the range in parentheses."
    )
    lines = [
        "# Throughput of the real kube-scheduler",
        "",
        *textwrap.wrap(setting, 120),
        "",
        "| variant | pods per second | to none | to trivial |",
        "|---|---|---|---|",
    ]
    for name, turns in results.items():
        spread = sorted(result.pods_per_second for result in turns)
        lines.append(
            f"| {name} | {rates[name]:.0f} ({spread[0]:.0f} to {spread[-1]:.0f}) "
            f"| {_ratio(results, name, 'none')} | {_ratio(results, name, 'trivial')} |"
        )
    lines += ["", *_time_table(results, rates), "", *_cpu_table(results), ""]
    return "\n".join(lines)


def _ratio(results: Mapping[str, Sequence[Result]], name: str, base: str) -> str:
    """The median of the ratios per turn: neighbouring runs saw the same load on the machine."""
    if base not in results:
        return "n/a"
    pairs = zip(results[name], results[base], strict=False)  # the last turn may be incomplete
    return f"{statistics.median(one.pods_per_second / other.pods_per_second for one, other in pairs):.2f}"


def _time_table(results: Mapping[str, Sequence[Result]], rates: Mapping[str, float]) -> list[str]:
    """Where a pod's time goes. Binds overlap the cycles, so they are not part of the sum."""
    meaning = (
        "Milliseconds per pod: wall time (1 / rate), the scheduler's cycle by its own metric, and the time inside the "
        "extender by the extender's metric. The rest of the cycle is the scheduler's own work, JSON and HTTP."
    )
    lines = [
        *textwrap.wrap(meaning, 120),
        "",
        "| variant | wall | cycle | filter | prioritize | rest of the cycle | bind (overlaps) |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, turns in results.items():
        cycle = _median_per_pod(turns, [one.scheduler_seconds for one in turns])
        verbs = {verb: _median_per_pod(turns, [one.verb_seconds[verb] for one in turns]) for verb in VERBS}
        rest = cycle - verbs["filter"] - verbs["prioritize"]
        cells = (1000 / rates[name], cycle, verbs["filter"], verbs["prioritize"], rest, verbs["bind"])
        lines.append(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return lines


def _cpu_table(results: Mapping[str, Sequence[Result]]) -> list[str]:
    processes = ("kube-apiserver", "etcd", "kube-scheduler", "extender")
    lines = [
        "CPU milliseconds per pod, by process:",
        "",
        f"| variant | {' | '.join(processes)} | sum |",
        "|---|" + "---|" * (len(processes) + 1),
    ]
    for name, turns in results.items():
        cells = [_median_per_pod(turns, [one.cpu_seconds.get(process, 0.0) for one in turns]) for process in processes]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in (*cells, sum(cells))) + " |")
    return lines


def _median_per_pod(turns: Sequence[Result], seconds: Sequence[float]) -> float:
    """In milliseconds."""
    return 1000 * statistics.median(s / turn.pods for s, turn in zip(seconds, turns, strict=True))


# --- the command


def main() -> None:
    options = _options()
    commands = {"none": None, "trivial": TRIVIAL, "vramcast": options.vramcast}
    variants = [Variant(name, commands[name]) for name in options.variants.split(",")]
    results: dict[str, list[Result]] = {variant.name: [] for variant in variants}
    with ControlPlane() as plane:
        prepare(plane, (sharing_node(f"gpu-{number:04}") for number in range(options.nodes)))
        run_turn(plane, variants[0], -1, max(50, options.pods // 5))  # warm-up, not counted
        for turn in range(options.turns):
            for variant in variants:
                started = time.monotonic()
                result = run_turn(plane, variant, turn, options.pods)
                results[variant.name].append(result)
                print(
                    f"turn {turn + 1}/{options.turns} {variant.name}: {result.pods_per_second:.0f} pods/s "
                    f"({time.monotonic() - started:.0f} s)",
                    flush=True,
                )
                # Written after every turn, so an interrupted run still has a result.
                if all(results.values()):
                    options.out.write_text(report(results, options.nodes, options.pods))
    print(options.out.read_text())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the markdown file to write")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pods", type=int, default=1000, help="per turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--variants", default="none,trivial,vramcast", help="comma-separated, in this order")
    parser.add_argument("--vramcast", default=VRAMCAST, help="the command that starts it; {port} is filled in")
    return parser.parse_args()


def prepare(plane: ControlPlane, nodes: Iterable[Json]) -> None:
    """Creates them and waits until they are ready. Then KWOK is stopped."""
    plane.api.create_nodes(nodes)

    def all_ready() -> bool:
        conditions = [node["status"].get("conditions", ()) for node in plane.api.nodes()]
        return all(any(c["type"] == "Ready" and c["status"] == "True" for c in one) for one in conditions)

    eventually(all_ready, 120, "all nodes are ready", interval_seconds=0.5)
    plane.kwok.terminate()


if __name__ == "__main__":
    main()
