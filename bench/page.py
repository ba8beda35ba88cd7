"""What the page costs: filter latency with and without two readers, and how soon a browser shows 5,000 nodes.

    python -m bench.page [--calls 3000] [--out docs/benchmarks/page.md]

One service with 5,000 nodes of 8 GPUs. Filter calls alternate between blocks without and with two readers, so that
other load on the machine affects both alike. A reader asks as the page does, every second: one for its window of nodes,
one for its window of pods.
"""

from __future__ import annotations

import argparse
import http.client
import random
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from tests.browser.chromium import launched  # noqa: E402

from big_cluster import node_name  # noqa: E402 - in this directory, not a package
from filter import ask, binding, body, connect, quantile, wait_ready  # noqa: E402

PORT = 18884
NODES = 5000
BLOCK = 50


class Reader(threading.Thread):
    """One open page."""

    def __init__(self, path: str) -> None:
        super().__init__(daemon=True)
        self._path = path
        self.reading = threading.Event()
        self.ended = False
        self.answers = 0
        self.most_bytes = 0

    def run(self) -> None:
        connection = connect(PORT)
        while not self.ended:
            self.reading.wait()
            connection.request("GET", self._path)
            answer = connection.getresponse().read()
            self.answers += 1
            self.most_bytes = max(self.most_bytes, len(answer))
            time.sleep(1.0)


def call(connection: http.client.HTTPConnection, names: list[str], number: int) -> float:
    random.shuffle(names)
    took = ask(connection, body(f"p{number}", "24Gi", names))
    # A scheduler would bind next. The bind is refused, so the cluster stays half full.
    ask(connection, binding(f"p{number}", names[0]), "/bind")
    return took


def measure(calls: int) -> tuple[list[float], list[float], list[Reader]]:
    names = [str(node_name(number)) for number in range(NODES)]
    connection = connect(PORT)
    readers = [Reader("/cluster?limit=40"), Reader("/pods?limit=40")]
    for reader in readers:
        reader.start()
    for number in range(BLOCK):
        call(connection, names, number)
    alone: list[float] = []
    together: list[float] = []
    for block in range(2 * calls // BLOCK):
        with_readers = block % 2 == 1
        for reader in readers:
            (reader.reading.set if with_readers else reader.reading.clear)()
        took = together if with_readers else alone
        took += [call(connection, names, BLOCK * (block + 1) + number) for number in range(BLOCK)]
    for reader in readers:
        reader.ended = True
        reader.reading.set()
        reader.join()
    return alone, together, readers


def render() -> list[float]:
    """Seconds until a browser shows the first rows, five times."""
    seconds = []
    with launched() as browser:
        for _ in range(5):
            page = browser.new_page()
            started = time.perf_counter()
            page.goto(f"http://127.0.0.1:{PORT}/")
            page.locator(".node .gpu").first.wait_for()
            seconds.append(time.perf_counter() - started)
            page.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--python", default=sys.executable, help="runs the service; an environment that has vramcast")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    command = [arguments.python, str(HERE / "big_cluster.py"), str(PORT), str(NODES)]
    service = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_ready(PORT)
        alone, together, readers = measure(arguments.calls)
        seconds = render()
    finally:
        service.terminate()
        service.wait()
    lines = ["| filter call, 5,000 nodes | without readers | with two readers | ratio |", "|---|---|---|---|"]
    for name, share in (("P50", 0.5), ("P90", 0.9), ("P99", 0.99)):
        without, with_two = quantile(alone, share), quantile(together, share)
        lines.append(f"| {name} | {without:.2f} ms | {with_two:.2f} ms | {with_two / without:.2f} |")
    answers = sum(reader.answers for reader in readers)
    size = max(reader.most_bytes for reader in readers) / 1000
    lines += [
        "",
        f"{len(together)} calls with readers, {answers} answers to them of at most {size:.0f} kB.",
        f"A browser shows the first rows of 5,000 nodes after {statistics.median(seconds):.2f} s (median of five).",
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.out:
        arguments.out.write_text(f"# What the page costs\n\n{(__doc__ or '').strip()}\n\n{text}\n")


if __name__ == "__main__":
    main()
