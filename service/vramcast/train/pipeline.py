"""`vramcast train`: turns records into an artifact. Every figure in its manifest was measured on unseen rows.

The networks of the cross-validation are the ensemble that ships. Each was trained on four fifths of the groups, so
together they have seen all groups. The manifest states the accuracy of single networks on their unseen fifth, which is
on the cautious side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast import features
from vramcast.forecast.features import TOKEN_WIDTH, TOKENS, Regime, without_optional
from vramcast.forecast.forecast import RISKS, Calibration, Cell, Spreads, bound, calibrate
from vramcast.forecast.model import FORMAT, MANIFEST, MODEL, Ranges, novelty
from vramcast.train import plots
from vramcast.train.crossval import FOLDS, CrossValidated, Unseen, cross_validate, load_dataset
from vramcast.train.dataset import Dataset
from vramcast.train.evaluation import REPORTED_RISKS, Judged, capacities_mib, slices
from vramcast.train.export import check_parity, export
from vramcast.train.fitting import Schedule
from vramcast.train.network import MEDIAN, QUANTILES, Shape
from vramcast.train.progress import Progress
from vramcast.train.recorded import fit_recorded
from vramcast.train.records import read_records
from vramcast.train.trees import BLEND, Correction, fit_distances, fit_medians, stack_inputs
from vramcast.train.utilization import SM_ACTIVE, correct_utilization

_ORIGINS = {
    "timm-a100": "itu-rad/GPUMemNet, CC-BY-4.0",
    "gpumemnet-cnn": "itu-rad/GPUMemNet, CC-BY-4.0",
    "gpumemnet-mlp": "itu-rad/GPUMemNet, CC-BY-4.0",
    "xmem": "Stone-ResearchLife/xMem, MIT",
}
# Keeps a source with few rows from being drowned out in its regime.
_TREE_WEIGHTS = {"xmem": 5.0}
# Weight of terse summaries against full ones: low enough that layers and architecture keep their influence.
_TERSE_WEIGHT = 0.2
# A smaller gain (in logarithms) does not count: replayed networks are exact, and trees would only add noise.
_LEAST_GAIN = 2e-4


@dataclass(frozen=True, slots=True)
class Corrected:
    """Unseen rows, corrected by trees of the other folds."""

    network: NDArray[np.float32]  # (rows, quantiles)
    shipped: NDArray[np.float32]
    summary: NDArray[np.float32]
    correction: Correction  # fitted on all folds; this one ships


def train(
    data_dir: Path, out: Path, seeds: Sequence[int], progress: Progress, shape: Shape, schedule: Schedule
) -> dict[str, Any]:
    """Writes the artifact and returns its manifest."""
    data = load_dataset(read_records(data_dir), out / "work", progress)
    validated = cross_validate(data, shape, schedule, seeds, out / "work", progress)
    progress.say("fitting trees on the networks' unseen rows")
    corrected = correct_unseen(data, validated.unseen)
    correction = corrected.correction
    used, trees = correct_utilization(data, validated.unseen.fold, validated.unseen.utilization)
    model = export(validated.networks, correction, trees)
    parity = check_parity(model, validated.networks, correction, trees, data)
    ranges = training_ranges(data)
    unseen = replace(validated.unseen, utilization=used)
    scored = _scored(data, unseen, corrected, ranges)
    by_layers = judge_unseen(data, unseen, corrected, ranges, scored, summary=False)
    by_summary = judge_unseen(data, unseen, corrected, ranges, scored, summary=True)
    manifest = _manifest(data, model, _calibrate(scored), ranges, slices(by_layers)) | {
        "summary_accuracy": [_memory_only(entry) for entry in slices(by_summary)],
        "parity": parity,
        "trees_correct": [Regime(regime).name.lower() for regime in sorted(correction.medians)],
        "trees_say_sm_active": [Regime(regime).name.lower() for regime in sorted(trees.models)],
        "network_sm_active_mae": _sm_active_missed(data, validated.unseen.utilization),
        "shape": asdict(shape),
        "schedule": asdict(schedule),
        "networks": len(validated.networks),
        **fit_recorded(data_dir, progress),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(model)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    _plot(out, validated, by_layers)
    return manifest


def _memory_only(entry: dict[str, Any]) -> dict[str, Any]:
    """Without utilization, which is not forecast from summaries."""
    return {name: value for name, value in entry.items() if not name.startswith(("gpu_util", "sm_"))}


def _sm_active_missed(data: Dataset, network: NDArray[np.float32]) -> dict[str, float]:
    """Mean error by source, of the network without trees."""
    missed = np.abs(network[:, SM_ACTIVE] - data.utilization[:, SM_ACTIVE])
    known = data.usable & ~np.isnan(missed)
    return {str(s): float(missed[known & (data.source == s)].mean()) for s in sorted(set(data.source[known]))}


def _plot(out: Path, validated: CrossValidated, judged: Judged) -> None:
    plots.loss_curves(validated.curves, out / "loss.png")
    plots.predicted_against_measured(judged, out / "predicted.png")


def _weights(data: Dataset) -> NDArray[np.float32]:
    return np.array([_TREE_WEIGHTS.get(str(source), 1.0) for source in data.source], np.float32)


@dataclass(frozen=True, slots=True)
class _Levels:
    """Every run by its layers, then every run by its summary. Arrays over twice the rows."""

    facts: NDArray[np.float32]
    regime: NDArray[np.int64]
    target: NDArray[np.float32]
    quantiles: NDArray[np.float32]
    fold: NDArray[np.int64]
    usable: NDArray[np.bool_]
    weight: NDArray[np.float32]

    def train_medians(self, rows: NDArray[np.bool_], seed: int) -> Correction:
        """Adds terse summaries, because trees that rely on optional annotations would fail without them."""
        terse = rows & (self.regime == Regime.SUMMARY)
        facts = np.concatenate([self.facts[rows], without_optional(self.facts[terse])])
        regime, target = (np.concatenate([column[rows], column[terse]]) for column in (self.regime, self.target))
        weight = np.concatenate([self.weight[rows], _TERSE_WEIGHT * self.weight[terse]])
        return fit_medians(facts, regime, target, weight, seed)


def _levels(data: Dataset, unseen: Unseen) -> _Levels:
    summaries = np.full(len(data), int(Regime.SUMMARY))
    return _Levels(
        facts=np.concatenate([data.facts, data.summary_facts]),
        regime=np.concatenate([data.regime, summaries]),
        target=np.concatenate([data.target, data.summary_target]),
        quantiles=np.concatenate([unseen.quantiles, unseen.summary_quantiles]),
        fold=np.tile(unseen.fold, 2),
        usable=np.tile(data.usable, 2),
        weight=np.tile(_weights(data), 2),
    )


def correct_unseen(data: Dataset, unseen: Unseen) -> Corrected:
    """Corrects each fold by trees of the other folds. A regime that does not gain from trees gets none."""
    levels = _levels(data, unseen)
    corrections = []
    by_trees = np.zeros(len(levels.fold))
    for fold in range(FOLDS):
        training, rows = (levels.fold != fold) & levels.usable, levels.fold == fold
        correction = levels.train_medians(training, fold)
        by_trees[rows] = correction.predict(levels.facts[rows], levels.quantiles[rows], levels.regime[rows]).median
        corrections.append(correction)
    medians = levels.quantiles[:, MEDIAN] + BLEND * (by_trees - levels.quantiles[:, MEDIAN])
    keeps = _regimes_that_gain(levels, medians)
    missed = levels.target - levels.quantiles[:, MEDIAN]
    shipped = levels.quantiles.copy()
    for fold, correction in enumerate(corrections):
        rows = levels.fold == fold
        _finish(correction, keeps, levels, (levels.fold != fold) & levels.usable, missed, fold)
        shipped[rows] = correction.correct(levels.facts[rows], levels.quantiles[rows], levels.regime[rows])
    final = levels.train_medians(levels.usable, FOLDS)
    _finish(final, keeps, levels, levels.usable, missed, FOLDS)
    return Corrected(unseen.quantiles, shipped[: len(data)], shipped[len(data) :], final)


def _finish(
    correction: Correction, keeps: set[int], levels: _Levels, rows: NDArray[np.bool_], missed: NDArray[np.float32],
    seed: int,
) -> None:  # fmt: skip
    _keep_only(correction, keeps)
    stacked = stack_inputs(levels.facts[rows], levels.quantiles[rows])
    fit_distances(correction, stacked, levels.regime[rows], missed[rows], levels.weight[rows], seed)


def _regimes_that_gain(levels: _Levels, medians: NDArray[np.float64]) -> set[int]:
    gaining = set()
    for regime in Regime:
        rows = levels.usable & (levels.regime == regime)
        before = np.abs(levels.target[rows] - levels.quantiles[rows, MEDIAN])
        if rows.any() and np.abs(levels.target[rows] - medians[rows]).mean() < before.mean() - _LEAST_GAIN:
            gaining.add(int(regime))
    return gaining


def _keep_only(correction: Correction, regimes: set[int]) -> None:
    for regime in set(correction.medians) - regimes:
        del correction.medians[regime]


def training_ranges(data: Dataset) -> Ranges:
    """The 1st and 99th percentile of every fact by regime; the summary regime uses the summaries.

    GPU facts use the full range over all regimes: with few products, percentiles would cut some of them off.
    """
    low, high = np.zeros((2, len(Regime), data.facts.shape[1]), np.float32)
    for regime in Regime:
        facts = data.summary_facts if regime is Regime.SUMMARY else data.facts[data.regime == regime]
        if len(facts):
            low[regime], high[regime] = np.quantile(facts, [0.01, 0.99], axis=0)
    gpu = [features.FACTS.index(name) for name in features.GPU_FACTS]
    low[:, gpu], high[:, gpu] = data.facts[:, gpu].min(axis=0), data.facts[:, gpu].max(axis=0)
    return Ranges(low, high, np.maximum(high - low, 1e-2))


def spreads(quantiles: NDArray[np.float32]) -> Spreads:
    median = float(quantiles[MEDIAN])
    return Spreads({round(1 - q, 6): float(quantiles[i]) - median for i, q in enumerate(QUANTILES) if q > 0.5})


def score(excess: float, quantiles: NDArray[np.float32], new: float) -> dict[float, float]:
    """By how many spreads a run exceeded its median, at each risk's spread."""
    tail = spreads(quantiles)
    return {risk: excess / (tail.at(risk) * (1.0 + new)) for risk in RISKS}


