"""`vramcast train --base`: fine-tunes an artifact's networks on a cluster's own runs, and calibrates them again.

Each network is tuned on four fifths of the runs and evaluated on the rest, as in training from scratch, so the figures
and the bounds rest on unseen runs. The trees, the facts and their layout stay the base's. A cell with too few runs
keeps the base's calibration.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor

from vramcast.errors import InvalidInput
from vramcast.forecast.features import Regime
from vramcast.forecast.forecast import MIN_SCORES, Calibration, ScoredRun, bound, calibrate
from vramcast.forecast.model import MODEL, Artifact, Ranges, load_artifact, novelty
from vramcast.train.artifact_parts import write_manifest
from vramcast.train.crossval import FOLDS
from vramcast.train.dataset import Dataset, assign_folds, build
from vramcast.train.evaluation import REPORTED_RISKS, Judged, slices
from vramcast.train.export import TOLERANCE, run
from vramcast.train.fitting import Predicted, predict
from vramcast.train.import_onnx import NotImportable, TreeHead, import_networks, replace_networks
from vramcast.train.network import MEDIAN, ForecastNetwork, Shape, pinball
from vramcast.train.pipeline import calibration_entries, cell_of, judged, score, spreads, training_data
from vramcast.train.progress import Progress
from vramcast.train.records import read_records

Floats = NDArray[np.float32]
Rows = NDArray[np.bool_]
LEAST_RUNS = 40
# With fewer networks than this, single runs are held out instead of whole networks.
_LEAST_GROUPS = 10
_PROBE_SHIFT = 0.01
_CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True)
class FineTuning:
    epochs: int = 20
    batch: int = 64
    learning_rate: float = 1e-3
    anchor: float = 1e-3  # pull towards the base's weights
    summary_weight: float = 0.25  # of a run's summary against its layers
    shrinkage: float = 20.0  # this many runs move the base's median half way


@dataclass(frozen=True, slots=True)
class Levels:
    """Every run as described, then every run that has layers by its summary. Arrays over these."""

    run: NDArray[np.int64]  # row in the dataset
    facts: Floats
    tokens: Floats
    kinds: NDArray[np.int64]
    regime: NDArray[np.int64]
    target: Floats
    censored: Rows
    weight: Floats


def finetune(
    data_dir: Path, base_dir: Path, out: Path, progress: Progress, tuning: FineTuning | None = None
) -> dict[str, Any]:
    """Writes the artifact and returns its manifest."""
    tuning = tuning or FineTuning()
    torch.set_num_threads(1)  # batches are small: more threads would only wait for each other
    base = load_artifact(base_dir)
    data = build(read_records(data_dir), progress)
    _check_enough(data, data_dir)
    model = onnx.load(base.model)
    imported = import_networks(model, Shape(**base.manifest["shape"]), int(base.manifest["networks"]))
    _check_same(imported.networks, base, data)
    head = TreeHead(model, imported.network_nodes)
    levels, fold, split = _levels(data, tuning), *_split(data)
    owners = [number * FOLDS // len(imported.networks) for number in range(len(imported.networks))]
    tuned = [
        tune(network, head, levels, fold[levels.run] != owner, tuning, number)
        for number, (network, owner) in enumerate(
            progress.over(list(zip(imported.networks, owners, strict=True)), "networks")
        )
    ]
    unseen = _unseen(tuned, owners, head, levels, fold)
    tuned_model = replace_networks(model, tuned, imported.network_nodes)
    ranges = _widened(base.ranges, levels)
    scored = _scored(data, levels, unseen.quantiles, ranges)
    calibration = _merged(base.calibration, calibrate(scores for _, scores in scored))
    manifest = _manifest(base, tuned_model, calibration, ranges, data) | {
        "split": split,
        "accuracy": slices(_judge(data, unseen, base, ranges, fold, scored)),
        "base_accuracy": slices(_judge_base(data, base)),
        "fine_tuning": asdict(tuning),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(tuned_model)
    write_manifest(out, manifest)
    return manifest


def _check_enough(data: Dataset, data_dir: Path) -> None:
    finished = int(data.usable.sum())
    if finished < LEAST_RUNS:
        raise InvalidInput(f"{data_dir} has {finished} finished runs, fine-tuning needs {LEAST_RUNS}")


def _check_same(networks: Sequence[ForecastNetwork], base: Artifact, data: Dataset) -> None:
    """The imported networks must predict the same as the artifact."""
    _, _, expected = run(base.model.read_bytes(), data)
    imported = np.mean([predict(n, data.facts, data.tokens, data.kinds).quantiles for n in networks], axis=0)
    worst = float(np.abs(imported - expected).max())
    if worst > TOLERANCE:
        raise NotImportable(f"the imported networks of {base.version} differ from it by {worst:.2g}")


def _levels(data: Dataset, tuning: FineTuning) -> Levels:
    twice = np.flatnonzero(data.regime != int(Regime.SUMMARY))
    usable = (~data.suspect).astype(np.float32)
    return Levels(
        run=np.concatenate([np.arange(len(data)), twice]),
        facts=np.concatenate([data.facts, data.summary_facts[twice]]),
        tokens=np.concatenate([data.tokens, np.zeros_like(data.tokens[twice])]),
        kinds=np.concatenate([data.kinds, np.zeros_like(data.kinds[twice])]),
        regime=np.concatenate([data.regime, np.full(len(twice), int(Regime.SUMMARY))]),
        target=np.concatenate([data.target, data.summary_target[twice]]),
        censored=np.concatenate([data.censored, data.censored[twice]]),
        weight=np.concatenate([usable, tuning.summary_weight * usable[twice]]),
    )


def _split(data: Dataset) -> tuple[NDArray[np.int64], str]:
    if len(set(data.group)) >= _LEAST_GROUPS:
        return assign_folds(data, FOLDS, 0), f"{FOLDS} folds of whole networks, figures on the held-out fold"
    return np.arange(len(data)) % FOLDS, f"{FOLDS} folds of single runs (few networks), figures on the held-out fold"


# ---------------------------------------------------------------------- one network


def tune(
    network: ForecastNetwork, head: TreeHead, levels: Levels, rows: Rows, tuning: FineTuning, seed: int
) -> ForecastNetwork:
    """First moves the medians to where the runs are, then trains. The loss is taken after the base's trees."""
    rows = rows & (levels.weight > 0)
    tuned = copy.deepcopy(network).eval()
    if not rows.any():
        return tuned
    before = predict(network, levels.facts, levels.tokens, levels.kinds).quantiles
    shipped = head.apply(levels.facts, before)
    # The trees pass on only part of a change in the network. A small shift shows how much.
    gain = (head.apply(levels.facts, before + np.float32(_PROBE_SHIFT)) - shipped)[:, MEDIAN] / _PROBE_SHIFT
    gain = np.clip(gain, 0.05, 1.0).astype(np.float32)
    _recentre(tuned, levels, rows, shipped[:, MEDIAN], gain, tuning)
    # The shipped median is the base's, plus the part of the network's change that the trees pass on.
    start = shipped[:, MEDIAN] - gain * before[:, MEDIAN]
    _train(tuned, network, levels, rows, torch.as_tensor(start), torch.as_tensor(gain), tuning, seed)
    return tuned


