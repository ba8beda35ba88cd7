"""Grouped cross-validation. It can resume: every fold's network and its predictions for unseen rows are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.forecast import features
from vramcast.train.dataset import Dataset, assign_folds, build
from vramcast.train.fitting import Predicted, Schedule, fit, predict
from vramcast.train.network import MEDIAN, QUANTILES, UTILIZATIONS, ForecastNetwork, Shape
from vramcast.train.progress import Progress
from vramcast.train.records import Record

FOLDS = 5


@dataclass(frozen=True, slots=True)
class Unseen:
    """Predictions for rows that the networks were not trained on."""

    fold: NDArray[np.int64]
    quantiles: NDArray[np.float32]  # (rows, quantiles), averaged over seeds
    summary_quantiles: NDArray[np.float32]  # the same runs, described by their summary
    utilization: NDArray[np.float32]  # (rows, targets)


@dataclass(frozen=True, slots=True)
class CrossValidated:
    networks: tuple[ForecastNetwork, ...]
    unseen: Unseen
    curves: tuple[tuple[tuple[float, float], ...], ...]


def load_dataset(records: Sequence[Record], work: Path, progress: Progress) -> Dataset:
    """Computing features is the slow part of a restart, so they are cached under a hash of their inputs."""
    digest = hashlib.sha256(features.VERSION.encode())
    for record in records:
        digest.update(f"{record.profile}{record.task}{record.product}{record.measured_mib}{record.outcome}".encode())
    path = work / f"dataset-{digest.hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path) as kept:
            return Dataset(*(kept[field.name] for field in fields(Dataset)))
    data = build(records, progress)
    work.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{field.name: getattr(data, field.name) for field in fields(Dataset)})
    return data


def cross_validate(
    data: Dataset, shape: Shape, schedule: Schedule, seeds: Sequence[int], work: Path, progress: Progress
) -> CrossValidated:
    fold = assign_folds(data, FOLDS, 0)
    count = len(data)
    quantiles = np.zeros((count, len(QUANTILES)), np.float32)
    summaries = np.zeros_like(quantiles)
    utilization = np.zeros((count, UTILIZATIONS), np.float32)
    networks, curves = [], []
    for number in range(FOLDS):
        rows = np.flatnonzero(fold == number)
        for seed in seeds:
            network, curve = _fold_network(data, fold != number, shape, schedule, 100 * seed + number, work, progress)
            networks.append(network)
            curves.append(curve)
            layered, summary = predict_both(network, data.where(rows))
            quantiles[rows] += layered.quantiles / len(seeds)
            utilization[rows] += layered.utilization / len(seeds)
            summaries[rows] += summary.quantiles / len(seeds)
    return CrossValidated(tuple(networks), Unseen(fold, quantiles, summaries, utilization), tuple(curves))


def unseen_medians(
    data: Dataset, shape: Shape, schedule: Schedule, folds: Sequence[int], work: Path, progress: Progress
) -> NDArray[np.float64]:
    """One seed's medians of log(measured / prior) in these folds, NaN elsewhere."""
    fold = assign_folds(data, FOLDS, 0)
    medians = np.full(len(data), np.nan)
    for number in folds:
        network, _ = _fold_network(data, fold != number, shape, schedule, 100 + number, work, progress)
        rows = data.where(fold == number)
        medians[fold == number] = predict(network, rows.facts, rows.tokens, rows.kinds).quantiles[:, MEDIAN]
    return medians


def predict_both(network: ForecastNetwork, data: Dataset) -> tuple[Predicted, Predicted]:
    """From the layers, and from the summaries."""
    blank = np.zeros_like(data.tokens)
    return (
        predict(network, data.facts, data.tokens, data.kinds),
        predict(network, data.summary_facts, blank, np.zeros_like(data.kinds)),
    )


def _fold_network(
    data: Dataset,
    training: NDArray[np.bool_],
    shape: Shape,
    schedule: Schedule,
    seed: int,
    work: Path,
    progress: Progress,
) -> tuple[ForecastNetwork, tuple[tuple[float, float], ...]]:
    settings = json.dumps([features.VERSION, asdict(shape), asdict(schedule), seed, len(data)])
    path = work / f"network-{seed}-{hashlib.sha256(settings.encode()).hexdigest()[:12]}.pt"
    if path.exists():
        kept = torch.load(path, weights_only=True)
        network = ForecastNetwork(shape)
        network.load_state_dict(kept["state"])
        return network.eval(), tuple((float(a), float(b)) for a, b in kept["curve"])
    result = fit(data.where(training & ~data.suspect), shape, schedule, seed, progress)
    work.mkdir(parents=True, exist_ok=True)
    torch.save({"state": result.network.state_dict(), "curve": result.curve}, path)
    progress.say(f"network {seed}: {len(result.curve)} epochs, validation loss {min(w for _, w in result.curve):.4f}")
    return result.network.eval(), tuple(result.curve)
