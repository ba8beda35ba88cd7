"""Pairs of jobs on one RTX 3090 as Lucid measured them, and how well the law forecasts them. Nothing is fitted here."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from bench.cluster.described import NETWORKS
from bench.interference.recall import PRECISION, TOO_SLOW, Floats, recall

from vramcast.hardware.peaks import PEAKS
from vramcast.names import Product
from vramcast.placement.interference import SLOWDOWN, pressure

GPU = Product("NVIDIA-GeForce-RTX-3090")
_COLUMNS = ("model", "dataset", "batchsize", "amp")
# A pair whose memory reading lacks more than this share of its smaller job's did not run together.
_LACKING = 0.5
_TRAINING_FLOPS_PER_MAC = 6

Ints = npt.NDArray[np.int64]
Names = npt.NDArray[np.str_]


@dataclass(frozen=True, slots=True)
class Alone:
    """The jobs, as each was measured alone. Arrays are (kinds,), shares of the time are 0 to 1."""

    models: Names
    batch_sizes: Ints
    amp: npt.NDArray[np.bool_]
    busy: Floats
    memory: Floats
    compute: Floats  # of the GPU's peak arithmetic, by the size of the network and the measured speed
    inputs: Floats  # (kinds, inputs): everything that was measured

    def each(self, of: Callable[[float, float], float]) -> Floats:
        """Of both shares of the time."""
        return np.array([of(busy, memory) for busy, memory in zip(self.busy, self.memory, strict=True)])

    @property
    def pressures(self) -> Floats:
        return self.each(pressure)


@dataclass(frozen=True, slots=True)
class Pairs:
    """`kinds`: both jobs, (2, pairs). `slowdowns`: of each beside the other, (2, pairs)."""

    alone: Alone
    kinds: Ints
    slowdowns: Floats
    together: npt.NDArray[np.bool_]  # (pairs,), whether both were on the GPU

    @property
    def real(self) -> Pairs:
        """Without rows that are no pairs."""
        there = self.together
        return replace(self, kinds=self.kinds[:, there], slowdowns=self.slowdowns[:, there], together=there[there])

    @property
    def models(self) -> Names:
        """(pairs, 2)"""
        return self.alone.models[self.kinds].T

    @property
    def worst(self) -> Floats:
        """The slowdown of each pair's slower job."""
        return np.asarray(self.slowdowns.max(axis=0))

    def products(self, of_kind: Floats) -> Floats:
        return np.asarray(of_kind[self.kinds].prod(axis=0))

    def recalled(self, order: Floats) -> float:
        return recall(order, self.worst, TOO_SLOW, PRECISION)


def read_pairs(alone: Path, pairs: Path) -> Pairs:
    known, rows = list(_rows(alone)), list(_rows(pairs))
    number = {tuple(row[name] for name in _COLUMNS): position for position, row in enumerate(known)}
    memory_mib = alone_mib(known)
    kinds = [[number[tuple(row[name + side] for name in _COLUMNS)] for row in rows] for side in "12"]
    slowdowns = [[1.0 / float(row[f"speed{side}"]) for row in rows] for side in "12"]
    there = np.array([ran_together(row, memory_mib) for row in rows], np.bool_)
    return Pairs(_alone(known), np.array(kinds), np.array(slowdowns), there)


def ran_together(pair: Mapping[str, str], alone_mib: Mapping[tuple[str, ...], float]) -> bool:
    """Whether the GPU's memory, read while a pair of Lucid ran, has room for both jobs.

    In 54 of 1,388 pairs it is one job's alone, and so is the GPU's utilization. Both jobs then ran at full speed, even
    where each alone keeps the GPU busy all the time: one of them was not there.
    """
    first, second = (alone_mib[tuple(pair[name + side] for name in _COLUMNS)] for side in ("1", "2"))
    lacking_mib = first + second - float(pair.get("gmem") or first + second)
    return lacking_mib <= _LACKING * min(first, second)


def alone_mib(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, ...], float]:
    return {tuple(row[name] for name in _COLUMNS): float(row.get("gmem") or 0) for row in rows}


def _alone(rows: list[dict[str, str]]) -> Alone:
    inputs = np.array([_inputs(row) for row in rows])
    return Alone(
        np.array([row["model"] for row in rows]), np.array([int(row["batchsize"]) for row in rows]),
        inputs[:, 2] > 0, inputs[:, 0], inputs[:, 1], np.array([_compute_share(row) for row in rows]), inputs,
    )  # fmt: skip


def _inputs(row: Mapping[str, str]) -> list[float]:
    """Both utilizations first."""
    shares = [float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100, float(row["amp"])]
    return shares + [math.log(max(float(row.get(name) or 1), 1e-3)) for name in ("gmem", "batchsize", "speed")]


def _compute_share(row: Mapping[str, str]) -> float:
    network, peaks = NETWORKS.get(row["model"]), PEAKS[GPU]
    if network is None:
        return 0.0
    peak_tflops = peaks.fp16_tflops if row["amp"] == "1" else peaks.tf32_tflops
    flops = _TRAINING_FLOPS_PER_MAC * network.macs * float(row.get("speed") or 0)
    return min(1.0, flops / (1e12 * (peak_tflops or peaks.fp32_tflops)))


@dataclass(frozen=True, slots=True)
class Check:
    """Of a job, and of a pair: the slower of its two jobs."""

    pairs: int
    error_job: float
    error_pair: float
    error_of_none: float  # of the forecast that nothing slows anything down
    slow_pairs: int
    recall: float
    interval: tuple[float, float]  # of the recall


def check(pairs: Pairs, pressures: Floats, constant: float = SLOWDOWN) -> Check:
    """`pressures`: by kind."""
    forecast, worst = 1.0 + constant * pairs.products(pressures), pairs.worst
    return Check(
        len(worst), float(np.abs(forecast - pairs.slowdowns).mean()), float(np.abs(forecast - worst).mean()),
        float(np.abs(1.0 - worst).mean()), int((worst > TOO_SLOW).sum()), pairs.recalled(forecast),
        interval(forecast, worst),
    )  # fmt: skip


def interval(forecast: Floats, measured: Floats) -> tuple[float, float]:
    """Of the recall, if these pairs were drawn again: 95 of 100 draws lie in it."""
    random, found = np.random.default_rng(0), []
    for _ in range(1000):
        drawn = random.integers(0, len(forecast), len(forecast))
        found.append(recall(forecast[drawn], measured[drawn], TOO_SLOW, PRECISION))
    low, high = np.percentile(found, (2.5, 97.5))
    return float(low), float(high)


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
