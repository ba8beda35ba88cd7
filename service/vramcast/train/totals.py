"""Trains the model of totals on simulated runs and writes totals.onnx and totals.json: one command, deterministic.

Every figure in its manifest is of architectures that were left out. Measured runs train nothing here: too few networks
were measured to tell more about how networks are built than the catalog does. They are judged, described by a summary
alone, by models that have not seen their architecture either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidInput
from vramcast.forecast import model, totals_features
from vramcast.forecast.catalog import builtin_catalog
from vramcast.forecast.forecast import Factors
from vramcast.forecast.recorded_bounds import UNCALIBRATED
from vramcast.forecast.totals_features import FACTS
from vramcast.forecast.totals_model import FACTORS, FORMAT, MANIFEST, MODEL, MOST_FACTOR, OUTPUTS, TotalsModel
from vramcast.train.progress import Progress
from vramcast.train.simulated import SimulatedJob, simulate
from vramcast.train.simulated_data import LEVELS, Simulated, Tokens, architectures, deal
from vramcast.train.speed_runs import modules_of_timm
from vramcast.train.totals_blend import Blend, Schedules, fit_blend
from vramcast.train.totals_export import check_totals, export_totals
from vramcast.train.totals_kept import Kept
from vramcast.train.totals_margins import accuracy, fit_margins
from vramcast.train.totals_measured import measured_accuracy
from vramcast.train.totals_network import TotalsShape, weight_count
from vramcast.train.totals_rows import kept_rows

RESERVED = OUTPUTS.index("reserved_factors")
FOLDS = 5
# A parity check on so many rows.
_CHECKED = 2000


@dataclass(frozen=True, slots=True)
class Validated:
    """Factors of rows whose architecture was left out, and the model of each fold."""

    fold: NDArray[np.int64]
    factors: NDArray[np.float64]  # (rows, LEVELS, counters, factors)
    models: list[Blend]


def fit_totals(
    data_dir: Path, out: Path, progress: Progress, schedules: Schedules | None = None,
    models: Sequence[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the manifest. `models`: those to simulate, by default every recorded one."""
    schedules = schedules or Schedules()
    runs = simulated_data(out / "work", progress, models)
    data, kept = runs.data, kept_fits(out / "work", runs, schedules, progress)
    validated = cross_validate(runs, schedules, kept, progress)
    missed = missed_by(data, validated.factors[:, :, RESERVED], data.reserved_bytes)
    shipped = fit_blend(data, runs.tokens, schedules, kept, "all")
    exported = export_totals(shipped)
    checked = np.random.default_rng(0).permutation(len(data))[:_CHECKED]
    manifest = _manifest(exported, fit_margins(missed, data, np.ones(len(data), np.bool_))) | {
        "simulated": _counts(runs.jobs, data),
        "network": asdict(shipped.network.shape) | {"weights": weight_count(shipped.network)},
        "split": f"{FOLDS} folds of whole architectures",
        "parity": check_totals(exported, shipped, data.where(checked), runs.tokens),
        "accuracy": accuracy(missed, rules_missed(data), data, validated.fold),
        "measured": _measured(data_dir, out, runs, validated, missed, progress),
    }
    _save(out, exported, manifest)
    return manifest


@dataclass(frozen=True, slots=True)
class SimulatedRuns:
    jobs: list[SimulatedJob]
    data: Simulated
    tokens: Tokens
    groups: dict[str, str]  # the architecture of each network of the catalog


def simulated_data(work: Path, progress: Progress, models: Sequence[str] | None = None) -> SimulatedRuns:
    try:
        modules = modules_of_timm()
    except InvalidInput:
        progress.say("timm is not installed: architectures are told by the names of models alone")
        modules = {}
    jobs = simulate(work / "simulated", progress, models=models)
    groups = architectures([line.name for line in builtin_catalog().lines()], modules)
    data, tokens = kept_rows(work, jobs, groups, progress)
    return SimulatedRuns(jobs, usable(data), tokens, groups)


def kept_fits(work: Path, runs: SimulatedRuns, schedules: Schedules, progress: Progress) -> Kept:
    """Where models of these rows and schedules are. Folds follow from the rows' architectures, so these count too."""
    told = hashlib.sha256(repr((schedules, TotalsShape())).encode())
    for rows in (runs.data, runs.tokens):
        for field in fields(rows):
            told.update(getattr(rows, field.name).tobytes())
    return Kept(work / f"totals-fits-{told.hexdigest()[:12]}", progress)