def cell_of(data: Dataset, row: int, regime: Regime) -> Cell:
    return Cell(str(data.product[row]), str(data.family[row]), regime.name.lower())


@dataclass(frozen=True, slots=True)
class _Score:
    fold: int
    cell: Cell
    by_risk: dict[float, float]


def _scored(data: Dataset, unseen: Unseen, corrected: Corrected, ranges: Ranges) -> list[_Score]:
    """Scores of unseen rows, by layers and by summary. An OOM-killed run has the score that its GPU's size implies."""
    scored = []
    for row in np.flatnonzero(~data.suspect):
        regime = Regime(int(data.regime[row]))
        levels = (
            (regime, corrected.shipped[row], data.target[row], data.facts[row]),
            (Regime.SUMMARY, corrected.summary[row], data.summary_target[row], data.summary_facts[row]),
        )
        for known, quantiles, target, facts in levels:
            excess = float(target - quantiles[MEDIAN])
            if data.censored[row] and excess <= 0:
                continue  # the forecast was above the GPU's memory, so the OOM does not contradict it
            scores = score(excess, quantiles, novelty(ranges, facts, known))
            scored.append(_Score(int(unseen.fold[row]), cell_of(data, int(row), known), scores))
    return scored


def _calibrate(scored: list[_Score], without_fold: int | None = None) -> Calibration:
    return calibrate((score.cell, score.by_risk) for score in scored if score.fold != without_fold)


