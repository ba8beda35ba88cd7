"""How long the forecast of a model by name takes, from its recorded steps.

    python bench/names.py [--out docs/benchmarks/names.md]

Times are those of the processor, on one thread, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.forecast.named import KnownSteps, steps_of
from vramcast.forecast.recorded import clear_caches, clear_measured, task_tape
from vramcast.forecast.recordings import builtin_recordings
from vramcast.names import Product
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX

GPU = Product("NVIDIA-A100-SXM4-80GB")
RUNS = 21
BATCHES = range(1, 33)
_LLAMA = {"model": "meta-llama/Llama-3.1-8B", "precision": "bf16", "sequence-length": "4096"}
_CHECKPOINTED = {"gradient-checkpointing": "true"}
CASES: dict[str, dict[str, str]] = {
    "LoRA, checkpointing": {**_LLAMA, **_CHECKPOINTED, "lora-rank": "16"},
    "LoRA": {**_LLAMA, "lora-rank": "16"},
    "nf4, LoRA, checkpointing": {
        **_LLAMA, **_CHECKPOINTED, "lora-rank": "16", "quantization": "nf4",
    },
    "full, checkpointing": {**_LLAMA, **_CHECKPOINTED},
    "full, checkpointing, ZeRO-3 on 8 GPUs": {
        **_LLAMA, **_CHECKPOINTED, "zero-stage": "3", "data-parallel-size": "8",
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=Path, help="write the page here")
    out = parser.parse_args().out
    text = page()
    if out:
        out.write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)


def page() -> str:
    return HEAD + "\n".join(row(name, settings) for name, settings in CASES.items()) + "\n"


HEAD = f"""# Forecasts by name

How long a forecast of Llama-3.1-8B takes from its recorded steps: processor time of one thread.

    python bench/names.py --out docs/benchmarks/names.md

*First*: the recording is packed, as after a start. *One*: it is unpacked, but nothing about the task is cached (must
5 ms, aim 1 ms). *Next*: a task with the same settings and another batch was forecast before, so its optimizer and
sharding are in the steps already. All are medians of {RUNS}. *Sweep*: {len(BATCHES)} batches, with nothing cached at
its start (must 200 ms, aim 60 ms). Other work on the same cores makes them longer, because it takes the caches: the
load was {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.

| settings | allocations and frees | first | one | next | sweep |
|---|---|---|---|---|---|
"""


def row(name: str, settings: dict[str, str]) -> str:
    tasks = [task_of({**settings, "batch-size": str(batch)}) for batch in BATCHES]
    steps = steps_of(tasks[3])
    assert isinstance(steps, KnownSteps), f"{name} has no recording"
    events = len(task_tape(steps.key, steps.task).events)

    def first() -> None:
        builtin_recordings.cache_clear()
        one()

    def one() -> None:
        clear_caches()
        forecast(tasks[3])

    def next_batch() -> None:
        clear_measured()
        forecast(tasks[3])

    def sweep() -> None:
        clear_caches()
        for task in tasks:
            forecast(task)

    each = [median(milliseconds(work) for _ in range(RUNS)) for work in (first, one, next_batch)]
    shown = " | ".join(f"{time_ms:.1f} ms" for time_ms in each)
    return f"| {name} | {events:,} | {shown} | {min(milliseconds(sweep) for _ in range(3)):.0f} ms |"


def task_of(settings: dict[str, str]) -> Task:
    task = parse_task({PREFIX + name: value for name, value in settings.items()})
    assert task is not None
    return task


def forecast(task: Task) -> None:
    """Not through the forecaster's own cache."""
    _FORECASTER._forecast(task, GPU)


_FORECASTER = choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)


def milliseconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return 1000 * (time.thread_time() - start)


if __name__ == "__main__":
    main()
