"""Pairs of jobs on one GPU as Gavel measured them (V100, P100, K80), and the law's constant, which is fitted to them.

Gavel shows no utilization, only steps per second at several batch sizes. The share of a step that grows with the batch
is the share in which the GPU works, so a straight line through the step times gives it. A job that trains without a
pause keeps the GPU busy all the time; nothing shows how busy it was beyond that.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bench.interference.recall import Floats

from vramcast.placement.interference import pressure

# A3C and CycleGAN have one batch size, so no line. Recommendation loses 95 % of its speed on the V100 beside anything,
# however small: its speed alone must have been measured with another input pipeline.
LEFT_OUT = frozenset({"A3C", "CycleGAN", "Recommendation"})
# Pairs on older GPUs slow each other more, and the GPUs that vramcast is for are newer than all three.
NEWEST = "v100"
_JOB = re.compile(r"\('([\w-]+)(?: \(batch size (\d+)\))?', 1\)")
_CONSTANTS = np.arange(0.0, 4.0, 0.01)

Job = tuple[str, int]  # model and batch size


@dataclass(frozen=True, slots=True)
class Pairs:
    """One entry per job of a pair: the share of the time in which it works, its neighbour's, and its slowdown."""

    own: Floats
    other: Floats
    slowdown: Floats
    models: npt.NDArray[np.str_]  # (jobs, 2)
    gpus: npt.NDArray[np.str_]

    def only(self, kept: npt.NDArray[np.bool_]) -> Pairs:
        return Pairs(self.own[kept], self.other[kept], self.slowdown[kept], self.models[kept], self.gpus[kept])

    def on(self, gpu: str) -> Pairs:
        return self.only(self.gpus == gpu)


def read_pairs(path: Path) -> Pairs:
    """Of jobs on one GPU. Pairs that did not run together are left out: their speed is 0."""
    rows = [row for row in _rows(path) if _job(row["jobA"]) and _job(row["jobB"])]
    alone = {(row["gpu"], *_known(row["jobA"])): float(row["tputA_iso"] or 0) for row in rows}
    work = work_shares({key: speed for key, speed in alone.items() if speed > 0 and key[1] not in LEFT_OUT})
    found, names = [], []
    for row in rows:
        own, other = (row["gpu"], *_known(row["jobA"])), (row["gpu"], *_known(row["jobB"]))
        speeds = float(row["normA"] or 0), float(row["normB"] or 0)
        if own in work and other in work and min(speeds) > 0:
            found.append((work[own], work[other], 1.0 / speeds[0]))
            names.append((own[1], other[1], row["gpu"]))
    own_work, other_work, slow = np.array(found, dtype=np.float64).reshape(-1, 3).T
    told = np.array(names).reshape(-1, 3)
    return Pairs(own_work, other_work, slow, told[:, :2], told[:, 2])


def work_shares(speeds: dict[tuple[str, str, int], float]) -> dict[tuple[str, str, int], float]:
    """By (GPU, model, batch size), from steps per second alone."""
    shares = {}
    for (gpu, model), keys in groupby(sorted(speeds), key=lambda key: key[:2]):
        batches = [batch for _, _, batch in keys]
        if len(batches) < 2:
            continue
        batch = np.array(batches, dtype=np.float64)
        seconds = np.array([1.0 / speeds[gpu, model, size] for size in batches])
        # Least squares of the relative error.
        terms = np.stack([1.0 / seconds, batch / seconds], axis=1)
        fixed, per_sample = np.linalg.lstsq(terms, np.ones(len(batch)), rcond=None)[0]
        fixed, per_sample = max(fixed, 0.0), max(per_sample, 1e-12)
        shares |= {(gpu, model, size): float(size * per_sample / (fixed + size * per_sample)) for size in batches}
    return shares


def loss(pairs: Pairs) -> Floats:
    """What the law says that each job loses, before a constant scales it."""
    own, other = (np.array([pressure(1.0, share) for share in shares]) for shares in (pairs.own, pairs.other))
    return np.asarray(own * other)


def fit(lost: Floats, slowdown: Floats) -> tuple[float, float]:
    """The constant with the smallest mean absolute error, and that error."""
    errors = [float(np.abs(1.0 + constant * lost - slowdown).mean()) for constant in _CONSTANTS]
    best = int(np.argmin(errors))
    return float(_CONSTANTS[best]), errors[best]


# What a job may lose beside another, by both shares of work, before a constant scales it.
FORMS: Mapping[str, Callable[[Floats, Floats], Floats]] = {
    "(own x other)^1/4, as shipped": lambda own, other: (own * other) ** 0.25,
    "√(own x other)": lambda own, other: np.sqrt(own * other),
    "own x other": lambda own, other: own * other,
    "the smaller": np.minimum,
    "what both have above 1": lambda own, other: np.maximum(own + other - 1, 0),
    "their mean": lambda own, other: (own + other) / 2,
    "own": lambda own, _other: own,
    "other": lambda _own, other: other,
}


def blind_errors(pairs: Pairs) -> dict[str, float]:
    """Of each form on the pairs of a model that its constant was not fitted on: the mean over the models."""
    found = {}
    for name, form in FORMS.items():
        lost, errors = form(pairs.own, pairs.other), []
        for model in sorted(set(pairs.models.ravel().tolist())):
            held = (pairs.models == model).any(axis=1)
            constant, _ = fit(lost[~held], pairs.slowdown[~held])
            errors.append(float(np.abs(1 + constant * lost[held] - pairs.slowdown[held]).mean()))
        found[name] = float(np.mean(errors))
    return found


def _known(text: str) -> Job:
    job = _job(text)
    assert job is not None
    return job


def _job(text: str) -> Job | None:
    """None: a job on several GPUs."""
    match = _JOB.fullmatch(text)
    return (match[1], int(match[2] or 0)) if match else None


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