@torch.no_grad()  # type: ignore[untyped-decorator]
def _recentre(
    network: ForecastNetwork, levels: Levels, rows: Rows, medians: Floats, gain: Floats, tuning: FineTuning
) -> None:
    """A drift of a whole regime is a bias of its median, which needs no gradient to find."""
    biases = network.memory.bias.view(len(Regime), -1)
    for regime in Regime:
        own = rows & ~levels.censored & (levels.regime == int(regime))
        count = int(own.sum())
        if count:
            missed = float(np.median((levels.target[own] - medians[own]) / gain[own]))
            trust = count / (count + tuning.shrinkage)
            biases[int(regime), MEDIAN] += trust * missed / float(network.regime_scale[int(regime)])


def _train(
    network: ForecastNetwork, base: ForecastNetwork, levels: Levels, rows: Rows, start: Tensor, gain: Tensor,
    tuning: FineTuning, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    optimizer = torch.optim.Adam(network.parameters(), lr=tuning.learning_rate)
    anchors = [parameter.detach().clone() for parameter in network.parameters()]
    scale = base.regime_scale[torch.as_tensor(levels.regime)]
    chosen = np.flatnonzero(rows)
    for epoch in range(tuning.epochs):
        for group in optimizer.param_groups:
            group["lr"] = tuning.learning_rate * 0.5 * (1.0 + math.cos(math.pi * epoch / tuning.epochs))
        order = rng.permutation(chosen)
        for low in range(0, len(order), tuning.batch):
            loss = _loss(network, levels, order[low : low + tuning.batch], start, gain, scale)
            pull = sum(((p - a) ** 2).sum() for p, a in zip(network.parameters(), anchors, strict=True))
            optimizer.zero_grad()
            (loss + tuning.anchor * pull).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), _CLIP_NORM)
            optimizer.step()


def _loss(
    network: ForecastNetwork, levels: Levels, batch: NDArray[np.int64], start: Tensor, gain: Tensor, scale: Tensor
) -> Tensor:
    facts, tokens, kinds, target, censored, weight = (
        torch.as_tensor(column[batch])
        for column in (levels.facts, levels.tokens, levels.kinds, levels.target, levels.censored, levels.weight)
    )
    quantiles, _, _ = network(facts, tokens, kinds)
    median = quantiles[:, MEDIAN : MEDIAN + 1]
    rows = torch.as_tensor(batch)
    shipped = start[rows, None] + gain[rows, None] * median + (quantiles - median)
    return (pinball(shipped, target, censored) / scale[rows] * weight).sum() / weight.sum()


