"""`vramcast train`: records in, artifact out, with every figure in its manifest measured on rows that were unseen.

The networks of the cross-validation are themselves the ensemble that ships: each has seen four fifths of the groups,
together they have seen all, and the figures of a single one on its unseen fifth are the cautious ones that are stated.
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
from vramcast.forecast.conformal import RISKS, Calibration, Cell, Factors, Spreads, bound, calibrate
from vramcast.forecast.features import TOKEN_WIDTH, TOKENS, Regime, without_optional
from vramcast.forecast.model import FORMAT, MANIFEST, MODEL, Ranges, novelty
from vramcast.train import plots
from vramcast.train.crossval import FOLDS, CrossValidated, Unseen, cross_validate, load_dataset
from vramcast.train.dataset import Dataset
from vramcast.train.export import check_parity, export
from vramcast.train.fitting import Schedule
from vramcast.train.metrics import REPORTED_RISKS, Judged, capacities_mib, slices
from vramcast.train.network import MEDIAN, QUANTILES, Shape
from vramcast.train.progress import Progress
from vramcast.train.records import read_records
from vramcast.train.trees import BLEND, Correction, fit_distances, fit_medians, stack_inputs
from vramcast.train.utilization import SM_ACTIVE, correct_utilization

_ORIGINS = {
    "timm-a100": "itu-rad/GPUMemNet, CC-BY-4.0",
    "gpumemnet-cnn": "itu-rad/GPUMemNet, CC-BY-4.0",
    "gpumemnet-mlp": "itu-rad/GPUMemNet, CC-BY-4.0",
    "xmem": "Stone-ResearchLife/xMem, MIT",
}
# A source with few rows pulls as hard as it may without drowning in its regime.
_TREE_WEIGHTS = {"xmem": 5.0}
# Beside the whole summaries; not so heavy that they blunt what layers and architecture tell.
_TERSE_WEIGHT = 0.2
# Less than this (in logarithms) is no gain: the replayed nets are exact, and there trees would only add noise.
_LEAST_GAIN = 2e-4


@dataclass(frozen=True, slots=True)
class Corrected:
    """Unseen rows after the trees of the other folds."""

    network: NDArray[np.float32]  # (rows, quantiles)
    shipped: NDArray[np.float32]
    summary: NDArray[np.float32]
    correction: Correction  # fitted on all folds: what ships


def train(
    data_dir: Path, out: Path, seeds: Sequence[int], progress: Progress, shape: Shape, schedule: Schedule
) -> dict[str, Any]:
    """Trains, writes the artifact and returns its manifest."""
    data = load_dataset(read_records(data_dir), out / "work", progress)
    validated = cross_validate(data, shape, schedule, seeds, out / "work", progress)
    progress.say("trees on the networks' unseen rows")
    corrected = correct_unseen(data, validated.unseen)
    correction = corrected.correction
    used, trees = correct_utilization(data, validated.unseen.fold, validated.unseen.utilization)
    model = export(validated.networks, correction, trees)
    parity = check_parity(model, validated.networks, correction, trees, data)
    ranges = training_ranges(data)
    unseen = replace(validated.unseen, utilization=used)
    scored = _scored(data, unseen, corrected, ranges)
    judged = judge_unseen(data, unseen, corrected, ranges, scored, summary=False)
    told = judge_unseen(data, unseen, corrected, ranges, scored, summary=True)
    manifest = _manifest(data, model, _calibrate(scored), ranges, slices(judged)) | {
        "summary_accuracy": [_memory_only(entry) for entry in slices(told)],
        "parity": parity,
        "trees_correct": [Regime(regime).name.lower() for regime in sorted(correction.medians)],
        "trees_say_sm_active": [Regime(regime).name.lower() for regime in sorted(trees.models)],
        "network_sm_active_mae": _sm_active_missed(data, validated.unseen.utilization),
        "shape": asdict(shape),
        "schedule": asdict(schedule),
        "networks": len(validated.networks),
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(model)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    _plot(out, validated, judged)
    return manifest


def _memory_only(entry: dict[str, Any]) -> dict[str, Any]:
    """Utilization is not judged from summaries."""
    return {name: value for name, value in entry.items() if not name.startswith(("gpu_util", "sm_"))}


def _sm_active_missed(data: Dataset, network: NDArray[np.float32]) -> dict[str, float]:
    """By source, of the network alone."""
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
    """Every run twice: by its layers, then by its summary. Arrays over twice the rows."""

    facts: NDArray[np.float32]
    regime: NDArray[np.int64]
    target: NDArray[np.float32]
    quantiles: NDArray[np.float32]
    fold: NDArray[np.int64]
    usable: NDArray[np.bool_]
    weight: NDArray[np.float32]

    def train_medians(self, rows: NDArray[np.bool_], seed: int) -> Correction:
        """A summary is shown terse too: trees that lean on what may be left out would be lost without it."""
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
    """Every fold corrected by trees of the other folds; a regime that they make worse on the whole is left alone."""
    told = _levels(data, unseen)
    corrections = []
    said = np.zeros(len(told.fold))
    for fold in range(FOLDS):
        training, rows = (told.fold != fold) & told.usable, told.fold == fold
        correction = told.train_medians(training, fold)
        said[rows] = correction.say(told.facts[rows], told.quantiles[rows], told.regime[rows]).median
        corrections.append(correction)
    medians = told.quantiles[:, MEDIAN] + BLEND * (said - told.quantiles[:, MEDIAN])
    keeps = _regimes_that_gain(told, medians)
    missed = told.target - told.quantiles[:, MEDIAN]
    shipped = told.quantiles.copy()
    for fold, correction in enumerate(corrections):
        rows = told.fold == fold
        _finish(correction, keeps, told, (told.fold != fold) & told.usable, missed, fold)
        shipped[rows] = correction.correct(told.facts[rows], told.quantiles[rows], told.regime[rows])
    final = told.train_medians(told.usable, FOLDS)
    _finish(final, keeps, told, told.usable, missed, FOLDS)
    return Corrected(unseen.quantiles, shipped[: len(data)], shipped[len(data) :], final)


def _finish(
    correction: Correction, keeps: set[int], told: _Levels, rows: NDArray[np.bool_], missed: NDArray[np.float32],
    seed: int,
) -> None:  # fmt: skip
    _keep_only(correction, keeps)
    stacked = stack_inputs(told.facts[rows], told.quantiles[rows])
    fit_distances(correction, stacked, told.regime[rows], missed[rows], told.weight[rows], seed)


def _regimes_that_gain(told: _Levels, medians: NDArray[np.float64]) -> set[int]:
    gaining = set()
    for regime in Regime:
        rows = told.usable & (told.regime == regime)
        before = np.abs(told.target[rows] - told.quantiles[rows, MEDIAN])
        if rows.any() and np.abs(told.target[rows] - medians[rows]).mean() < before.mean() - _LEAST_GAIN:
            gaining.add(int(regime))
    return gaining


def _keep_only(correction: Correction, regimes: set[int]) -> None:
    for regime in set(correction.medians) - regimes:
        del correction.medians[regime]


def training_ranges(data: Dataset) -> Ranges:
    """First and last hundredth of every fact, by regime; the summary's regime is described by the summaries.

    A GPU is as new to one regime as to another: few runs on few products, of which hundredths would cut some off.
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


