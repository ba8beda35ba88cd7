"""Timed runs as arrays, and how they are dealt to folds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.speed_features import describe_speed, with_shares
from vramcast.forecast.step_parts import weighted_seconds
from vramcast.hardware.peaks import PEAKS
from vramcast.train.progress import Progress
from vramcast.train.speed_network import SpeedArrays
from vramcast.train.speed_runs import SpeedRuns
from vramcast.train.speed_weights import fit_weights, weights_by_row

Floats = NDArray[np.float64]
FOLDS = 5
# There are several times as many rows of inference, and people train.
_TRAINING_WEIGHT = 3.0
# Products with fewer rows share a fold.
FEW_ROWS = 100


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
    many = np.bincount(folds) >= FEW_ROWS
    return np.where(many[folds], folds, -1) if many.any() else folds