def judge_unseen(
    data: Dataset, unseen: Unseen, corrected: Corrected, ranges: Ranges, scored: list[_Score], *, summary: bool
) -> Judged:
    """Bounds each fold with factors from the other folds; by layers, or by the summary alone."""
    quantiles, facts, prior_mib, network = (
        (corrected.summary, data.summary_facts, data.summary_prior_mib, unseen.summary_quantiles)
        if summary
        else (corrected.shipped, data.facts, data.prior_mib, corrected.network)
    )
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    medians = prior_mib * np.exp(quantiles[:, MEDIAN])
    for fold in range(FOLDS):
        calibration = _calibrate(scored, fold)
        for row in np.flatnonzero(unseen.fold == fold):
            regime = Regime.SUMMARY if summary else Regime(int(data.regime[row]))
            factors = calibration.factors(cell_of(data, int(row), regime))
            tail, new = spreads(quantiles[row]), novelty(ranges, facts[row], regime)
            for risk, column in bounds.items():
                column[row] = bound(float(medians[row]), tail, factors, risk, new)
    return judged(data, prior_mib, quantiles, network, unseen.utilization, bounds)


def judged(
    data: Dataset, prior_mib: NDArray[np.float64], quantiles: NDArray[np.float32], network: NDArray[np.float32],
    utilization: NDArray[np.float32], bounds: dict[float, NDArray[np.float64]],
) -> Judged:  # fmt: skip
    """`network` holds the quantiles without the trees."""
    return Judged(
        measured_mib=data.measured_mib,
        median_mib=prior_mib * np.exp(quantiles[:, MEDIAN]),
        network_mib=prior_mib * np.exp(network[:, MEDIAN]),
        prior_mib=prior_mib,
        bounds_mib=bounds,
        capacity_mib=capacities_mib(data.product),
        censored=data.censored,
        suspect=data.suspect,
        utilization=data.utilization.astype(np.float64),
        predicted_utilization=utilization.astype(np.float64),
        source=data.source,
        family=data.family,
        product=data.product,
    )


