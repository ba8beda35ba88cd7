"""`vramcast evaluate`: an artifact against measured runs, one forecast at a time, as in the service."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vramcast.forecast.conformal import Cell, bound
from vramcast.forecast.features import describe
from vramcast.forecast.model import Artifact, ModelSession, load_artifact, novelty_of
from vramcast.forecast.physics import clear_caches
from vramcast.task.quantity import MIB
from vramcast.train.dataset import usable_mib
from vramcast.train.metrics import REPORTED_RISKS, Judged, capacities_mib, slices
from vramcast.train.progress import Progress
from vramcast.train.records import Record, RecordOutcome, read_records


def evaluate(data_dir: Path, artifact_dir: Path, progress: Progress) -> dict[str, Any]:
    """The report as JSON. On training data it is too optimistic; the manifest's own figures are not."""
    artifact = load_artifact(artifact_dir)
    records = read_records(data_dir)
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
        "slices": report,
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
    utilization = (use.gpu or 0.0, use.sm_active or 0.0, use.sm_occupancy or 0.0)
    return features.prior.total_bytes, predicted.median_bytes, predicted.network_median_bytes, bounds, utilization