def cell_of(data: Dataset, row: int, regime: Regime) -> Cell:
    return Cell(str(data.product[row]), str(data.family[row]), regime.name.lower())


@dataclass(frozen=True, slots=True)
class _Score:
    fold: int
    cell: Cell
    by_risk: dict[float, float]


def _scored(data: Dataset, unseen: Unseen, corrected: Corrected, ranges: Ranges) -> list[_Score]:
    """Scores of unseen rows at both levels; a run that died has the score that its GPU's size proves."""
    scored = []
    for row in np.flatnonzero(~data.suspect):
        regime = Regime(int(data.regime[row]))
        levels = (
            (regime, corrected.shipped[row], data.target[row], data.facts[row]),
            (Regime.SUMMARY, corrected.summary[row], data.summary_target[row], data.summary_facts[row]),
        )
        for known, quantiles, target, facts in levels:
            tail, new = spreads(quantiles), novelty(ranges, facts, known)
            excess = float(target - quantiles[MEDIAN])
            if data.censored[row] and excess <= 0:
                continue  # the forecast already said more than the GPU has: the run proves nothing against it
            scores = {risk: excess / (tail.at(risk) * (1.0 + new)) for risk in RISKS}
            scored.append(_Score(int(unseen.fold[row]), cell_of(data, int(row), known), scores))
    return scored


