"""`vramcast train --base`: an artifact's networks taught by a cluster's own runs, and calibrated with them.

Each network is tuned on four fifths of the runs and judged on the rest, as in the training from nothing: the figures
and the bounds stand on runs that were not trained on. Trees, facts and layout stay the base's. Where the cluster has
too few runs of a kind, the base's calibration goes on.
"""

from __future__ import annotations

import copy
import hashlib
import json
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
from vramcast.forecast.conformal import MIN_SCORES, RISKS, Calibration, Cell, bound, calibrate
from vramcast.forecast.features import Regime
from vramcast.forecast.model import MANIFEST, MODEL, Artifact, Ranges, load_artifact, novelty
from vramcast.train.crossval import FOLDS
from vramcast.train.dataset import Dataset, build, deal
from vramcast.train.export import TOLERANCE, run
from vramcast.train.fitting import Predicted, predict
from vramcast.train.metrics import REPORTED_RISKS, Judged, capacities_mib, slices
from vramcast.train.network import MEDIAN, ForecastNetwork, Shape, pinball
from vramcast.train.pipeline import spreads
from vramcast.train.progress import Progress
from vramcast.train.records import read_records
from vramcast.train.recover import NotRecovered, TreeHead, graft, recover_networks

Floats = NDArray[np.float32]
Rows = NDArray[np.bool_]
LEAST_RUNS = 40
# With fewer networks than this, whole ones cannot be left out: then single runs are.
_LEAST_GROUPS = 10
_PROBE_SHIFT = 0.01
_CLIP_NORM = 1.0


@dataclass(frozen=True, slots=True)
class FineTuning:
    epochs: int = 20
    batch: int = 64
    learning_rate: float = 1e-3
    anchor: float = 1e-3  # pull back to the base's weights
    summary_weight: float = 0.25  # of a run's summary beside its layers
    shrinkage: float = 20.0  # runs that weigh as much as the base's own word when its median is moved