def calibration_entries(calibration: Calibration, ranges: Ranges) -> dict[str, Any]:
    """The manifest's entries that `forecast.model` reads back."""
    return {
        "calibration": {
            key: {"scores": factors.scores, "factors": {f"{risk:g}": value for risk, value in factors.by_risk.items()}}
            for key, factors in calibration.cells.items()
        },
        "ranges": {name: np.round(getattr(ranges, name), 6).tolist() for name in ("low", "high", "width")},
    }


def _manifest(
    data: Dataset, model: bytes, calibration: Calibration, ranges: Ranges, accuracy: list[dict[str, Any]]
) -> dict[str, Any]:
    digest = hashlib.sha256(model).hexdigest()
    return {
        "format": FORMAT,
        "version": f"bigru-transformer-{digest[:12]}",
        "sha256": digest,
        "features": features.VERSION,
        "facts": len(features.FACTS),
        "tokens": TOKENS,
        "token_width": TOKEN_WIDTH,
        "quantiles": list(QUANTILES),
        "training_data": training_data(data),
        "split": f"{FOLDS} folds of whole groups (architecture, or network), figures on the held-out fold",
        "accuracy": accuracy,
        **calibration_entries(calibration, ranges),
    }


def training_data(data: Dataset) -> list[dict[str, Any]]:
    """For the manifest: where the rows come from, and how many there are."""
    return [
        {
            "name": source,
            "origin": _ORIGINS.get(source, "given by the operator"),
            "rows": int(rows.sum()),
            "oom": int((rows & data.censored).sum()),
            "suspect": int((rows & data.suspect).sum()),
            "groups": len(set(data.group[rows])),
        }
        for source in sorted({str(source) for source in data.source})
        for rows in [data.source == source]
    ]
