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

from vramcast.core.calibration import RISKS, Calibration, Cell, Factors, Spreads, bound, calibrate
from vramcast.forecast import features
from vramcast.forecast.artifact import FORMAT, MANIFEST, MODEL, Ranges, novelty
from vramcast.forecast.features import Regime
from vramcast.forecast.tokens import TOKEN_WIDTH, TOKENS
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
    judged = judge_unseen(data, replace(validated.unseen, utilization=used), corrected, ranges)
    calibration = calibrate(_scored(data, corrected, ranges, np.ones(len(data), bool)))
    manifest = _manifest(data, model, calibration, ranges, slices(judged)) | {
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


def _sm_active_missed(data: Dataset, network: NDArray[np.float32]) -> dict[str, float]:
    """By source, of the network alone."""
    missed = np.abs(network[:, SM_ACTIVE] - data.utilization[:, SM_ACTIVE])
    known = _usable(data) & ~np.isnan(missed)
    return {str(s): float(missed[known & (data.source == s)].mean()) for s in sorted(set(data.source[known]))}


def _plot(out: Path, validated: CrossValidated, judged: Judged) -> None:
    plots.loss_curves(validated.curves, out / "loss.png")
    plots.predicted_against_measured(judged, out / "predicted.png")


def _usable(data: Dataset) -> NDArray[np.bool_]:
    return np.asarray(~data.suspect & ~data.censored)


def _weights(data: Dataset) -> NDArray[np.float32]:
    return np.array([_TREE_WEIGHTS.get(str(source), 1.0) for source in data.source], np.float32)


def correct_unseen(data: Dataset, unseen: Unseen) -> Corrected:
    """Every fold corrected by trees of the other folds; a regime that they make worse on the whole is left alone."""
    usable, weights = _usable(data), _weights(data)
    folds = range(FOLDS)
    corrections = []
    said = np.zeros(len(data))
    for fold in folds:
        training, rows = (unseen.fold != fold) & usable, unseen.fold == fold
        correction = fit_medians(
            data.facts[training], data.regime[training], data.target[training], weights[training], fold
        )
        said[rows] = correction.say(data.facts[rows], unseen.quantiles[rows], data.regime[rows]).median
        corrections.append(correction)
    medians = unseen.quantiles[:, MEDIAN] + BLEND * (said - unseen.quantiles[:, MEDIAN])
    keeps = _regimes_that_gain(data, unseen, medians)
    missed = (data.target - medians).astype(np.float32)
    stacked = stack_inputs(data.facts, unseen.quantiles)
    shipped = unseen.quantiles.copy()
    for fold, correction in zip(folds, corrections, strict=True):
        training, rows = (unseen.fold != fold) & usable, unseen.fold == fold
        _keep_only(correction, keeps)
        fit_distances(correction, stacked[training], data.regime[training], missed[training], weights[training], fold)
        shipped[rows] = correction.correct(data.facts[rows], unseen.quantiles[rows], data.regime[rows])
    final = fit_medians(data.facts[usable], data.regime[usable], data.target[usable], weights[usable], 0)
    _keep_only(final, keeps)
    fit_distances(final, stacked[usable], data.regime[usable], missed[usable], weights[usable], 0)
    return Corrected(unseen.quantiles, shipped, unseen.summary_quantiles, final)


def _regimes_that_gain(data: Dataset, unseen: Unseen, medians: NDArray[np.float64]) -> set[int]:
    gaining = set()
    for regime in Regime:
        rows = _usable(data) & (data.regime == regime)
        before = np.abs(data.target[rows] - unseen.quantiles[rows, MEDIAN])
        if rows.any() and np.abs(data.target[rows] - medians[rows]).mean() < before.mean() - _LEAST_GAIN:
            gaining.add(int(regime))
    return gaining


def _keep_only(correction: Correction, regimes: set[int]) -> None:
    for regime in set(correction.medians) - regimes:
        del correction.medians[regime]


def training_ranges(data: Dataset) -> Ranges:
    """First and last hundredth of every fact, by regime; the summary's regime is described by the summaries."""
    low, high = np.zeros((2, len(Regime), data.facts.shape[1]), np.float32)
    for regime in Regime:
        facts = data.summary_facts if regime is Regime.SUMMARY else data.facts[data.regime == regime]
        if len(facts):
            low[regime], high[regime] = np.quantile(facts, [0.01, 0.99], axis=0)
    return Ranges(low, high, np.maximum(high - low, 1e-2))


def spreads(quantiles: NDArray[np.float32]) -> Spreads:
    median = float(quantiles[MEDIAN])
    return Spreads({round(1 - q, 6): float(quantiles[i]) - median for i, q in enumerate(QUANTILES) if q > 0.5})


def cell_of(data: Dataset, row: int, regime: Regime) -> Cell:
    return Cell(str(data.product[row]), str(data.family[row]), regime.name.lower())


def _scored(
    data: Dataset, corrected: Corrected, ranges: Ranges, rows: NDArray[np.bool_]
) -> list[tuple[Cell, dict[float, float]]]:
    """Scores of unseen rows at both levels; a run that died has the score that its GPU's size proves."""
    scored = []
    for row in np.flatnonzero(rows & ~data.suspect):
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
            scored.append((cell_of(data, int(row), known), scores))
    return scored


def judge_unseen(data: Dataset, unseen: Unseen, corrected: Corrected, ranges: Ranges) -> Judged:
    """Bounds for each fold from factors of the other folds."""
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    medians = data.prior_mib * np.exp(corrected.shipped[:, MEDIAN])
    for fold in range(FOLDS):
        calibration = calibrate(_scored(data, corrected, ranges, unseen.fold != fold))
        for row in np.flatnonzero(unseen.fold == fold):
            regime = Regime(int(data.regime[row]))
            factors = calibration.factors(cell_of(data, int(row), regime))
            tail, new = spreads(corrected.shipped[row]), novelty(ranges, data.facts[row], regime)
            for risk, column in bounds.items():
                column[row] = bound(float(medians[row]), tail, factors, risk, new)
    return Judged(
        measured_mib=data.measured_mib,
        median_mib=medians,
        network_mib=data.prior_mib * np.exp(corrected.network[:, MEDIAN]),
        prior_mib=data.prior_mib,
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
