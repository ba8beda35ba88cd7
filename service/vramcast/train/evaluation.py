"""Accuracy on measured runs, by slice, and `vramcast evaluate`. Errors are fractions of the measured memory."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.features import describe
from vramcast.forecast.forecast import Cell, bound
from vramcast.forecast.model import Artifact, ModelForecaster, ModelSession, load_artifact, novelty_of
from vramcast.forecast.physics import clear_caches
from vramcast.hardware.products import PRODUCTS
from vramcast.task.quantity import MIB
from vramcast.train.dataset import usable_mib
from vramcast.train.progress import Progress
from vramcast.train.records import TARGETS, Record, RecordOutcome, read_records
from vramcast.train.runs.judging import DEFAULT_RISK, evaluate_runs
from vramcast.train.speed_evaluation import evaluate_speed

Floats = NDArray[np.float64]
REPORTED_RISKS = (0.1, 0.05, 0.01)
_UNKNOWN_CAPACITY_MIB = 1e9
_PERCENTILES = (80, 90, 95, 99)
# GPUUtilNet's limits between low, medium and high.
SM_ACTIVE_CUTS = {"gpumemnet-cnn": (0.3, 0.9), "gpumemnet-mlp": (0.2, 0.7)}
_DEFAULT_CUTS = (0.3, 0.9)


@dataclass(frozen=True, slots=True)
class Judged:
    """Measured runs with their forecasts; arrays over rows."""

    measured_mib: Floats
    median_mib: Floats
    network_mib: Floats
    prior_mib: Floats
    bounds_mib: Mapping[float, Floats]
    capacity_mib: Floats
    censored: NDArray[np.bool_]
    suspect: NDArray[np.bool_]
    utilization: Floats  # (rows, targets)
    predicted_utilization: Floats
    source: NDArray[np.str_]
    family: NDArray[np.str_]
    product: NDArray[np.str_]


def capacities_mib(products: NDArray[np.str_]) -> Floats:
    """The most that a run can use: the GPU's memory without the driver's reserve."""
    specs = (PRODUCTS.get(str(product)) for product in products)
    return np.array([spec.memory_mib - spec.reserve_mib if spec else _UNKNOWN_CAPACITY_MIB for spec in specs])


def slices(judged: Judged) -> list[dict[str, Any]]:
    """First one per source, then one per family and product within each source."""
    found = [_slice(judged, source, judged.source == source) for source in _order(judged.source)]
    for source in _order(judged.source):
        for name, column in (("family", judged.family), ("product", judged.product)):
            values = _order(column[judged.source == source])
            if len(values) > 1:
                found += [
                    _slice(judged, f"{source}/{name}={value}", (judged.source == source) & (column == value))
                    for value in values
                ]
    return found


def _order(column: NDArray[np.str_]) -> list[str]:
    return sorted({str(value) for value in column})


def _slice(judged: Judged, name: str, rows: NDArray[np.bool_]) -> dict[str, Any]:
    ok = rows & ~judged.censored & ~judged.suspect
    oom = rows & judged.censored
    result: dict[str, Any] = {
        "slice": name,
        "rows": int(ok.sum()),
        "oom_rows": int(oom.sum()),
        "suspect_rows": int((rows & judged.suspect).sum()),
    }
    if ok.any():
        result |= _memory(judged, ok)
        result |= {f"{key}_median_error": _median_error(judged, ok, column) for key, column in _others(judged).items()}
    if oom.any():
        result["oom_foreseen"] = _foreseen(judged, oom)
    source = str(judged.source[np.flatnonzero(rows)[0]])
    return result | _utilization(judged, ok, source)


def _others(judged: Judged) -> dict[str, Floats]:
    return {"network": judged.network_mib, "physics": judged.prior_mib}


def _median_error(judged: Judged, ok: NDArray[np.bool_], forecast_mib: Floats) -> float:
    forecast = np.minimum(forecast_mib[ok], judged.capacity_mib[ok])
    return float(np.median(np.abs(forecast - judged.measured_mib[ok]) / judged.measured_mib[ok]))


def _memory(judged: Judged, ok: NDArray[np.bool_]) -> dict[str, Any]:
    measured = judged.measured_mib[ok]
    # A run that finished fitted its GPU.
    forecast = np.minimum(judged.median_mib[ok], judged.capacity_mib[ok])
    error = np.abs(forecast - measured) / measured
    return {
        "median_error": float(np.median(error)),
        "mean_error": float(error.mean()),
        **{f"p{p}_error": float(np.percentile(error, p)) for p in _PERCENTILES},
        "under_share": float((forecast < measured).mean()),
        "bin_accuracy_1gb": _bins(measured, forecast, 1024),
        "bin_accuracy_8gb": _bins(measured, forecast, 8192),
        "coverage": {f"{risk:g}": float((bound[ok] >= measured).mean()) for risk, bound in judged.bounds_mib.items()},
        "over_reservation": {
            f"{risk:g}": float(np.median(bound[ok] / measured - 1.0)) for risk, bound in judged.bounds_mib.items()
        },
    }


def _bins(measured: Floats, forecast: Floats, width_mib: int) -> float:
    return float((np.floor(measured / width_mib) == np.floor(forecast / width_mib)).mean())


def _foreseen(judged: Judged, oom: NDArray[np.bool_]) -> dict[str, float]:
    """Share of the OOM-killed runs whose bound would have kept them off that GPU."""
    return {
        f"{risk:g}": float((bound[oom] >= judged.capacity_mib[oom]).mean()) for risk, bound in judged.bounds_mib.items()
    }


def _utilization(judged: Judged, ok: NDArray[np.bool_], source: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for index, target in enumerate(TARGETS):
        known = ok & ~np.isnan(judged.utilization[:, index])
        if known.any():
            measured, predicted = judged.utilization[known, index], judged.predicted_utilization[known, index]
            result[f"{target}_mae"] = float(np.abs(measured - predicted).mean())
            if target == "sm_active":
                cuts = SM_ACTIVE_CUTS.get(source, _DEFAULT_CUTS)
                result["sm_active_class_accuracy"] = float(
                    (np.digitize(measured, cuts) == np.digitize(predicted, cuts)).mean()
                )
    return result


# ---------------------------------------------------------------------- one artifact, as the service runs it


def evaluate(data_dir: Path, artifact_dir: Path, progress: Progress) -> dict[str, Any]:
    """One artifact against measured runs, as JSON. Too optimistic on training data, unlike the manifest's figures."""
    artifact = load_artifact(artifact_dir)
    published = evaluate_runs(data_dir, ModelForecaster(artifact, DEFAULT_RISK), progress)
    timed = evaluate_speed(data_dir, artifact_dir, progress)
    published |= timed | {"slices": published["slices"] + timed["slices"]}
    records = read_records(data_dir, needed=not published["slices"])
    if not records:
        return {"artifact": artifact.version, "rows": 0, **published}
    judged, seconds = judge(records, artifact, progress)
    report = slices(judged)
    for entry in report:
        if "/" not in entry["slice"]:
            rows = judged.source == entry["slice"]
            entry["latency_ms"], entry["cpu_ms"] = _latency(seconds[0, rows]), _latency(seconds[1, rows])
    return {
        "artifact": artifact.version,
        "rows": len(records),
        "latency_ms": _latency(seconds[0]),
        "cpu_ms": _latency(seconds[1]),  # unlike the latency, independent of other load on the machine
        "slices": report + published["slices"],
        "left_out": published["left_out"],
        "speed_left_out": published["speed_left_out"],
    }