# ---------------------------------------------------------------------- calibration and accuracy


def _unseen(
    networks: Sequence[ForecastNetwork], owners: Sequence[int], head: TreeHead, levels: Levels, fold: NDArray[np.int64]
) -> Predicted:
    """Predictions for the fold that each network was not tuned on, after the trees."""
    by_fold: dict[int, list[Predicted]] = {}
    for network, owner in zip(networks, owners, strict=True):
        by_fold.setdefault(owner, []).append(predict(network, levels.facts, levels.tokens, levels.kinds))
    first = by_fold[owners[0]][0]
    quantiles, utilization = np.zeros_like(first.quantiles), np.zeros_like(first.utilization)
    for owner in range(FOLDS):
        rows = fold[levels.run] == owner
        # With fewer networks than folds, some folds were held out from no network. All networks predict those.
        predicted = by_fold.get(owner) or [one for several in by_fold.values() for one in several]
        quantiles[rows] = np.mean([one.quantiles[rows] for one in predicted], axis=0)
        utilization[rows] = np.mean([one.utilization[rows] for one in predicted], axis=0)
    return Predicted(head.apply(levels.facts, quantiles), utilization, quantiles)


def _widened(ranges: Ranges, levels: Levels) -> Ranges:
    """The cluster's own runs are no longer novel."""
    low, high = ranges.low.copy(), ranges.high.copy()
    for regime in {int(value) for value in levels.regime}:
        ours = np.quantile(levels.facts[levels.regime == regime], [0.01, 0.99], axis=0).astype(np.float32)
        low[regime], high[regime] = np.minimum(low[regime], ours[0]), np.maximum(high[regime], ours[1])
    return Ranges(low, high, np.maximum(high - low, 1e-2))


Scores = list[tuple[int, ScoredRun]]


def _scored(data: Dataset, levels: Levels, quantiles: Floats, ranges: Ranges) -> Scores:
    """By run: its cell, and its score at each risk's spread."""
    scored: Scores = []
    for index in np.flatnonzero(levels.weight > 0):
        regime, row = Regime(int(levels.regime[index])), int(levels.run[index])
        excess = float(levels.target[index] - quantiles[index, MEDIAN])
        if levels.censored[index] and excess <= 0:
            continue  # the forecast was above the GPU's memory, so the OOM does not contradict it
        scores = score(excess, quantiles[index], novelty(ranges, levels.facts[index], regime))
        scored.append((row, ScoredRun(cell_of(data, row, regime), scores, str(data.group[row]))))
    return scored


def _merged(base: Calibration, ours: Calibration) -> Calibration:
    """The cluster's own factors for cells with enough runs, else the base's."""
    enough = {key: factors for key, factors in ours.cells.items() if factors.scores >= MIN_SCORES}
    return Calibration({**base.cells, **enough})


def _judge(
    data: Dataset, unseen: Predicted, base: Artifact, ranges: Ranges, fold: NDArray[np.int64], scored: Scores
) -> Judged:
    """Bounds each fold with factors from the other folds."""
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    for number in range(FOLDS):
        calibration = _merged(base.calibration, calibrate(s for row, s in scored if fold[row] != number))
        for row in np.flatnonzero(fold == number):
            _put_bounds(bounds, int(row), data, calibration, unseen.quantiles[row], ranges)
    rows = len(data)
    return judged(data, data.prior_mib, unseen.quantiles[:rows], unseen.state[:rows], unseen.utilization[:rows], bounds)


def _judge_base(data: Dataset, base: Artifact) -> Judged:
    """The base on the same runs, which it has not seen."""
    quantiles, utilization, network = run(base.model.read_bytes(), data)
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    for row in range(len(data)):
        _put_bounds(bounds, row, data, base.calibration, quantiles[row], base.ranges)
    return judged(data, data.prior_mib, quantiles, network, utilization, bounds)


def _put_bounds(
    bounds: dict[float, NDArray[np.float64]], row: int, data: Dataset, calibration: Calibration, quantiles: Floats,
    ranges: Ranges,
) -> None:  # fmt: skip
    regime = Regime(int(data.regime[row]))
    factors = calibration.factors(cell_of(data, row, regime))
    tail, new = spreads(quantiles), novelty(ranges, data.facts[row], regime)
    median = float(data.prior_mib[row]) * math.exp(float(quantiles[MEDIAN]))
    for risk, column in bounds.items():
        column[row] = bound(median, tail, factors, risk, new)


def _manifest(base: Artifact, model: bytes, calibration: Calibration, ranges: Ranges, data: Dataset) -> dict[str, Any]:
    digest = hashlib.sha256(model).hexdigest()
    return base.manifest | {
        "version": f"bigru-transformer-{digest[:12]}",
        "sha256": digest,
        "base": {"version": base.version, "sha256": base.manifest["sha256"]},
        "training_data": [*base.manifest.get("training_data", []), *training_data(data)],
        **calibration_entries(calibration, ranges),
    }
