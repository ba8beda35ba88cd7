"""`vramcast evaluate`: an artifact against measured runs, one forecast at a time, as the service makes them."""

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
from vramcast.train.dataset import usable_mib
from vramcast.train.metrics import REPORTED_RISKS, Judged, capacities_mib, slices
from vramcast.train.progress import Progress
from vramcast.train.records import Outcome, Record, read_records

_MIB = float(1 << 20)


def evaluate(data_dir: Path, artifact_dir: Path, progress: Progress) -> dict[str, Any]:
    """The report as JSON; on the training data it flatters, which the manifest's own figures do not."""
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
        "cpu_ms": _latency(seconds[1]),  # a busy machine stretches the one above, not this
        "slices": report,
    }


def _latency(seconds: np.ndarray) -> dict[str, float]:
    return {f"p{p}": round(float(np.percentile(seconds, p)) * 1e3, 3) for p in (50, 95, 99)}


def judge(records: Sequence[Record], artifact: Artifact, progress: Progress) -> tuple[Judged, np.ndarray]:
    """Every record forecast on its own: features, model and bounds, nothing remembered. Seconds: passed, of CPU."""
    session = ModelSession(artifact)
    said: list[tuple[float, float, float, tuple[float, ...], tuple[float, ...]]] = []
    seconds = np.zeros((2, len(records)))
    for index, record in enumerate(progress.over(records, "forecasts")):
        clear_caches()
        started, busy = time.perf_counter(), time.thread_time()
        said.append(_forecast(record, artifact, session))
        seconds[:, index] = time.perf_counter() - started, time.thread_time() - busy
    prior, median, network = (np.array([row[i] for row in said]) / _MIB for i in range(3))
    bounds = np.array([row[3] for row in said]) / _MIB
    censored = np.array([record.outcome is Outcome.OOM for record in records])
    judged = Judged(
        measured_mib=np.array([
            usable_mib(record) if record.outcome is Outcome.OOM else record.measured_mib for record in records
        ]),
        median_mib=median,
        network_mib=network,
        prior_mib=prior,
        bounds_mib={risk: bounds[:, index] for index, risk in enumerate(REPORTED_RISKS)},
        capacity_mib=capacities_mib(np.array([str(record.product) for record in records])),
        censored=censored,
        # A floor is no figure to compare with.
        suspect=np.array([record.outcome in (Outcome.SUSPECT, Outcome.FLOOR) for record in records]),
        utilization=np.array([record.utilization for record in records]),
        said_utilization=np.array([row[4] for row in said]),
        source=np.array([record.source for record in records]),
        family=np.array([record.family for record in records]),
        product=np.array([str(record.product) for record in records]),
    )  # fmt: skip
    return judged, seconds


def _forecast(
    record: Record, artifact: Artifact, session: ModelSession
) -> tuple[float, float, float, tuple[float, ...], tuple[float, ...]]:
    features = describe(record.network, record.task, record.product)
    said = session.predict(features)
    new = novelty_of(artifact.ranges, features)
    cell = Cell(record.product, record.family, features.regime.name.lower())
    factors = artifact.calibration.factors(cell)
    bounds = tuple(bound(said.median_bytes, said.spreads, factors, risk, new) for risk in REPORTED_RISKS)
    use = said.utilization
    utilization = (use.gpu or 0.0, use.sm_active or 0.0, use.sm_occupancy or 0.0)
    return features.prior.total_bytes, said.median_bytes, said.network_median_bytes, bounds, utilization
