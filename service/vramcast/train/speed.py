"""Trains the model of step times and writes speed.onnx and speed.json: one command, deterministic by seed.

Whole families of networks are held out, and in turn whole GPU products. The trees of other libraries get the same rows,
facts and folds.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.forecast import speed_features
from vramcast.forecast.description import CONVOLUTIONS, Op, OpKind
from vramcast.forecast.forecast import conformal_quantile
from vramcast.forecast.speed_artifact import FORMAT, MANIFEST, MODEL, QUANTILES
from vramcast.forecast.speed_features import FACTS, TOKEN_WIDTH, TOKENS, describe_speed, with_shares
from vramcast.forecast.step_parts import PARTS, weighted_seconds
from vramcast.forecast.work import work_of
from vramcast.hardware.peaks import PEAKS
from vramcast.train.progress import Progress
from vramcast.train.speed_export import BLEND, Fitted, check_parity, export_speed
from vramcast.train.speed_measures import measures
from vramcast.train.speed_network import (
    SpeedArrays,
    SpeedSchedule,
    SpeedShape,
    fit_network,
)
from vramcast.train.speed_runs import SpeedRuns, read_speed_runs
from vramcast.train.speed_weights import fit_weights, weights_by_row

Floats = NDArray[np.float64]
FOLDS = 5
_NETWORK_FOLDS = 3
_SEEDS = 2  # networks in what ships
_BAGS = 1  # of two kinds of trees
# There are several times as many rows of inference, and people train.
_TRAINING_WEIGHT = 3.0
_RISK = 1.0 - (QUANTILES[-1] - QUANTILES[0])
_FEW_ROWS = 100
_INFERENCE_SHARE = 0.2
_MEDIAN = QUANTILES.index(0.5)


@dataclass(frozen=True, slots=True)
class SpeedData:
    """One row per run."""

    plain_facts: NDArray[np.float32]  # (rows, plain facts)
    tokens: NDArray[np.float32]
    kinds: NDArray[np.int64]
    weight: NDArray[np.float32]  # in training
    parts: Floats  # (rows, parts)
    usual_parts: Floats
    cell: NDArray[np.str_]
    roofline: Floats
    seconds: Floats
    samples: Floats  # in a step
    source: NDArray[np.str_]
    group: NDArray[np.str_]
    network: NDArray[np.str_]
    product: NDArray[np.str_]

    @property
    def trains(self) -> NDArray[np.bool_]:
        return np.asarray(self.source != "timm-infer")

    def weights(self, rows: NDArray[np.bool_]) -> dict[str, Floats]:
        """Of the parts, fitted to these rows."""
        return fit_weights(self.parts[rows], self.seconds[rows], self.cell[rows])

    def priors(self, weights: dict[str, Floats]) -> Floats:
        return weighted_seconds(self.parts, weights_by_row(weights, self.cell))

    def arrays(self, weights: dict[str, Floats]) -> SpeedArrays:
        return SpeedArrays(
            with_shares(self.plain_facts, self.usual_parts, weights_by_row(weights, self.cell)), self.tokens,
            self.kinds, np.log(self.seconds / self.priors(weights)).astype(np.float32), self.weight,
        )  # fmt: skip


def train_speed(data: Path, out: Path, progress: Progress, schedule: SpeedSchedule | None = None) -> dict[str, Any]:
    schedule = schedule or SpeedSchedule()
    torch.set_num_threads(1)
    runs = read_speed_runs(data)
    thin(runs)
    rows = make_data(runs, progress)
    progress.say(f"{len(rows.seconds)} rows; left out: {dict(runs.left_out)}")
    unseen = _cross_validate(rows, assign(rows.group), schedule, progress, "unseen families", compare=True)
    new = _cross_validate(
        rows, assign(rows.network, _NETWORK_FOLDS), schedule, progress, "unseen networks", compare=False
    )
    new_gpu = _cross_validate(rows, assign_products(rows), schedule, progress, "unseen GPUs", compare=False)
    weights = rows.weights(np.ones(len(rows.seconds), np.bool_))
    arrays = rows.arrays(weights)
    shipped = _fit(arrays, schedule, range(1, _SEEDS + 1))
    model = export_speed(shipped)
    worst = check_parity(model, shipped, arrays)
    manifest = _manifest(runs, rows, (unseen, new, new_gpu), weights, model, worst)
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(model)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def thin(runs: SpeedRuns) -> None:
    """Every network is timed on four GPUs. One in five of those rows teaches nearly as much, in less time."""
    drawn = np.random.default_rng(0).random(len(runs.runs)) < _INFERENCE_SHARE
    kept = [run for run, take in zip(runs.runs, drawn, strict=True) if take or run.source != "timm-infer"]
    runs.left_out["timm-infer: thinned"] += len(runs.runs) - len(kept)
    runs.runs[:] = kept


def make_data(runs: SpeedRuns, progress: Progress) -> SpeedData:
    described = [
        describe_speed(run.network, run.task, PEAKS[run.product], channels_last=run.channels_last)
        for run in progress.over(runs.runs, "features")
    ]
    known = [(run, features) for run, features in zip(runs.runs, described, strict=True) if features is not None]
    runs.left_out["no shapes"] += len(described) - len(known)
    kept, features = [run for run, _ in known], [found for _, found in known]
    source = np.array([run.source for run in kept])
    return SpeedData(
        plain_facts=np.stack([row.plain_facts for row in features]),
        tokens=np.stack([row.tokens for row in features]),
        kinds=np.stack([row.kinds for row in features]),
        weight=np.where(source == "timm-infer", 1.0, _TRAINING_WEIGHT).astype(np.float32),
        parts=np.stack([row.parts for row in features]),
        usual_parts=np.stack([row.usual_parts for row in features]),
        cell=np.array([row.cell for row in features]),
        roofline=np.array([row.roofline_seconds for row in features]),
        seconds=np.array([run.seconds for run in kept]),
        samples=np.array([float(run.task.batch_size) for run in kept]),
        source=source,
        group=np.array([run.group for run in kept]),
        network=np.array([run.model for run in kept]),
        product=np.array([str(run.product) for run in kept]),
    )


def assign(group: NDArray[np.str_], count: int = FOLDS) -> NDArray[np.int64]:
    """Whole groups to folds, the largest first."""
    groups, counts = np.unique(group, return_counts=True)
    order = np.random.default_rng(0).permutation(len(groups))
    load, fold_of = np.zeros(count, np.int64), {}
    for index in order[np.argsort(-counts[order], kind="stable")]:
        fold = int(np.argmin(load))
        fold_of[groups[index]] = fold
        load[fold] += counts[index]
    return np.array([fold_of[name] for name in group])


def assign_products(data: SpeedData) -> NDArray[np.int64]:
    """Each to a fold of its own; those with a few rows share one."""
    folds = np.unique(data.product, return_inverse=True)[1].astype(np.int64)
    many = np.bincount(folds) >= _FEW_ROWS
    return np.where(many[folds], folds, -1) if many.any() else folds


def _fit(data: SpeedArrays, schedule: SpeedSchedule, seeds: Sequence[int]) -> Fitted:
    networks = tuple(fit_network(data, SpeedShape(), schedule, seed) for seed in seeds)
    trees = tuple(
        lightgbm.LGBMRegressor(**parameters).fit(data.facts, data.target, sample_weight=data.weight)
        for seed in range(_BAGS)
        for parameters in (_extra_trees(seed), _boosted(seed))
    )
    return Fitted(networks, trees)


def _extra_trees(seed: int) -> dict[str, Any]:
    return _boosted(seed) | {"extra_trees": True, "n_estimators": 400, "colsample_bytree": 0.3}


def _boosted(seed: int) -> dict[str, Any]:
    return {
        "objective": "l1", "n_estimators": 250, "learning_rate": 0.05, "num_leaves": 20, "min_child_samples": 8,
        "subsample": 0.8, "subsample_freq": 1, "colsample_bytree": 0.5, "reg_lambda": 1.0, "verbose": -1, "n_jobs": 1,
        "random_state": seed, "deterministic": True, "force_row_wise": True,
    }  # fmt: skip


# ---------------------------------------------------------------------- held out


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions of rows that were held out, in logarithms of seconds."""

    quantiles: Floats  # (rows, quantiles), what ships
    medians: dict[str, Floats]  # by predictor