def _latency(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(seconds, p)) * 1e3, 3) for p in (50, 95, 99)}


def judge(records: Sequence[Record], artifact: Artifact, progress: Progress) -> tuple[Judged, np.ndarray]:
    """Forecasts every record without caches. Also returns (wall, CPU) seconds, of shape (2, records)."""
    session = ModelSession(artifact)
    forecasts: list[tuple[float, float, float, tuple[float, ...], tuple[float, ...]]] = []
    seconds = np.zeros((2, len(records)))
    for index, record in enumerate(progress.over(records, "forecasts")):
        clear_caches()
        started, busy = time.perf_counter(), time.thread_time()
        forecasts.append(_forecast(record, artifact, session))
        seconds[:, index] = time.perf_counter() - started, time.thread_time() - busy
    prior, median, network = (np.array([row[i] for row in forecasts]) / MIB for i in range(3))
    bounds = np.array([row[3] for row in forecasts]) / MIB
    oom = np.array([record.outcome is RecordOutcome.OOM for record in records])
    judged = Judged(
        measured_mib=np.where(oom, [usable_mib(r) for r in records], [r.measured_mib for r in records]),
        median_mib=median,
        network_mib=network,
        prior_mib=prior,
        bounds_mib={risk: bounds[:, index] for index, risk in enumerate(REPORTED_RISKS)},
        capacity_mib=capacities_mib(np.array([str(record.product) for record in records])),
        censored=oom,
        # A lower limit cannot be compared with a forecast.
        suspect=np.array([r.outcome in (RecordOutcome.SUSPECT, RecordOutcome.FLOOR) for r in records]),
        utilization=np.array([record.utilization for record in records]),
        predicted_utilization=np.array([row[4] for row in forecasts]),
        source=np.array([record.source for record in records]),
        family=np.array([record.family for record in records]),
        product=np.array([str(record.product) for record in records]),
    )
    return judged, seconds


def _forecast(
    record: Record, artifact: Artifact, session: ModelSession
) -> tuple[float, float, float, tuple[float, ...], tuple[float, ...]]:
    features = describe(record.network, record.task, record.product)
    predicted = session.predict(features)
    new = novelty_of(artifact.ranges, features)
    cell = Cell(record.product, record.family, features.regime.name.lower())
    factors = artifact.calibration.factors(cell)
    bounds = tuple(bound(predicted.median_bytes, predicted.spreads, factors, risk, new) for risk in REPORTED_RISKS)
    use = predicted.utilization
    utilization = (use.gpu_util or 0.0, use.sm_active or 0.0, use.sm_occupancy or 0.0)
    return features.prior.total_bytes, predicted.median_bytes, predicted.network_median_bytes, bounds, utilization