def _calibrate(scored: list[_Score], without_fold: int | None = None) -> Calibration:
    return calibrate((score.cell, score.by_risk) for score in scored if score.fold != without_fold)


def judge_unseen(
    data: Dataset, unseen: Unseen, corrected: Corrected, ranges: Ranges, scored: list[_Score], *, summary: bool
) -> Judged:
    """Bounds for each fold from factors of the other folds; by layers, or told by the summary alone."""
    said, facts, prior_mib, alone = (
        (corrected.summary, data.summary_facts, data.summary_prior_mib, unseen.summary_quantiles)
        if summary
        else (corrected.shipped, data.facts, data.prior_mib, corrected.network)
    )
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    medians = prior_mib * np.exp(said[:, MEDIAN])
    for fold in range(FOLDS):
        calibration = _calibrate(scored, fold)
        for row in np.flatnonzero(unseen.fold == fold):
            regime = Regime.SUMMARY if summary else Regime(int(data.regime[row]))
            factors = calibration.factors(cell_of(data, int(row), regime))
            tail, new = spreads(said[row]), novelty(ranges, facts[row], regime)
            for risk, column in bounds.items():
                column[row] = bound(float(medians[row]), tail, factors, risk, new)
    return Judged(
        measured_mib=data.measured_mib,
        median_mib=medians,
        network_mib=prior_mib * np.exp(alone[:, MEDIAN]),
        prior_mib=prior_mib,
        bounds_mib=bounds,
        capacity_mib=capacities_mib(data.product),
        censored=data.censored,
        suspect=data.suspect,
        utilization=data.utilization.astype(np.float64),
        said_utilization=unseen.utilization.astype(np.float64),
        source=data.source,
        family=data.family,
        product=data.product,
    )


def _factors(factors: Factors) -> dict[str, Any]:
    return {"scores": factors.scores, "factors": {f"{risk:g}": value for risk, value in factors.by_risk.items()}}


def _manifest(
    data: Dataset, model: bytes, calibration: Calibration, ranges: Ranges, accuracy: list[dict[str, Any]]
) -> dict[str, Any]:
    digest = hashlib.sha256(model).hexdigest()
    sources = sorted({str(source) for source in data.source})
    return {
        "format": FORMAT,
        "version": f"bigru-transformer-{digest[:12]}",
        "sha256": digest,
        "features": features.VERSION,
        "facts": len(features.FACTS),
        "tokens": TOKENS,
        "token_width": TOKEN_WIDTH,
        "quantiles": list(QUANTILES),
        "training_data": [_source_facts(data, source) for source in sources],
        "split": f"{FOLDS} folds of whole groups (architecture, or network), figures on the fold left out",
        "accuracy": accuracy,
        "calibration": {key: _factors(factors) for key, factors in calibration.cells.items()},
        "ranges": {name: np.round(getattr(ranges, name), 6).tolist() for name in ("low", "high", "width")},
    }


def _source_facts(data: Dataset, source: str) -> dict[str, Any]:
    rows = data.source == source
    return {
        "name": source,
        "origin": _ORIGINS.get(source, "given by the operator"),
        "rows": int(rows.sum()),
        "oom": int((rows & data.censored).sum()),
        "suspect": int((rows & data.suspect).sum()),
        "groups": len(set(data.group[rows])),
    }