def _cross_validate(
    data: SpeedData,
    folds: NDArray[np.int64],
    schedule: SpeedSchedule,
    progress: Progress,
    what: str,
    *,
    compare: bool,
) -> HeldOut:
    others = _others() if compare else {}
    started = time.process_time()
    quantiles = np.zeros((len(folds), len(QUANTILES)))
    names = ("Transformer-BiGRU", "weighted parts", "roofline", *others)
    medians = {name: np.zeros(len(folds)) for name in names}
    for fold in progress.over(sorted(set(folds.tolist())), what):
        here = folds == fold
        weights = data.weights(~here)
        arrays, prior = data.arrays(weights), np.log(data.priors(weights)[here])
        seen, held = arrays.where(~here), arrays.where(here)
        shipped, own = _fit(seen, schedule, (1,)).quantiles(held)
        quantiles[here] = prior[:, None] + shipped
        medians["Transformer-BiGRU"][here] = prior + own[:, _MEDIAN]
        medians["weighted parts"][here] = prior
        over = np.log(data.seconds[~here] / data.roofline[~here])
        medians["roofline"][here] = np.log(data.roofline[here]) + np.median(over)
        for name, make in others.items():
            tree = make().fit(seen.facts, seen.target, sample_weight=seen.weight)
            medians[name][here] = prior + tree.predict(held.facts)
        progress.say(f"{what}, fold {fold}: {time.process_time() - started:.0f} s")
    return HeldOut(quantiles, {"what ships": quantiles[:, _MEDIAN], **medians})


