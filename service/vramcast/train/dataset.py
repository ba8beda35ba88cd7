"""Records as arrays, and their groups split into folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.features import Features, describe
from vramcast.hardware.products import PRODUCTS
from vramcast.task.quantity import MIB
from vramcast.train.progress import Progress
from vramcast.train.records import Record, RecordOutcome

Floats = NDArray[np.float32]

# A run killed by OOM needed at least this share of the GPU's memory; the driver keeps the rest.
_USABLE_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class Dataset:
    """One row per run, described twice: by its layers and by its summary."""

    facts: Floats  # (rows, facts)
    tokens: Floats  # (rows, tokens, width)
    kinds: NDArray[np.int64]  # (rows, tokens)
    regime: NDArray[np.int64]
    prior_mib: NDArray[np.float64]
    summary_facts: Floats  # (rows, facts)
    summary_prior_mib: NDArray[np.float64]
    measured_mib: NDArray[np.float64]  # a lower limit if censored
    censored: NDArray[np.bool_]
    suspect: NDArray[np.bool_]
    utilization: Floats  # (rows, targets), NaN if not recorded
    source: NDArray[np.str_]
    group: NDArray[np.str_]
    family: NDArray[np.str_]
    product: NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.prior_mib)

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Dataset:
        return Dataset(*(getattr(self, field.name)[rows] for field in fields(self)))

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Rows with a trustworthy, exact measurement."""
        return np.asarray(~self.suspect & ~self.censored)

    @property
    def target(self) -> Floats:
        return np.log(self.measured_mib / self.prior_mib).astype(np.float32)

    @property
    def summary_target(self) -> Floats:
        return np.log(self.measured_mib / self.summary_prior_mib).astype(np.float32)


def build(records: Sequence[Record], progress: Progress) -> Dataset:
    described: list[Features] = []
    summarized: list[Features] = []
    for record in progress.over(records, "features"):
        described.append(describe(record.network, record.task, record.product))
        summarized.append(describe(None, record.task, record.product))
    oom = np.array([record.outcome is RecordOutcome.OOM for record in records])
    censored = oom | np.array([record.outcome is RecordOutcome.FLOOR for record in records])
    return Dataset(
        facts=np.stack([features.facts for features in described]),
        tokens=np.stack([features.tokens for features in described]),
        kinds=np.stack([features.kinds for features in described]),
        regime=np.array([int(features.regime) for features in described]),
        prior_mib=np.array([features.prior.total_bytes / MIB for features in described]),
        summary_facts=np.stack([features.facts for features in summarized]),
        summary_prior_mib=np.array([features.prior.total_bytes / MIB for features in summarized]),
        measured_mib=np.where(oom, [usable_mib(r) for r in records], [r.measured_mib for r in records]),
        censored=censored,
        suspect=np.array([record.outcome is RecordOutcome.SUSPECT for record in records]),
        utilization=np.array([record.utilization for record in records], dtype=np.float32),
        source=np.array([record.source for record in records]),
        group=np.array([f"{record.source}/{record.group}" for record in records]),
        family=np.array([record.family for record in records]),
        product=np.array([str(record.product) for record in records]),
    )


def usable_mib(record: Record) -> float:
    spec = PRODUCTS.get(record.product)
    return _USABLE_SHARE * spec.memory_mib if spec else record.measured_mib


def assign_folds(data: Dataset, folds: int, seed: int) -> NDArray[np.int64]:
    """Assigns whole groups to folds, separately per source, largest groups first so that folds have similar sizes."""
    folded = np.zeros(len(data), dtype=np.int64)
    for source in sorted(set(data.source)):
        rows = np.flatnonzero(data.source == source)
        groups, counts = np.unique(data.group[rows], return_counts=True)
        order = np.random.default_rng(seed).permutation(len(groups))
        order = order[np.argsort(-counts[order], kind="stable")]
        load = np.zeros(folds, dtype=np.int64)
        fold_of: dict[str, int] = {}
        for index in order:
            fold = int(np.argmin(load))
            fold_of[str(groups[index])] = fold
            load[fold] += counts[index]
        folded[rows] = [fold_of[str(group)] for group in data.group[rows]]
    return folded
