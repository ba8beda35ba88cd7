"""How long pods and people wait: from creating a pod to its Binding, and to its reason on the page.

    python -m bench.waits [--runs 5] [--out docs/benchmarks/waits.md]

A real control plane, and the chart's default mode: a kube-scheduler that holds a Lease, and vramcast beside it. The
first row is a pod that asks for no GPU, which vramcast never sees: what the scheduler alone takes. A refused Binding
costs the pod another turn in the scheduler's queue.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect
from tests.browser.chromium import launched
from tests.chart.replica import Replica
from tests.controlplane import PATIENCE_SECONDS, Api, eventually
from tests.controlplane.objects import pod, shared_pod
from tests.controlplane.today import (
    VolumeBinder,
    clear_today,
    create_claim,
    create_devices,
    create_gang,
    create_volume_claim,
)
from tests.e2e.todays_cluster import (
    SCHEDULER,
    create_gpu_nodes,
    place,
    todays_plane,
    todays_replica,
    unschedulable,
)


@dataclass(frozen=True, slots=True)
class Bench:
    api: Api
    replica: Replica
    page: Page
    seconds: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def nodes(self, count: int) -> Iterator[None]:
        self._clear()
        create_gpu_nodes(self.api, count)
        try:
            yield
        finally:
            self._clear()

    def _clear(self) -> None:
        self.api.clear()
        clear_today(self.api)

    def place(self, row: str, *pods: Any) -> None:
        seconds, refused = place(self.api, self.replica, *pods)
        self.note(row, seconds, refused)

    def note(self, row: str, seconds: float, refused: int = 0) -> None:
        self.seconds.setdefault(row, []).append(seconds)
        self.refused[row] = self.refused.get(row, 0) + refused

    @contextmanager
    def timed(self, row: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.note(row, time.monotonic() - started)


def sharing(name: str, **more: Any) -> Any:
    return shared_pod(name, "30Gi", scheduler=SCHEDULER, **more)


def plain(bench: Bench) -> None:
    with bench.nodes(2):
        bench.place("no GPU", pod("plain", scheduler=SCHEDULER))
        bench.place("described", sharing("described"))


def device_claim(bench: Bench) -> None:
    with bench.nodes(2):
        for node in ("gpu-00", "gpu-01"):
            create_devices(bench.api, node)
        bench.place("with a DRA ResourceClaim", sharing("claims", **create_claim(bench.api, "claim")))


def volume(bench: Bench) -> None:
    with bench.nodes(2), VolumeBinder(bench.api):
        bench.place("with a volume made for its node", sharing("writes", **create_volume_claim(bench.api, "data")))


def roomy_gang(bench: Bench) -> None:
    with bench.nodes(17):
        gang = create_gang(bench.api, "gang", 4)
        bench.place("a gang of 4 on 17 GPUs", *(sharing(f"member-{number}", **gang) for number in range(4)))


def exact_gang(bench: Bench) -> None:
    with bench.nodes(2):
        gang = create_gang(bench.api, "gang", 2)
        bench.place("a gang of 2 on 2 GPUs", *(sharing(name, **gang) for name in ("one", "two")))


def beside_a_gang(bench: Bench) -> None:
    with bench.nodes(2):
        gang = create_gang(bench.api, "gang", 3)
        names = [f"member-{number}" for number in range(3)]
        bench.api.create_pods([sharing(name, **gang) for name in names])
        eventually(lambda: all(unschedulable(bench.api.pod(name)) for name in names), what="the gang to wait")
        bench.place("one pod beside a gang of 3 that does not fit", sharing("single"))


def on_the_page(bench: Bench) -> None:
    bench.page.goto(f"{bench.replica.url}/#pods")
    with bench.nodes(1):
        bench.place("described", sharing("first"))
        # The page also shows the pod of the last run, which has ended.
        late = bench.page.locator(".pod:not(.done)", has_text="default/late")
        with bench.timed("a pod that does not fit, until its reason is on the page"):
            bench.api.create_pod(sharing("late"))
            expect(late).to_contain_text("GPU memory promised to other pods")
        with bench.timed("the same pod, from the end of the other until the page shows its GPU"):
            bench.api.delete_pod("first")
            expect(late).to_contain_text("gpu-00 GPU 0")


SCENARIOS: tuple[Callable[[Bench], None], ...] = (
    plain, device_claim, volume, roomy_gang, exact_gang, beside_a_gang, on_the_page,
)  # fmt: skip


def table(bench: Bench) -> str:
    lines = ["| pod | median s | worst s | times | refused Bindings |", "|---|---|---|---|---|"]
    for row, seconds in bench.seconds.items():
        figures = f"{statistics.median(seconds):.2f} | {max(seconds):.2f} | {len(seconds)} | {bench.refused[row]}"
        lines.append(f"| {row} | {figures} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    with (
        tempfile.TemporaryDirectory() as directory,
        todays_plane() as plane,
        todays_replica(plane, Path(directory)) as replica,
        launched() as browser,
    ):
        bench = Bench(plane.api, replica, browser.new_page())
        for run in range(1, arguments.runs + 1):
            print(f"run {run} of {arguments.runs}", flush=True)
            for scenario in SCENARIOS:
                scenario(bench)
    text = table(bench)
    print(text)
    if arguments.out:
        arguments.out.write_text(f"# How long pods and people wait\n\n{(__doc__ or '').strip()}\n\n{text}\n")


if __name__ == "__main__":
    main()
