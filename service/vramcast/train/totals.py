"""Trains the model of totals on simulated runs and writes totals.onnx and totals.json: one command, deterministic.

Every figure in its manifest is of architectures that were left out. Measured runs train nothing here: too few networks
were measured to tell more about how networks are built than the catalog does. They are judged, described by a summary
alone, by models that have not seen their architecture either.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from vramcast.forecast.totals_model import FORMAT, MANIFEST, MODEL, MOST_FACTOR, OUTPUTS, TotalsModel
from vramcast.train.progress import Progress
from vramcast.train.simulated import SimulatedJob, simulate
from vramcast.train.simulated_data import LEVELS, Floats, Simulated, Tokens, architectures, build, deal
from vramcast.train.speed_runs import modules_of_timm
from vramcast.train.totals_export import check_totals, export_totals
from vramcast.train.totals_margins import accuracy, fit_margins
from vramcast.train.totals_measured import measured_accuracy
from vramcast.train.totals_trees import FactorTrees, TreeSchedule, fit_trees, mean_factors

FOLDS = 5
# More of them vary less, and take as much longer.
_BAGS = 1
# A parity check on so many rows.
_CHECKED = 2000

Bags = dict[str, list[FactorTrees]]


@dataclass(frozen=True, slots=True)
class Validated:
    """Factors of rows whose architecture was left out, and the model of each fold."""

    fold: NDArray[np.int64]
    factors: dict[str, NDArray[np.float64]]  # by output: (rows, LEVELS, factors)
    models: list[Bags]


def fit_totals(
    data_dir: Path, out: Path, progress: Progress, schedule: TreeSchedule | None = None,
    models: Sequence[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the manifest. `models`: those to simulate, by default every recorded one."""
    schedule = schedule or TreeSchedule()
    jobs, data, _, groups = simulated_data(out / "work", progress, models)
    validated = cross_validate(data, schedule, progress)
    missed = missed_by(data, validated.factors[OUTPUTS[1]], data.reserved_bytes)
    shipped = fit_bags(data, schedule)
    manifest = _save(out, shipped, fit_margins(missed, data, np.ones(len(data), np.bool_)))
    manifest |= {
        "simulated": _counts(jobs, data),
        "split": f"{FOLDS} folds of whole architectures",
        "parity": check_totals((out / MODEL).read_bytes(), shipped, _some_facts(data)),
        "accuracy": accuracy(missed, rules_missed(data), data, validated.fold),
        "measured": _measured(data_dir, out, data, validated, missed, groups, progress),
    }
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest


def simulated_data(
    work: Path, progress: Progress, models: Sequence[str] | None = None
) -> tuple[list[SimulatedJob], Simulated, Tokens, dict[str, str]]:
    """The jobs, their runs as arrays, their networks' layers, and the architecture of each network of the catalog."""
    try:
        modules = modules_of_timm()
    except InvalidInput:
        progress.say("timm is not installed: architectures are told by the names of models alone")
        modules = {}
    jobs = simulate(work / "simulated", progress, models=models)
    groups = architectures([line.name for line in builtin_catalog().lines()], modules)
    data, tokens = build(jobs, groups, progress)
    return jobs, usable(data), tokens, groups


def _measured(
    data_dir: Path, out: Path, data: Simulated, validated: Validated, missed: NDArray[np.float64],
    groups: Mapping[str, str], progress: Progress,
) -> list[dict[str, Any]]:  # fmt: skip
    """Networks of other architectures than the catalog's are in nobody's training data, so any fold's model will do."""
    fold_of = dict(zip(data.group.tolist(), validated.fold.tolist(), strict=True))
    models = []
    for number, bags in enumerate(validated.models):
        directory = out / "work" / f"totals-{number}"
        _save(directory, bags, fit_margins(missed, data, validated.fold != number))
        models.append(TotalsModel(directory))
    manifest = out / model.MANIFEST
    calibration = model.load_artifact(out).recorded if manifest.exists() else UNCALIBRATED
    return measured_accuracy(
        data_dir, lambda network: models[fold_of.get(groups.get(network, ""), 0)], calibration, progress
    )


def _some_facts(data: Simulated) -> Floats:
    return np.asarray(data.facts[:_CHECKED].reshape(-1, len(FACTS)), np.float32)


def usable(data: Simulated) -> Simulated:
    """Without the few that hold nothing, which no share can tell."""
    there = data.units > 0
    filled = np.where(there, np.minimum(data.active_bytes, data.rules_bytes), 1.0) > 0
    return data.where(there.any(1) & filled.all(1) & (data.held_bytes > 1.0))


def weights(group: NDArray[np.str_]) -> Floats:
    """An architecture counts by the root of its runs: large families must not drown the others."""
    _, index, counts = np.unique(group, return_inverse=True, return_counts=True)
    weight = 1.0 / np.sqrt(counts[index])
    return np.asarray(weight / weight.mean(), np.float32)


def fit_bags(data: Simulated, schedule: TreeSchedule) -> Bags:
    weight, counters = weights(data.group), (data.active_bytes, data.reserved_bytes)
    return {
        name: [fit_trees(data, counter, weight, schedule, seed) for seed in range(_BAGS)]
        for name, counter in zip(OUTPUTS, counters, strict=True)
    }


def cross_validate(data: Simulated, schedule: TreeSchedule, progress: Progress) -> Validated:
    """Whole architectures are left out in turn."""
    fold = deal(data.group, FOLDS)
    factors = {name: np.zeros((len(data), len(LEVELS), 3)) for name in OUTPUTS}
    models = []
    for number in progress.over(range(FOLDS), "architectures left out"):
        bags = fit_bags(data.where(fold != number), schedule)
        models.append(bags)
        held = fold == number
        for name, bag in bags.items():
            for level in range(len(LEVELS)):
                factors[name][held, level] = mean_factors(bag, data.facts[held, level])
    return Validated(fold, factors, models)


def missed_by(data: Simulated, factors: NDArray[np.float64], counter_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, LEVELS, batches): log(recorded / forecast), NaN where there is no batch."""
    floor, start, slope = np.moveaxis(np.exp(np.clip(factors, -MOST_FACTOR, MOST_FACTOR)), 2, 0)[..., None]
    held = data.held_bytes[:, None, None]
    line = start * held + slope * (data.unit_bytes[:, None] * data.units)[:, None]
    there = np.broadcast_to((data.units > 0)[:, None], line.shape)
    missed = np.log(np.maximum(counter_bytes, 1.0))[:, None] - np.log(np.maximum(floor * held, line))
    return np.where(there, missed, np.nan)


def rules_missed(data: Simulated) -> NDArray[np.float64]:
    """(rows, batches)."""
    there = data.units > 0
    missed = np.log(np.where(there, data.reserved_bytes, 1.0)) - np.log(np.where(there, data.rules_bytes, 1.0))
    return np.where(there, missed, np.nan)


def _save(directory: Path, bags: Bags, cells: Mapping[str, Factors]) -> dict[str, Any]:
    """As the service loads it; returns the manifest."""
    exported = export_totals(bags)
    digest = hashlib.sha256(exported).hexdigest()
    manifest = {
        "format": FORMAT,
        "version": f"totals-{digest[:8]}",
        "sha256": digest,
        "features": totals_features.VERSION,
        "facts": len(FACTS),
        "cells": {name: _cell(found) for name, found in sorted(cells.items())},
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MODEL).write_bytes(exported)
    (directory / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
    return manifest


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
