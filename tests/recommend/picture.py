"""Takes the picture of docs/recommend.md, from played pods: `make screenshots`."""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from pathlib import Path

from tests.browser.chromium import launched
from tests.browser.screenshots import save
from tests.recommend.played import HOUR, PlayedPod, PlayedWorkload, play
from vramcast.cli.recommend.page import to_html
from vramcast.recommend.report import make_report
from vramcast.recommend.runs import History, PodRun, Workload

START = 1_794_700_800  # a Sunday
DAYS = 30
STEP = 300
TASKS = ("embedder", "ranker", "finetune", "detector", "whisper", "reranker", "captions", "ocr", "segmenter", "chat")
TEAMS = ("search", "speech", "vision", "ads", "research")


def named(workload: PlayedWorkload, number: int) -> PlayedWorkload:
    name = f"{TASKS[number % len(TASKS)]}{f'-v{1 + number // len(TASKS)}' if number >= len(TASKS) else ''}"
    return replace(
        workload, namespace=TEAMS[number % len(TEAMS)], name=name, busy_percent=workload.busy_percent * 2 // 3
    )


def as_run(pod: PlayedPod, workload: PlayedWorkload) -> PodRun:
    times = pod.sampled_at
    middle = times[len(times) // 2]
    peaks = {(node, uuid): pod.mib(middle, number) for number, (node, uuid, _) in enumerate(pod.places)}
    steps = len(pod.places) * ((pod.end - pod.start) // STEP + 1)
    return PodRun(
        Workload(workload.namespace, workload.kind, workload.name), pod.batch, workload.model.replace(" ", "-"), "",
        pod.start, pod.end, peaks, steps, 0, workload.busy_percent / 100, 1.0, pod.failed,
        {"nvidia.com/gpu": workload.gpus}, ("main",),
    )  # fmt: skip


def history() -> History:
    end = START + DAYS * 24 * HOUR
    pods = play(120, START, end, seed=3, pods_each=(4, 16), hours=14.0)
    numbers = list(range(120))
    random.Random(3).shuffle(numbers)
    found = dict.fromkeys(pod.workload for pod in pods)
    renamed = {workload: named(workload, number) for workload, number in zip(found, numbers, strict=False)}
    runs = [as_run(pod, renamed[pod.workload]) for pod in pods]
    return History(START, end, STEP, runs, windows=DAYS * 4, first_at=START, last_at=end, gpus=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    with launched() as browser:
        page = browser.new_page(viewport={"width": 1200, "height": 1050}, color_scheme="light")
        page.set_content(to_html(make_report(history(), 0.05)))
        save(page.screenshot(), out)


if __name__ == "__main__":
    main()