def _others() -> dict[str, Callable[[], Any]]:
    """The second paper's four. Two need the extra `predictors`."""
    from sklearn.ensemble import ExtraTreesRegressor  # noqa: PLC0415

    found: dict[str, Callable[[], Any]] = {
        "LightGBM": lambda: lightgbm.LGBMRegressor(
            n_estimators=400, learning_rate=0.05, num_leaves=31, min_child_samples=8, verbose=-1, n_jobs=1,
            random_state=0, deterministic=True, force_row_wise=True,
        ),
        "ExtraTrees": lambda: ExtraTreesRegressor(100, min_samples_leaf=2, max_features=0.4, n_jobs=1, random_state=0),
    }  # fmt: skip
    try:
        from catboost import CatBoostRegressor  # noqa: PLC0415
        from xgboost import XGBRegressor  # noqa: PLC0415
    except ImportError:
        return found
    return found | {
        "CatBoost": lambda: CatBoostRegressor(
            iterations=300, learning_rate=0.1, depth=6, loss_function="MAE", verbose=False, thread_count=1,
            random_seed=0, allow_writing_files=False,
        ),
        "XGBoost": lambda: XGBRegressor(
            n_estimators=400, learning_rate=0.05, max_depth=6, subsample=0.8, colsample_bytree=0.5, n_jobs=1,
            random_state=0, objective="reg:absoluteerror",
        ),
    }  # fmt: skip


# ---------------------------------------------------------------------- manifest


def _manifest(
    runs: SpeedRuns, data: SpeedData, held: tuple[HeldOut, HeldOut, HeldOut], weights: dict[str, Floats], model: bytes,
    worst: float,
) -> dict[str, Any]:  # fmt: skip
    """`held`: families, networks and GPUs."""
    unseen, new, new_gpu = held
    digest = hashlib.sha256(model).hexdigest()
    sources = {source: data.source == source for source in sorted(set(data.source.tolist()))}
    factor = _range_factor(data, unseen)
    return {
        "format": FORMAT,
        "version": f"speed-{digest[:8]}",
        "sha256": digest,
        "features": speed_features.VERSION,
        "facts": len(FACTS),
        "tokens": TOKENS,
        "token_width": TOKEN_WIDTH,
        "quantiles": list(QUANTILES),
        "parts": list(PARTS),
        "weights": {cell: dict(zip(PARTS, map(float, found), strict=True)) for cell, found in weights.items()},
        "products": sorted({p for p in set(data.product.tolist()) if np.count_nonzero(data.product == p) >= _FEW_ROWS}),
        "blend": BLEND,
        "range_factor": factor,
        "margin": _margin(data, new_gpu, factor),
        "parity": worst,
        "rows": {source: int(np.count_nonzero(rows)) for source, rows in sources.items()},
        "left_out": dict(runs.left_out),
        "flops": _flops_check(runs),
        "unseen_families": _accuracy(data, unseen, sources),
        "unseen_networks": _accuracy(data, new, sources),
        "unseen_gpus": _accuracy(data, new_gpu, {
            f"{product}, {source}": (data.product == product) & (data.source == source)
            for product in sorted(set(data.product.tolist()))
            for source in sorted(set(data.source[data.product == product].tolist()))
        }),
        "coverage": {source: _coverage(data, unseen, factor, rows) for source, rows in sources.items()},
    }  # fmt: skip