def _measured(
    data_dir: Path, out: Path, runs: SimulatedRuns, validated: Validated, missed: NDArray[np.float64],
    progress: Progress,
) -> list[dict[str, Any]]:  # fmt: skip
    """Networks of other architectures than the catalog's are in nobody's training data, so any fold's model will do."""
    data, groups = runs.data, runs.groups
    fold_of = dict(zip(data.group.tolist(), validated.fold.tolist(), strict=True))
    models = []
    for number, blend in enumerate(validated.models):
        directory = out / "work" / f"totals-{number}"
        exported = export_totals(blend)
        _save(directory, exported, _manifest(exported, fit_margins(missed, data, validated.fold != number)))
        models.append(TotalsModel(directory))
    manifest = out / model.MANIFEST
    calibration = model.load_artifact(out).recorded if manifest.exists() else UNCALIBRATED
    return measured_accuracy(
        data_dir, lambda network: models[fold_of.get(groups.get(network, ""), 0)], calibration, progress
    )


def usable(data: Simulated) -> Simulated:
    """Without the few that hold nothing, which no share can tell."""
    there = data.units > 0
    filled = np.where(there, np.minimum(data.active_bytes, data.rules_bytes), 1.0) > 0
    return data.where(there.any(1) & filled.all(1) & (data.held_bytes > 1.0))


def cross_validate(runs: SimulatedRuns, schedules: Schedules, kept: Kept, progress: Progress) -> Validated:
    """Whole architectures are left out in turn."""
    data, fold = runs.data, deal(runs.data.group, FOLDS)
    factors = np.zeros((len(data), len(LEVELS), len(OUTPUTS), FACTORS))
    models = []
    for number in progress.over(range(FOLDS), "architectures left out"):
        held = fold == number
        models.append(fit_blend(data.where(~held), runs.tokens, schedules, kept, str(number)))
        factors[held] = models[-1].factors(data.where(held), runs.tokens)
    return Validated(fold, factors, models)


def missed_by(data: Simulated, factors: NDArray[np.float64], counter_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, LEVELS, batches): log(recorded / forecast), NaN where there is no batch."""
    floor, start, slope = np.moveaxis(np.exp(np.clip(factors, -MOST_FACTOR, MOST_FACTOR)), 2, 0)[..., None]
    held = data.held_bytes[:, None, None]
    line = start * held + slope * data.unit_bytes[:, :, None] * data.units[:, None]
    there = np.broadcast_to((data.units > 0)[:, None], line.shape)
    missed = np.log(np.maximum(counter_bytes, 1.0))[:, None] - np.log(np.maximum(floor * held, line))
    return np.where(there, missed, np.nan)


def rules_missed(data: Simulated) -> NDArray[np.float64]:
    """(rows, batches)."""
    there = data.units > 0
    missed = np.log(np.where(there, data.reserved_bytes, 1.0)) - np.log(np.where(there, data.rules_bytes, 1.0))
    return np.where(there, missed, np.nan)


def _manifest(exported: bytes, cells: Mapping[str, Factors]) -> dict[str, Any]:
    """What the service reads of it."""
    digest = hashlib.sha256(exported).hexdigest()
    return {
        "format": FORMAT,
        "version": f"totals-{digest[:8]}",
        "sha256": digest,
        "features": totals_features.VERSION,
        "facts": len(FACTS),
        "cells": {name: _cell(found) for name, found in sorted(cells.items())},
    }


def _save(directory: Path, exported: bytes, manifest: Mapping[str, Any]) -> None:
    """Not before everything was checked: it may replace what a service loads."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MODEL).write_bytes(exported)
    (directory / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def _counts(jobs: Sequence[SimulatedJob], data: Simulated) -> dict[str, int]:
    return {
        "networks": len({job.model for job in jobs}),
        "recordings": len({(job.model, job.variant) for job in jobs}),
        "jobs": len(jobs),
        "runs": int((data.units > 0).sum()),
        "architectures": len(set(data.group.tolist())),
    }


def _cell(found: Factors) -> dict[str, Any]:
    return {"architectures": found.scores,
            "margins": {f"{risk:g}": round(margin, 4) for risk, margin in found.by_risk.items()}}  # fmt: skip