@dataclass(frozen=True, slots=True)
class Levels:
    """Every run as it was described, then every run with layers by its summary too. Arrays over these."""

    run: NDArray[np.int64]  # which row of the dataset
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
    torch.set_num_threads(1)  # batches are small: threads would only wait for each other
    base = load_artifact(base_dir)
    data = build(read_records(data_dir), progress)
    _check_enough(data, data_dir)
    model = onnx.load_from_string(base.model)
    recovered = recover_networks(model, Shape(**base.manifest["shape"]), int(base.manifest["networks"]))
    _check_same(recovered.networks, base, data)
    head = TreeHead(model, recovered.network_nodes)
    levels, fold, split = _levels(data, tuning), *_split(data)
    owners = [number * FOLDS // len(recovered.networks) for number in range(len(recovered.networks))]
    tuned = [
        tune(network, head, levels, fold[levels.run] != owner, tuning, number)
        for number, (network, owner) in enumerate(
            progress.over(list(zip(recovered.networks, owners, strict=True)), "networks")
        )
    ]
    unseen = _unseen(tuned, owners, head, levels, fold)
    fresh = graft(model, tuned, recovered.network_nodes)
    ranges = _widened(base.ranges, levels)
    scored = _scored(data, levels, unseen.quantiles, ranges)
    judged = _judge(data, unseen, base, ranges, fold, scored)
    calibration = _merged(base.calibration, calibrate(score for _, score in scored))
    manifest = _manifest(base, fresh, calibration, ranges, data) | {
        "split": split,
        "accuracy": slices(judged),
        "base_accuracy": slices(_judge_base(data, base)),
        "fine_tuning": asdict(tuning),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(fresh)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def _check_enough(data: Dataset, data_dir: Path) -> None:
    finished = int((~data.censored & ~data.suspect).sum())
    if finished < LEAST_RUNS:
        raise InvalidInput(f"{data_dir} has {finished} runs that came to their end, fine-tuning needs {LEAST_RUNS}")


def _check_same(networks: Sequence[ForecastNetwork], base: Artifact, data: Dataset) -> None:
    """What was recovered must say what the artifact says."""
    _, _, said = run(base.model, data)
    mine = np.mean([predict(n, data.facts, data.tokens, data.kinds).quantiles for n in networks], axis=0)
    worst = float(np.abs(mine - said).max())
    if worst > TOLERANCE:
        raise NotRecovered(f"the networks of {base.version} were not recovered: they differ by {worst:.2g}")


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
        return deal(data, FOLDS, 0), f"{FOLDS} folds of whole networks, figures on the fold left out"
    return np.arange(len(data)) % FOLDS, f"{FOLDS} folds of runs, few networks: figures on the fold left out"


# ---------------------------------------------------------------------- one network


def tune(
    network: ForecastNetwork, head: TreeHead, levels: Levels, rows: Rows, tuning: FineTuning, seed: int
) -> ForecastNetwork:
    """The network first moved where the runs are, then trained; the base's trees are part of what it is judged by."""
    rows = rows & (levels.weight > 0)
    tuned = copy.deepcopy(network).eval()
    if not rows.any():
        return tuned
    before = predict(network, levels.facts, levels.tokens, levels.kinds).quantiles
    shipped = head.apply(levels.facts, before)
    # How much of a network's move is left behind the trees: found by moving it.
    gain = (head.apply(levels.facts, before + np.float32(_PROBE_SHIFT)) - shipped)[:, MEDIAN] / _PROBE_SHIFT
    gain = np.clip(gain, 0.05, 1.0).astype(np.float32)
    _recentre(tuned, levels, rows, shipped[:, MEDIAN], gain, tuning)
    # What ships is the base's median and the part of the network's move that the trees let through.
    start = shipped[:, MEDIAN] - gain * before[:, MEDIAN]
    _train(tuned, network, levels, rows, torch.as_tensor(start), torch.as_tensor(gain), tuning, seed)
    return tuned


@torch.no_grad()  # type: ignore[untyped-decorator]
def _recentre(
    network: ForecastNetwork, levels: Levels, rows: Rows, medians: Floats, gain: Floats, tuning: FineTuning
) -> None:
    """A drift of a whole regime is a bias of its median: no gradient is needed to find it."""
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


# ---------------------------------------------------------------------- what it is worth


def _unseen(
    networks: Sequence[ForecastNetwork], owners: Sequence[int], head: TreeHead, levels: Levels, fold: NDArray[np.int64]
) -> Predicted:
    """What the networks say of the fold that they were not tuned on, behind the trees."""
    by_fold: dict[int, list[Predicted]] = {}
    for network, owner in zip(networks, owners, strict=True):
        by_fold.setdefault(owner, []).append(predict(network, levels.facts, levels.tokens, levels.kinds))
    first = by_fold[owners[0]][0]
    quantiles, utilization = np.zeros_like(first.quantiles), np.zeros_like(first.utilization)
    for owner in range(FOLDS):
        rows = fold[levels.run] == owner
        # With fewer networks than folds, some folds are nobody's: all networks have seen them, and say so together.
        said = by_fold.get(owner) or [one for several in by_fold.values() for one in several]
        quantiles[rows] = np.mean([one.quantiles[rows] for one in said], axis=0)
        utilization[rows] = np.mean([one.utilization[rows] for one in said], axis=0)
    return Predicted(head.apply(levels.facts, quantiles), utilization, quantiles)


def _widened(ranges: Ranges, levels: Levels) -> Ranges:
    """What the cluster runs is no novelty any more."""
    low, high = ranges.low.copy(), ranges.high.copy()
    for regime in {int(value) for value in levels.regime}:
        ours = np.quantile(levels.facts[levels.regime == regime], [0.01, 0.99], axis=0).astype(np.float32)
        low[regime], high[regime] = np.minimum(low[regime], ours[0]), np.maximum(high[regime], ours[1])
    return Ranges(low, high, np.maximum(high - low, 1e-2))


Scored = list[tuple[int, tuple[Cell, dict[float, float]]]]


def _scored(data: Dataset, levels: Levels, quantiles: Floats, ranges: Ranges) -> Scored:
    """By run: its cell, and by how many spreads it exceeded its median at each risk's spread."""
    scored: Scored = []
    for index in np.flatnonzero(levels.weight > 0):
        regime, row = Regime(int(levels.regime[index])), int(levels.run[index])
        tail, new = spreads(quantiles[index]), novelty(ranges, levels.facts[index], regime)
        excess = float(levels.target[index] - quantiles[index, MEDIAN])
        if levels.censored[index] and excess <= 0:
            continue
        cell = Cell(str(data.product[row]), str(data.family[row]), regime.name.lower())
        scored.append((row, (cell, {risk: excess / (tail.at(risk) * (1.0 + new)) for risk in RISKS})))
    return scored


def _merged(base: Calibration, ours: Calibration) -> Calibration:
    """The cluster's own factors where they rest on enough runs."""
    enough = {key: factors for key, factors in ours.cells.items() if factors.scores >= MIN_SCORES}
    return Calibration({**base.cells, **enough})


def _judge(
    data: Dataset, unseen: Predicted, base: Artifact, ranges: Ranges, fold: NDArray[np.int64], scored: Scored
) -> Judged:
    """Bounds for each fold by factors of the other folds."""
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    for number in range(FOLDS):
        calibration = _merged(base.calibration, calibrate(s for row, s in scored if fold[row] != number))
        for row in np.flatnonzero(fold == number):
            _put_bounds(bounds, int(row), data, calibration, unseen.quantiles[row], ranges)
    return _judged(data, unseen.quantiles, unseen.state, unseen.utilization, bounds)


def _judge_base(data: Dataset, base: Artifact) -> Judged:
    """The base on the same runs, none of which it has seen."""
    quantiles, utilization, network = run(base.model, data)
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    for row in range(len(data)):
        _put_bounds(bounds, row, data, base.calibration, quantiles[row], base.ranges)
    return _judged(data, quantiles, network, utilization, bounds)


def _put_bounds(
    bounds: dict[float, NDArray[np.float64]], row: int, data: Dataset, calibration: Calibration, quantiles: Floats,
    ranges: Ranges,
) -> None:  # fmt: skip
    regime = Regime(int(data.regime[row]))
    factors = calibration.factors(Cell(str(data.product[row]), str(data.family[row]), regime.name.lower()))
    tail, new = spreads(quantiles), novelty(ranges, data.facts[row], regime)
    median = float(data.prior_mib[row]) * math.exp(float(quantiles[MEDIAN]))
    for risk, column in bounds.items():
        column[row] = bound(median, tail, factors, risk, new)


def _judged(
    data: Dataset, quantiles: Floats, network: Floats, utilization: Floats, bounds: dict[float, NDArray[np.float64]]
) -> Judged:
    rows = len(data)
    return Judged(
        measured_mib=data.measured_mib,
        median_mib=data.prior_mib * np.exp(quantiles[:rows, MEDIAN]),
        network_mib=data.prior_mib * np.exp(network[:rows, MEDIAN]),
        prior_mib=data.prior_mib,
        bounds_mib=bounds,
        capacity_mib=capacities_mib(data.product),
        censored=data.censored,
        suspect=data.suspect,
        utilization=data.utilization.astype(np.float64),
        said_utilization=utilization[:rows].astype(np.float64),
        source=data.source,
        family=data.family,
        product=data.product,
    )


def _manifest(base: Artifact, model: bytes, calibration: Calibration, ranges: Ranges, data: Dataset) -> dict[str, Any]:
    digest = hashlib.sha256(model).hexdigest()
    sources = [
        {
            "name": source,
            "origin": "given by the operator",
            "rows": int((data.source == source).sum()),
            "oom": int(((data.source == source) & data.censored).sum()),
            "groups": len(set(data.group[data.source == source])),
        }
        for source in sorted({str(source) for source in data.source})
    ]
    return base.manifest | {
        "version": f"bigru-transformer-{digest[:12]}",
        "sha256": digest,
        "base": {"version": base.version, "sha256": base.manifest["sha256"]},
        "training_data": [*base.manifest.get("training_data", []), *sources],
        "calibration": {
            key: {"scores": factors.scores, "factors": {f"{risk:g}": value for risk, value in factors.by_risk.items()}}
            for key, factors in calibration.cells.items()
        },
        "ranges": {name: np.round(getattr(ranges, name), 6).tolist() for name in ("low", "high", "width")},
    }
