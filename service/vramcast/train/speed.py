"""Trains the model of step times and writes speed.onnx and speed.json: one command, deterministic by seed.

Whole families of networks are held out, and in turn whole GPU products. The trees of other libraries get the same rows,
facts and folds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vramcast.forecast import speed_features
from vramcast.forecast.description import CONVOLUTIONS, Op, OpKind
from vramcast.forecast.forecast import conformal_quantile
from vramcast.forecast.speed_artifact import FORMAT, MANIFEST, MODEL, QUANTILES
from vramcast.forecast.speed_features import FACTS, TOKEN_WIDTH, TOKENS
from vramcast.forecast.step_parts import PARTS
from vramcast.forecast.work import work_of
from vramcast.train.progress import Progress
from vramcast.train.speed_crossval import HeldOut, cross_validate, fit
from vramcast.train.speed_data import FEW_ROWS, Floats, SpeedData, assign, assign_products, make_data
from vramcast.train.speed_export import BLEND, check_parity, export_speed
from vramcast.train.speed_measures import measures
from vramcast.train.speed_network import SpeedSchedule
from vramcast.train.speed_runs import SpeedRuns, read_speed_runs

_NETWORK_FOLDS = 3
_SEEDS = 2  # networks in what ships
_RISK = 1.0 - (QUANTILES[-1] - QUANTILES[0])


def train_speed(data: Path, out: Path, progress: Progress, schedule: SpeedSchedule | None = None) -> dict[str, Any]:
    """Returns the manifest. Continues where it was interrupted: the folds that are done are kept in `out/work`."""
    schedule = schedule or SpeedSchedule()
    torch.set_num_threads(1)
    runs = read_speed_runs(data)
    rows = make_data(runs, progress)
    progress.say(f"{len(rows.seconds)} rows; left out: {dict(runs.left_out)}")
    unseen, new, new_gpu = (
        cross_validate(rows, folds, schedule, progress, f"unseen {what}", out / "work", compare=compare)
        for what, folds, compare in (
            ("families", assign(rows.group), True),
            ("networks", assign(rows.network, _NETWORK_FOLDS), True),
            ("GPUs", assign_products(rows), False),
        )
    )
    weights = rows.weights(np.ones(len(rows.seconds), np.bool_))
    arrays = rows.arrays(weights)
    shipped = fit(arrays, schedule, range(1, _SEEDS + 1))
    model = export_speed(shipped)
    worst = check_parity(model, shipped, arrays)
    manifest = _manifest(runs, rows, (unseen, new, new_gpu), weights, model, worst)
    out.mkdir(parents=True, exist_ok=True)
    (out / MODEL).write_bytes(model)
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


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
        "products": sorted({p for p in set(data.product.tolist()) if np.count_nonzero(data.product == p) >= FEW_ROWS}),
        "blend": list(BLEND),
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
