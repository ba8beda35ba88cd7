"""`vramcast train`: turns records into an artifact. Every figure in its manifest was measured on unseen rows.

The networks of the cross-validation are the ensemble that ships. Each was trained on four fifths of the groups, so
together they have seen all groups. The manifest states the accuracy of single networks on their unseen fifth, which is
on the cautious side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast import features
from vramcast.forecast.features import TOKEN_WIDTH, TOKENS, Regime
from vramcast.forecast.forecast import RISKS, Calibration, Cell, ScoredRun, Spreads, bound, calibrate
from vramcast.forecast.model import FORMAT, MANIFEST, MODEL, Ranges, novelty
from vramcast.train import plots
from vramcast.train.artifact_parts import write_manifest
from vramcast.train.crossval import FOLDS, CrossValidated, Unseen, cross_validate, load_dataset, reuse
from vramcast.train.dataset import Dataset, assign_folds
from vramcast.train.evaluation import REPORTED_RISKS, Judged, capacities_mib, slices
from vramcast.train.evenness import evenness
from vramcast.train.export import check_parity, export
from vramcast.train.fitting import Schedule
from vramcast.train.import_onnx import import_networks
from vramcast.train.network import MEDIAN, QUANTILES, Shape
from vramcast.train.progress import Progress
from vramcast.train.recorded import fit_recorded
from vramcast.train.records import read_records
from vramcast.train.unseen import Corrected, correct_unseen
from vramcast.train.utilization import SM_ACTIVE, correct_utilization

_ORIGINS = {
    "timm-a100": "itu-rad/GPUMemNet, CC-BY-4.0",
    "gpumemnet-cnn": "itu-rad/GPUMemNet, CC-BY-4.0",
    "gpumemnet-mlp": "itu-rad/GPUMemNet, CC-BY-4.0",
    "xmem": "Stone-ResearchLife/xMem, MIT",
}
# Ways to deal whole groups to folds. Figures of a single one depend on which architectures came together.
DEALINGS = 3


def train(
    data_dir: Path, out: Path, seeds: Sequence[int], progress: Progress, shape: Shape, schedule: Schedule,
    networks_of: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Writes the artifact and returns its manifest. `networks_of`: an artifact whose networks are kept."""
    with progress.stage("runs and their features"):
        data = load_dataset(read_records(data_dir), out / "work", progress)
    kept: dict[str, Any] = {}
    with progress.stage("networks"):
        if networks_of is None:
            validated = cross_validate(data, shape, schedule, seeds, out / "work", progress)
        else:
            validated, kept = networks_of_artifact(data, networks_of)
    with progress.stage("trees on the networks' unseen rows"):
        dealings = [assign_folds(data, FOLDS, number) for number in range(DEALINGS)]
        corrected, correction = correct_unseen(data, validated.unseen, dealings)
        used, trees = correct_utilization(data, validated.unseen.fold, validated.unseen.utilization)
    model = export(validated.networks, correction, trees)
    parity = check_parity(model, validated.networks, correction, trees, data)
    by_layers, manifest = _judge_unseen(data, replace(validated.unseen, utilization=used), corrected, model)
    manifest |= {
        "parity": parity,
        "trees_correct": [Regime(regime).name.lower() for regime in sorted(correction.medians)],
        "novelty_growth": {Regime(r).name.lower(): known.growth for r, known in sorted(correction.novelty.items())},
        "trees_say_sm_active": [Regime(regime).name.lower() for regime in sorted(trees.models)],
        "network_sm_active_mae": _sm_active_missed(data, validated.unseen.utilization),
        "shape": asdict(shape),
        "schedule": asdict(schedule),
        "networks": len(validated.networks),
        **kept,
    }
    with progress.stage("bounds of recorded forecasts"):
        manifest |= fit_recorded(data_dir, progress)
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(model)
    write_manifest(out, manifest)
    _plot(out, validated, by_layers)
    return manifest


