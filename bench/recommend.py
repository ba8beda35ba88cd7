"""What `vramcast recommend` costs on a large history: time, memory, and what it holds at once.

    python -m bench.recommend [--workloads 1000] [--days 30] [--out docs/benchmarks/recommend.md]

Plays about 5,000 pods over 30 days into a real Prometheus, with the series that dcgm-exporter and kube-state-metrics
leave of them, and runs the program as a shell does: once with an empty cache, once more, and with a server that refuses
large questions. Memory is the peak of the whole process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.recommending.backfill import prometheus, write_blocks
from tests.recommend.played import HOUR, PlayedPod, play, write_openmetrics

SEED = 7
# So few samples that windows of six hours are refused.
LOW_LIMIT = "--query.max-samples=3000"


def run(cache: Path, *arguments: str) -> tuple[float, float, float, str]:
    """Seconds, those of the processor, peak memory in MiB as the kernel counts it, and what the program printed."""
    command = [sys.executable, "-m", "vramcast", "recommend", *arguments]
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(command, env={**os.environ, "XDG_CACHE_HOME": str(cache)}, stdout=printed)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        text = printed.read()
    if process.returncode:
        sys.exit(f"{command} failed")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text


def compare(count: int, days: int, directory: Path) -> list[tuple[str, ...]]:
    end = int(time.time() // (6 * HOUR) * 6 * HOUR) - 6 * HOUR
    start = end - days * 24 * HOUR
    pods = play(count, start, end, SEED, pods_each=(1, 8), hours=4.0)
    lines = directory / "samples.txt"
    samples = write_openmetrics(pods, lines, start, end)
    write_blocks(lines, directory / "server/data")
    lines.unlink()
    shutil.copytree(directory / "server/data", directory / "limited/data")
    whole, limited = prometheus(directory / "server"), prometheus(directory / "limited", [LOW_LIMIT])
    rows = []
    for name, server, cache in (
        ("nothing read before", whole, "a"), ("read before, the newest window again", whole, "a"),
        (f"server with `{LOW_LIMIT}`", limited, "b"),
    ):  # fmt: skip
        server.start()
        try:
            total = 0.0 if rows else server.total(f'count(last_over_time({{__name__=~".+"}}[{days + 1}d]))')
            asked = ("--prometheus", server.url, "--since", f"{days + 1}d", "-o", "json")
            seconds, computed, peak_mib, text = run(directory / cache, *asked)
        finally:
            server.stop()
        check(json.loads(text), pods)
        rows.append((name, f"{seconds:.0f} s", f"{computed:.1f} s", f"{peak_mib:.0f} MiB"))
        if total:
            facts = (f"{len(pods):,}", f"{count:,}", f"{days}", f"{total:,.0f}", f"{samples:,}")
    stored = sum(path.stat().st_size for path in (directory / "a").rglob("*.json"))
    return [facts, (f"{run(directory / 'c', '--help')[2]:.0f}", f"{stored / 2**20:.1f}"), *rows]


def check(answer: dict[str, Any], pods: list[PlayedPod]) -> None:
    """A fast wrong answer is not worth a figure."""
    peaks: dict[str, int] = {}
    for pod in pods:
        peaks[pod.workload.name] = max(pod.peak_mib, peaks.get(pod.workload.name, 0))
    assert {one["name"]: one["peak_mib"] for one in answer["workloads"]} == peaks
    assert answer["pods"] == len(pods)


def page(rows: list[tuple[str, ...]]) -> str:
    (pods, workloads, days, series, samples), (baseline, stored), *runs = rows
    load = os.getloadavg()[1]
    table = "\n".join(f"| {name} | {seconds} | {computed} | {peak} |" for name, seconds, computed, peak in runs)
    return f"""# `vramcast recommend` on a large history

{pods} pods of {workloads} workloads over {days} days in a real Prometheus: {series} series, {samples} samples. Time
and peak memory of the whole process, on two cores that also ran the Prometheus and {load:.0f} other busy
processes.

    python -m bench.recommend --out docs/benchmarks/recommend.md

| | time | of the processor | peak memory |
|---|---|---|---|
{table}

`vramcast recommend --help` alone takes {baseline} MiB. What is kept between runs takes {stored} MiB on disk. The peaks
and the number of pods in every answer equal those that were played. Memory grows with the number of pods and with what
one question of six hours returns, not with the length of the history.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        text = page(compare(arguments.workloads, arguments.days, Path(directory)))
    print(text)
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