def _accuracy(
    data: SpeedData, held: HeldOut, slices: dict[str, NDArray[np.bool_]]
) -> dict[str, dict[str, dict[str, float]]]:
    return {
        slice_name: {
            name: {
                key: round(value, 5)
                for key, value in measures(data.seconds[rows], np.exp(median[rows]), data.samples[rows]).items()
            }
            for name, median in held.medians.items()
        }
        for slice_name, rows in slices.items()
    }


def _scores(data: SpeedData, held: HeldOut, rows: NDArray[np.bool_]) -> Floats:
    """How many times its own distance from the median a run was off."""
    low, median, high = held.quantiles[rows].T
    miss = np.log(data.seconds[rows]) - median
    return np.asarray(np.where(miss > 0, miss / (high - median), -miss / (median - low)), np.float64)


def _range_factor(data: SpeedData, held: HeldOut) -> float:
    """Over training runs of unseen families."""
    return float(conformal_quantile(_scores(data, held, data.trains).tolist(), _RISK))


def _coverage(data: SpeedData, held: HeldOut, factor: float, rows: NDArray[np.bool_]) -> float:
    return round(float(np.mean(_scores(data, held, rows) <= factor)), 4)


def _margin(data: SpeedData, held: HeldOut, factor: float) -> float:
    """What an unseen GPU adds to the range, so that nine of ten of its runs are in it."""
    low, median, high = held.quantiles.T
    miss = np.log(data.seconds) - median
    beyond = np.where(miss > 0, miss - factor * (high - median), -miss - factor * (median - low))
    by_product = [conformal_quantile(beyond[data.product == p].tolist(), _RISK) for p in sorted(set(data.product))]
    return float(max(0.0, *by_product))


def _flops_check(runs: SpeedRuns) -> dict[str, float]:
    """Our multiply-accumulates beside the published ones, which include norms and are rounded to 10 million."""
    apart, within = [], []
    networks = {(run.model, run.task.input_size[1]): run.network for run in runs.runs if run.task.input_size}
    for key, published in runs.published_gmacs.items():
        work = work_of(networks[key]) if key in networks else None
        if work is None or published <= 0:
            continue
        ours = (work.total_macs + _published_norms(networks[key].ops)) / 1e9
        apart.append(abs(ours - published) / published)
        within.append(abs(ours - published) <= max(0.01 * published, 0.005))
    if not apart:
        return {"networks": 0}
    return {
        "networks": len(apart),
        "median_difference": float(np.median(apart)),
        "within_1_percent": float(np.mean(within)),
    }


def _published_norms(ops: Sequence[Op]) -> float:
    """What fvcore, the publisher's tool, counts for norms: two per element of a batch norm, five of another norm.

    A batch norm that is fused with its activation leaves an identity after the convolution.
    """
    batch = sum(op.in_elements for op in ops if op.kind is OpKind.BATCH_NORM)
    batch += sum(
        after.in_elements
        for op, after in pairwise(ops)
        if op.kind in CONVOLUTIONS and after.type == "Identity" and after.out_elements == op.out_elements
    )
    return 2.0 * batch + 5.0 * sum(op.in_elements for op in ops if op.kind is OpKind.LAYER_NORM)
