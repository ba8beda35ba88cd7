"""Simulated runs: recordings of the catalog, replayed under random settings.

A recording tells what a run takes without a GPU, so there are as many runs to learn from as anybody likes. From them
the model of totals learns what a summary leaves out. Each network has a file of its own, named after its recordings: an
interrupted command goes on where it stopped, two may share the directory, and new recordings only cost their own runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vramcast.errors import InvalidTask
from vramcast.forecast import recorded
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.physics import summary_prior
from vramcast.forecast.recorded import forecast_recording, load_recording
from vramcast.forecast.recording import Recording
from vramcast.forecast.recordings import Recordings, builtin_recordings, key_of
from vramcast.forecast.sizes import Variable
from vramcast.forecast.summary import summarized
from vramcast.forecast.variants import VARIANTS
from vramcast.names import Product
from vramcast.task.quantity import GIB
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX
from vramcast.train.progress import Progress

VERSION = 1  # of what is drawn
_ANY_PRODUCT = Product("NVIDIA-A100-SXM4-80GB")  # a replay knows no limit
_RISK = 0.05
# How many jobs are drawn for each recording, and of each so many sizes (lengths or sides) and batches. More jobs would
# be of the same few architectures.
_JOBS = 6
_SIZES = 2
_BATCHES = 4
_MOST_BYTES = 400 * GIB
_MOST_BATCH = 4096
_LENGTHS = (32, 16_384)
# How often people use what.
_OPTIMIZERS = {"adamw": 0.5, "sgd-momentum": 0.15, "adam8bit": 0.1, "sgd": 0.07, "adafactor": 0.06, "lion": 0.04,
               "rmsprop": 0.04, "adagrad": 0.04}  # fmt: skip
_RANKS = (4, 8, 16, 32, 64, 128, 256)
_GPUS = (2, 4, 8, 16, 32, 64)
_STAGES = {"alone": 0.55, "ddp": 0.07, "1": 0.06, "2": 0.1, "3": 0.22}
_ACCUMULATES = 0.3
_WITHOUT_MASTERS = 0.5


@dataclass(frozen=True, slots=True)
class Point:
    """One run of a job; `length` and `side` are 0 where the network has none."""

    batch: int
    length: int
    side: int
    active_bytes: int
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """A network with its settings, as annotations, at several sizes."""

    model: str
    variant: str
    settings: dict[str, str]
    points: tuple[Point, ...]


def simulate(
    work: Path, progress: Progress, *, models: Sequence[str] | None = None, jobs: int = _JOBS
) -> list[SimulatedJob]:
    """The runs of every recorded network, or of `models`; those that `work` has are not made again."""
    recordings = builtin_recordings()
    work.mkdir(parents=True, exist_ok=True)
    found: list[SimulatedJob] = []
    for model in progress.over(sorted(recordings.models if models is None else models), "simulated runs"):
        variants = [name for name in VARIANTS if key_of(model, name) in recordings]
        name, digest = model.replace("/", "--"), _digest(recordings, model, variants, jobs)
        found += _kept(work / f"{name}-{digest}.json.gz", partial(_simulated, model, variants, jobs))
        found += _kept(work / f"{name}-alone-{digest}.json.gz", partial(_sharded_alone, model, variants))
    return found


def _kept(path: Path, make: Callable[[], Iterator[SimulatedJob]]) -> list[SimulatedJob]:
    return _read(path) if path.exists() else _write(path, list(make()))


def _digest(recordings: Recordings, model: str, variants: Sequence[str], jobs: int) -> str:
    blobs = (recordings.packed(key_of(model, name)) for name in variants)
    parts = (str((VERSION, recorded.VERSION, jobs)).encode(), *(hashlib.sha256(blob).digest() for blob in blobs))
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def _read(path: Path) -> list[SimulatedJob]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows: list[dict[str, Any]] = json.load(file)
    return [SimulatedJob(**{**row, "points": tuple(Point(*point) for point in row["points"])}) for row in rows]


def _write(path: Path, jobs: list[SimulatedJob]) -> list[SimulatedJob]:
    rows = [asdict(job) | {"points": [list(asdict(point).values()) for point in job.points]} for job in jobs]
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), 6, mtime=0))
    unfinished.replace(path)
    return jobs


def _simulated(model: str, variants: Sequence[str], jobs: int) -> Iterator[SimulatedJob]:
    line = builtin_catalog().line(model)
    if line is None:
        return
    for variant in variants:
        recording = load_recording(key_of(model, variant))
        rng = np.random.default_rng([VERSION, zlib.crc32(key_of(model, variant).encode())])
        for _ in range(jobs):
            settings = _settings(variant, rng)
            if points := tuple(_points(line, variant, recording, settings, rng)):
                yield SimulatedJob(model, variant, settings, points)


def _sharded_alone(model: str, variants: Sequence[str]) -> Iterator[SimulatedJob]:
    """DeepSpeed on one GPU, as people try ZeRO and offloading: language models with all weights trained."""
    line = builtin_catalog().line(model)
    if line is None or line.sequence_length is None:
        return
    for variant in variants:
        said = dict(VARIANTS[variant])
        if said.get("task") == "inference" or "lora-rank" in said or "quantization" in said:
            continue
        rng = np.random.default_rng([VERSION, zlib.crc32(key_of(model, variant).encode()), 1])
        said |= {
            "optimizer": _drawn(_OPTIMIZERS, rng),
            "data-parallel-size": "1",
            "zero-stage": str(rng.choice((2, 3))),
        }
        if points := tuple(_points(line, variant, load_recording(key_of(model, variant)), said, rng)):
            yield SimulatedJob(model, variant, said, points)


# ---------------------------------------------------------------------- what is drawn


def _settings(variant: str, rng: np.random.Generator) -> dict[str, str]:
    said = dict(VARIANTS[variant])
    if said.get("task") == "inference":
        return said
    said["optimizer"] = _drawn(_OPTIMIZERS, rng)
    if "lora-rank" in said:
        said["lora-rank"] = str(rng.choice(_RANKS))
    if rng.random() < _ACCUMULATES:
        said["gradient-accumulation"] = str(rng.choice((2, 4, 8, 16)))
    if said.get("quantization") in {"nf4", "int8"} and "upcast" not in said:
        return said  # shards are of one number format, so nothing is upcast there
    stage = _drawn(_STAGES, rng)
    if stage == "alone":
        return said
    said["data-parallel-size"] = str(rng.choice(_GPUS))
    if stage == "ddp":
        return said
    said["zero-stage"] = stage
    if stage != "1" and said["precision"] == "bf16" and rng.random() < _WITHOUT_MASTERS:
        said["master-weights"] = "false"
    return said


def _drawn(shares: Mapping[str, float], rng: np.random.Generator) -> str:
    weights = np.array(list(shares.values()))
    return str(rng.choice(list(shares), p=weights / weights.sum()))


def _points(
    line: Line, variant: str, recording: Recording, settings: Mapping[str, str], rng: np.random.Generator
) -> Iterator[Point]:
    task = job_task(line.name, settings)
    for length, side in sorted({_size(line, recording, rng) for _ in range(_SIZES)}):
        sized = at_point(line, task, 1, length, side)
        for batch in _batches(line, sized, rng):
            run = replace(sized, batch_size=batch)
            try:
                said = forecast_recording(key_of(line.name, variant), run, _ANY_PRODUCT, _RISK)
            except InvalidTask:
                continue
            assert said.allocated is not None and said.reserved is not None  # noqa: S101, PT018 - it is recorded
            active, reserved = said.allocated.median_bytes, said.reserved.median_bytes
            yield Point(batch, length, side, active, reserved)


def _size(line: Line, recording: Recording, rng: np.random.Generator) -> tuple[int, int]:
    """Length and side."""
    if line.sequence_length is not None:
        low, high = recording.limits(Variable.LENGTH) if Variable.LENGTH in recording.variables else (0, 0)
        low, high = max(low, _LENGTHS[0]), min(high, _LENGTHS[1])
        if low >= high:
            return line.sequence_length, 0
        drawn = math.exp(rng.uniform(math.log(low), math.log(high)))
        return max(low, round(drawn / 8) * 8) if drawn >= 8 else low, 0
    if line.input_shape is None or len(line.input_shape) != 3:
        return 0, 0
    usual = line.input_shape[-1]
    if Variable.SIDE not in recording.variables or rng.random() < 0.5:
        return 0, usual
    low, high = recording.limits(Variable.SIDE)
    return 0, int(min(high, max(low, round(usual * rng.choice((0.5, 0.75, 1.25, 1.5, 2.0)) / 32) * 32)))


def _batches(line: Line, task: Task, rng: np.random.Generator) -> list[int]:
    """Powers of two, as far as a node of many GPUs could hold the step."""
    network = builtin_catalog().describe(line.name, task.input_size, task.sequence_length).network
    run = summarized(task, network)

    def fits(batch: int) -> bool:
        return summary_prior(replace(run, batch_size=batch), _ANY_PRODUCT).total_bytes < _MOST_BYTES

    most = 1
    while most < _MOST_BATCH and fits(2 * most):
        most *= 2
    powers = [1 << power for power in range(most.bit_length())]
    return sorted(int(batch) for batch in rng.choice(powers, min(_BATCHES, len(powers)), replace=False))


def job_task(model: str, settings: Mapping[str, str]) -> Task:
    task = parse_task({PREFIX + name: text for name, text in {"model": model, **settings}.items()})
    assert task is not None  # noqa: S101 - it names a model
    return replace(task, share=True)  # no GPU of its own, so no limit


def at_point(line: Line, task: Task, batch: int, length: int, side: int) -> Task:
    size = None if line.input_shape is None else (*line.input_shape[:-2], side, side) if side else line.input_shape
    size = None if line.sequence_length is not None else size
    return replace(task, batch_size=batch, sequence_length=length or None, input_size=size)