def _judge_unseen(
    data: Dataset, unseen: Unseen, corrected: Sequence[Corrected], model: bytes
) -> tuple[Judged, dict[str, Any]]:
    """The first dealing, and the manifest with its calibration and accuracy."""
    ranges = training_ranges(data)
    scored = [_scored(data, one, ranges) for one in corrected]
    by_layers, by_summary = (
        [judge_unseen(data, unseen, *pair, ranges, summary=summary) for pair in zip(corrected, scored, strict=True)]
        for summary in (False, True)
    )
    calibration = calibrate(one for dealt in scored for _, one in dealt)
    return by_layers[0], _manifest(data, model, calibration, ranges, _mean_slices(by_layers)) | {
        "summary_accuracy": [_memory_only(entry) for entry in _mean_slices(by_summary)],
        # Other predictors are compared on these folds.
        "first_dealing": {"accuracy": slices(by_layers[0]), "summary_accuracy": slices(by_summary[0])},
        "evenness": evenness(data.group, by_layers),
    }


def networks_of_artifact(data: Dataset, artifact: Path) -> tuple[CrossValidated, dict[str, Any]]:
    """The networks of an artifact, perhaps of another feature version, and what the manifest says about them.

    Facts and tokens must be the same ones. Their values may have changed, and the trees are fitted anew.
    """
    manifest = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))
    layout = {"facts": len(features.FACTS), "tokens": TOKENS, "token_width": TOKEN_WIDTH}
    if {name: manifest[name] for name in layout} != layout or manifest["training_data"] != training_data(data):
        raise InvalidInput(f"{artifact} was trained on other facts or other runs, so its networks cannot be kept")
    count, shape = int(manifest["networks"]), Shape(**manifest["shape"])
    networks = import_networks(onnx.load(artifact / MODEL), shape, count).networks
    kept = {name: manifest[name] for name in ("shape", "schedule")}
    return reuse(data, networks), kept | {"networks_of": manifest.get("networks_of", manifest["version"])}


def _mean_slices(dealt: Sequence[Judged]) -> list[dict[str, Any]]:
    """Each figure is the mean over the dealings; counts are the same in all of them."""
    return [_mean(entries) for entries in zip(*(slices(judged) for judged in dealt), strict=True)]


def _mean(values: Sequence[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        return {name: _mean([value[name] for value in values]) for name in first}
    return float(np.mean(values)) if isinstance(first, float) else first


def _memory_only(entry: dict[str, Any]) -> dict[str, Any]:
    """Without utilization, which is not forecast from summaries."""
    return {name: value for name, value in entry.items() if not name.startswith(("gpu_util", "sm_"))}


def _sm_active_missed(data: Dataset, network: NDArray[np.float32]) -> dict[str, float]:
    """Mean error by source, of the network without trees."""
    missed = np.abs(network[:, SM_ACTIVE] - data.utilization[:, SM_ACTIVE])
    known = data.usable & ~np.isnan(missed)
    return {str(s): float(missed[known & (data.source == s)].mean()) for s in sorted(set(data.source[known]))}


def _plot(out: Path, validated: CrossValidated, judged: Judged) -> None:
    if validated.curves:
        plots.loss_curves(validated.curves, out / "loss.png")
    plots.predicted_against_measured(judged, out / "predicted.png")


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


def _scored(data: Dataset, corrected: Corrected, ranges: Ranges) -> list[tuple[int, ScoredRun]]:
    """By fold, the scores of unseen rows, by layers and by summary. An OOM-killed run has the score that its GPU's size
    implies."""
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
            cell = cell_of(data, int(row), known)
            scored.append((int(corrected.fold[row]), ScoredRun(cell, scores, str(data.group[row]))))
    return scored


def judge_unseen(
    data: Dataset, unseen: Unseen, corrected: Corrected, scored: list[tuple[int, ScoredRun]], ranges: Ranges, *,
    summary: bool,
) -> Judged:  # fmt: skip
    """Bounds each fold with factors from the other folds; by layers, or by the summary alone."""
    quantiles, facts, prior_mib, network = (
        (corrected.summary, data.summary_facts, data.summary_prior_mib, unseen.summary_quantiles)
        if summary
        else (corrected.shipped, data.facts, data.prior_mib, unseen.quantiles)
    )
    bounds = {risk: np.zeros(len(data)) for risk in REPORTED_RISKS}
    medians = prior_mib * np.exp(quantiles[:, MEDIAN])
    for fold in range(FOLDS):
        calibration = calibrate(one for number, one in scored if number != fold)
        for row in np.flatnonzero(corrected.fold == fold):
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
        "split": f"{FOLDS} folds of whole groups (architecture, or network), figures on the held-out fold, mean of "
        f"{DEALINGS} ways to deal the groups",
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
