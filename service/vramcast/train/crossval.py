"""Grouped cross-validation. It can resume: every fold's network and its predictions for unseen rows are kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
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
_WIDTHS = (len(QUANTILES), len(QUANTILES), UTILIZATIONS)


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
    fitted = [
        _fold_network(data, fold != number, shape, schedule, 100 * seed + number, work, progress)
        for number in range(FOLDS)
        for seed in seeds
    ]
    return replace(reuse(data, [network for network, _ in fitted]), curves=tuple(curve for _, curve in fitted))


def reuse(data: Dataset, networks: Sequence[ForecastNetwork]) -> CrossValidated:
    """As `cross_validate`, with the networks of an artifact that was trained on the same groups: it keeps their order.

    Their inputs may have changed since, so trees have to be fitted to what they say now.
    """
    fold = assign_folds(data, FOLDS, 0)
    each = len(networks) // FOLDS
    layers, summaries, utilization = (np.zeros((len(data), width), np.float32) for width in _WIDTHS)
    for number in range(FOLDS):
        rows = np.flatnonzero(fold == number)
        for network in networks[each * number : each * (number + 1)]:
            layered, summary = predict_both(network, data.where(rows))
            layers[rows] += layered.quantiles / each
            utilization[rows] += layered.utilization / each
            summaries[rows] += summary.quantiles / each
    return CrossValidated(tuple(networks), Unseen(fold, layers, summaries, utilization), ())


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
