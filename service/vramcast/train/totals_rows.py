"""Keeps the rows that were built of simulated runs: describing them all takes longer than simulating half of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import numpy as np

from vramcast.forecast.totals_features import VERSION
from vramcast.train.progress import Progress
from vramcast.train.simulated import SimulatedJob
from vramcast.train.simulated_data import Simulated, Tokens, build


def kept_rows(
    work: Path, jobs: Sequence[SimulatedJob], groups: Mapping[str, str], progress: Progress
) -> tuple[Simulated, Tokens]:
    """Built once for the same jobs, architectures and version of the features."""
    path = work / f"totals-rows-{_digest(jobs, groups)}.npz"
    if not path.exists():
        _write(path, *build(jobs, groups, progress))
    with np.load(path) as kept:
        data = Simulated(*(kept[field.name] for field in fields(Simulated)))
        return data, Tokens(kept["tokens"], kept["kinds"])


def _write(path: Path, data: Simulated, tokens: Tokens) -> None:
    arrays = {field.name: getattr(data, field.name) for field in fields(data)} | asdict(tokens)
    unfinished = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(unfinished, **arrays)
    unfinished.replace(path)


def _digest(jobs: Sequence[SimulatedJob], groups: Mapping[str, str]) -> str:
    told = hashlib.sha256(VERSION.encode())
    for job in jobs:
        told.update(repr((groups.get(job.model), job)).encode())
    return told.hexdigest()[:12]
