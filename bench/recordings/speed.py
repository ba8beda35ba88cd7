"""How long a forecast from a recording takes: the tape at a point, the optimizer's update, and the replay."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.recordings.cases import Loss, Recipe
from bench.recordings.taping import cached_at, load_tape

from vramcast.forecast.peaks import peaks
from vramcast.forecast.recording import Recording
from vramcast.forecast.sizes import Variable
from vramcast.forecast.storage import decode, encode
from vramcast.forecast.update import with_update
from vramcast.profile.solving import solve
from vramcast.task.vocabulary import Optimizer

_POINTS = ((2, 512), (3, 1031), (5, 2053))
_RUNS = 30
_BATCHES = range(1, 33)


def recipes() -> list[Recipe]:
    """Mistral-7B with LoRA at points that tell its sizes apart."""
    return [
        Recipe(
            network="hf/mistralai/Mistral-7B-v0.1", batch=batch, size=tokens, weights="bf16", attention="flash",
            checkpointing="reentrant", lora_rank=16, loss=Loss.SHIFTED_LABELS,
        )
        for batch, tokens in _POINTS
    ]  # fmt: skip


def measured(folder: Path) -> str:
    """A paragraph for the page; nothing if the recordings are missing."""
    paths = [cached_at(folder, recipe) for recipe in recipes()]
    if not all(path.exists() for path in paths):
        return ""
    points = [{Variable.BATCH: batch, Variable.LENGTH: tokens} for batch, tokens in _POINTS]
    text = encode(solve(list(zip(points, map(load_tape, paths), strict=True))))
    recording = decode(text)
    answer(recording, 4)
    one = median(milliseconds(lambda: answer(recording, 4)) for _ in range(_RUNS))
    sweep = min(milliseconds(lambda: [answer(recording, batch) for batch in _BATCHES]) for _ in range(3))
    read = median(milliseconds(lambda: decode(text)) for _ in range(_RUNS))
    return (
        f"One forecast of Mistral-7B with LoRA, checkpointing and AdamW takes {one:.1f} ms of processor time (median "
        f"of {_RUNS}, one thread; must 5 ms, aim 1 ms), a sweep of {len(_BATCHES)} batches {sweep:.0f} ms (must 200 "
        f"ms, aim 60 ms). Its recording has {len(text):,} characters and is read in {read:.1f} ms.\n"
    )


def answer(recording: Recording, batch: int) -> None:
    tape = recording.at({Variable.BATCH: batch, Variable.LENGTH: 1024}).tape
    peaks(with_update(tape, Optimizer.ADAMW))


def milliseconds(work: Callable[[], object]) -> float:
    start = time.thread_time()
    work()
    return 1000 * (time.thread_time() - start)
