"""Measured runs told by a summary: what simulated runs teach about them, and what measured ones add.

Each architecture is left out with its fold, of the simulated runs and of the measured ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.counters import Counter
from vramcast.forecast.forecast import Part
from vramcast.forecast.physics import context_part, summary_prior
from vramcast.forecast.totals_features import describe_totals
from vramcast.forecast.totals_model import as_told, cells_of, told_of
from vramcast.task.quantity import GIB
from vramcast.train.runs.reader import MeasuredRun, RunEnding, read_runs
from vramcast.train.simulated_data import LEVELS, MOST_POINTS, Simulated
from vramcast.train.totals_measured import told_by_summary

COUNTERS = (Counter.ALLOCATED, Counter.RESERVED)


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """A run is a row with one batch. Its facts are the same at every level: it was told in one way."""

    runs: list[MeasuredRun]
    data: Simulated  # a counter that nobody read is NaN; `group` is the architecture
    figure: NDArray[np.int64]  # of COUNTERS, what the source's own figure is compared with
    trains: NDArray[np.bool_]  # its licence allows it

    def __len__(self) -> int:
        return len(self.runs)


def measured_rows(data_dir: Path, groups: Mapping[str, str]) -> MeasuredRows:
    """Of kinds of run that were simulated, with a figure."""
    runs = [run for run in told_by_summary(read_runs(data_dir).runs) if run.ending is RunEnding.MEASURED]
    runs = [run for run in runs if any(True for _ in cells_of(run.task, told_of(run.task, None)))]
    contexts = [_context_bytes(run) for run in runs]
    read = [_counted(run, context) for run, context in zip(runs, contexts, strict=True)]
    figure = [0 if run.primary is Counter.ALLOCATED else 1 for run in runs]
    kept = [at for at, counted in enumerate(read) if counted[figure[at]] > 0]
    rows = [_row(runs[at]) for at in kept]
    counted = np.array([read[at] for at in kept])

    def first(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.column_stack([values, *[np.zeros(len(values))] * (MOST_POINTS - 1)])

    networks = [runs[at].network for at in kept]
    of_network = {name: number + 1 for number, name in enumerate(sorted(set(networks)))}
    data = Simulated(
        facts=np.stack([np.stack([row[0]] * len(LEVELS)) for row in rows]),
        cells=np.full((len(kept), len(LEVELS), 1), ""),
        network=np.array([of_network[name] for name in networks]),
        held_bytes=np.array([row[1] for row in rows]),
        unit_bytes=np.array([[row[2]] * len(LEVELS) for row in rows]),
        units=first(np.array([row[3] for row in rows])),
        active_bytes=first(counted[:, 0]),
        reserved_bytes=first(counted[:, 1]),
        rules_bytes=first(np.array([row[4] for row in rows])),
        group=np.array([groups.get(name, name) for name in networks]),
        unfamiliar=np.ones(len(kept), np.bool_),
    )
    trains = np.array([not runs[at].evaluate_only for at in kept])
    return MeasuredRows([runs[at] for at in kept], data, np.array(figure)[kept], trains)


def _row(run: MeasuredRun) -> tuple[NDArray[np.float32], float, float, float, float]:
    """Facts; what the rules say is held, that a unit adds, the units; and all of it, without a context."""
    task = run.task
    found = describe_totals(as_told(task, told_of(task, None)), None)
    totals = describe_totals(task, None).totals
    prior = summary_prior(task, run.product)
    return found.facts, totals.held_bytes, totals.unit_bytes, totals.units, _without_context(prior.parts)


def _without_context(parts: Sequence[Part]) -> float:
    return float(sum(part.size_bytes for part in parts[:-1]))


def _counted(run: MeasuredRun, context_bytes: int) -> tuple[float, float]:
    """Tensors, and what was reserved for them: by torch, or by nvidia-smi less the context."""
    found = {counter: run.gib[counter] * GIB for counter in run.gib}
    reserved = found.get(Counter.RESERVED, np.nan)
    if run.primary is Counter.DEVICE or np.isnan(reserved):
        reserved = found.get(Counter.DEVICE, np.nan) - context_bytes
    return found.get(Counter.ALLOCATED, np.nan), reserved


def _context_bytes(run: MeasuredRun) -> int:
    task = run.task
    communicates = task.data_parallel_size > 1
    return context_part(
        run.product, cudnn=task.architecture != "mlp", norms=False, communicates=communicates, framework=task.framework
    ).size_bytes


def counted_alone(data: Simulated, counter: int) -> tuple[Simulated, NDArray[np.bool_]]:
    """The rows that have this counter."""
    known = ~np.isnan((data.active_bytes, data.reserved_bytes)[counter][:, 0])
    return data.where(known), known


def without_layers(data: Simulated) -> Simulated:
    """For a network, which tells by the level whether to read layers."""
    return replace(data, facts=np.concatenate([np.zeros_like(data.facts[:, :1]), data.facts[:, 1:]], axis=1))
