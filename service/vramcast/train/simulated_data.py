"""Simulated runs as arrays, and whole architectures split into folds."""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from vramcast.errors import InvalidTask
from vramcast.forecast.catalog import Line, builtin_catalog
from vramcast.forecast.features import unfamiliar_settings
from vramcast.forecast.physics import summary_prior
from vramcast.forecast.summary import summarized
from vramcast.forecast.totals_features import TotalsFeatures, describe_totals
from vramcast.forecast.totals_model import Told, as_told, cells_of
from vramcast.names import Product
from vramcast.train.progress import Progress
from vramcast.train.simulated import Point, SimulatedJob, at_point, job_task

Floats = NDArray[np.float32]
MOST_POINTS = 4
LEVELS = tuple(Told)
_PRODUCT = Product("NVIDIA-A100-SXM4-80GB")
# Names that are made of a family's name and something before it.
_SAME = {
    "codellama": "llama", "tinyllama": "llama", "microllama": "llama", "open": "llama", "codestral": "mistral",
    "ministral": "mistral", "mixtral": "mistral", "flan": "t", "starcoderbase": "starcoder",
}  # fmt: skip
_WORD = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Simulated:
    """One row per job and size, with up to four batches each."""

    facts: Floats  # (rows, LEVELS, facts)
    cells: NDArray[np.str_]  # (rows, LEVELS, cells), the narrowest first
    network: NDArray[np.int64]  # (rows,) in `tokens`
    held_bytes: NDArray[np.float64]  # (rows,) by the rules
    unit_bytes: NDArray[np.float64]  # (rows, LEVELS)
    units: NDArray[np.float64]  # (rows, batches), 0 where there is none
    active_bytes: NDArray[np.float64]  # (rows, batches)
    reserved_bytes: NDArray[np.float64]
    rules_bytes: NDArray[np.float64]  # what the rules say, without a context
    group: NDArray[np.str_]
    unfamiliar: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.facts)

    def where(self, rows: NDArray[np.bool_] | NDArray[np.int64]) -> Simulated:
        return Simulated(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of every network; the first has none."""

    tokens: Floats  # (networks, TOKENS, TOKEN_WIDTH)
    kinds: NDArray[np.int64]  # (networks, TOKENS)


def build(jobs: Sequence[SimulatedJob], groups: Mapping[str, str], progress: Progress) -> tuple[Simulated, Tokens]:
    rows: list[_Row] = []
    seen: dict[tuple[str, int], int] = {}
    shown: list[TotalsFeatures] = []
    for job in progress.over(jobs, "totals of simulated runs"):
        line = builtin_catalog().line(job.model)
        if line is None:
            continue
        for size in sorted({(point.length, point.side) for point in job.points}):
            row = _row(job, line, size, [p for p in job.points if (p.length, p.side) == size], groups)
            if row is None:
                continue
            key = (job.model, size[1])
            if key not in seen:
                shown.append(row.features)
                seen[key] = len(shown)
            rows.append(replace(row, network=seen[key]))
    return _stacked(rows), _tokens(shown)


@dataclass(frozen=True, slots=True)
class _Row:
    features: TotalsFeatures
    facts: Floats
    unit_bytes: list[float]  # by level
    cells: list[list[str]]
    network: int
    points: Sequence[Point]
    rules_bytes: list[float]
    group: str
    unfamiliar: bool


def _row(
    job: SimulatedJob, line: Line, size: tuple[int, int], points: Sequence[Point], groups: Mapping[str, str]
) -> _Row | None:
    task = at_point(line, job_task(job.model, job.settings), 1, *size)
    try:
        network = builtin_catalog().describe(job.model, task.input_size, task.sequence_length).network
    except InvalidTask:
        return None
    run = summarized(task, network)
    cells = [list(cells_of(run, told)) for told in LEVELS]
    if not all(cells):
        return None  # of a kind that is left to the rules
    unsized = replace(run, sequence_length=None)
    shown = {Told.LAYERS: (run, network), Told.SUMMARY: (run, None), Told.UNSIZED: (unsized, None),
             Told.TERSE: (as_told(run, Told.TERSE), None)}  # fmt: skip
    described = {told: describe_totals(*shown[told]) for told in LEVELS}
    facts = np.stack([described[told].facts for told in LEVELS])
    # What a task does not tell is not known when it is forecast, but its length is.
    unit_bytes = [described[Told.LAYERS if told is Told.LAYERS else Told.SUMMARY].totals.unit_bytes for told in LEVELS]
    priors = [summary_prior(replace(run, batch_size=point.batch), _PRODUCT) for point in points]
    rules = [prior.total_bytes - prior.parts[-1].size_bytes for prior in priors]
    unfamiliar = bool(unfamiliar_settings(run))
    return _Row(described[Told.LAYERS], facts, unit_bytes, cells, 0, points, rules, groups[job.model], unfamiliar)


def _stacked(rows: Sequence[_Row]) -> Simulated:
    def padded(values: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        return np.array([[*found, *[0.0] * (MOST_POINTS - len(found))] for found in values])

    per_batch = [row.features.totals.units for row in rows]
    return Simulated(
        facts=np.stack([row.facts for row in rows]),
        cells=np.array([row.cells for row in rows]),
        network=np.array([row.network for row in rows]),
        held_bytes=np.array([row.features.totals.held_bytes for row in rows]),
        unit_bytes=np.array([row.unit_bytes for row in rows]),
        units=padded([[each * p.batch for p in row.points] for each, row in zip(per_batch, rows, strict=True)]),
        active_bytes=padded([[float(point.active_bytes) for point in row.points] for row in rows]),
        reserved_bytes=padded([[float(point.reserved_bytes) for point in row.points] for row in rows]),
        rules_bytes=padded([row.rules_bytes for row in rows]),
        group=np.array([row.group for row in rows]),
        unfamiliar=np.array([row.unfamiliar for row in rows]),
    )


def _tokens(shown: Sequence[TotalsFeatures]) -> Tokens:
    first = shown[0]
    return Tokens(
        np.stack([np.zeros_like(first.tokens), *(row.tokens for row in shown)]),
        np.stack([np.zeros_like(first.kinds), *(row.kinds for row in shown)]),
    )


def architectures(models: Sequence[str], modules: Mapping[str, str]) -> dict[str, str]:
    """The group of each model, which is never on both sides of a split.

    `modules` are timm's, by the bare name of a model. The name of any other model begins with its architecture; one
    that timm has too belongs to timm's.
    """
    counted: dict[str, Tally[str]] = defaultdict(Tally)
    for name, module in sorted(modules.items()):
        counted[_word(name)][module] += 1
    by_word = {word: tally.most_common(1)[0][0] for word, tally in counted.items()}
    return {model: _architecture(model.partition("/")[2].lower(), modules, by_word) for model in models}


def _architecture(bare: str, modules: Mapping[str, str], by_word: Mapping[str, str]) -> str:
    word = _word(bare)
    return modules.get(bare) or by_word.get(word) or word


def _word(bare: str) -> str:
    found = _WORD.match(bare)
    word = found[0] if found else bare
    return _SAME.get(word, word)


def deal(group: NDArray[np.str_], folds: int) -> NDArray[np.int64]:
    """Whole groups to folds, the largest first."""
    names, counts = np.unique(group, return_counts=True)
    load, fold_of = np.zeros(folds, np.int64), {}
    for index in np.argsort(-counts, kind="stable"):
        fold = int(np.argmin(load))
        fold_of[str(names[index])] = fold
        load[fold] += counts[index]
    return np.array([fold_of[str(name)] for name in group])
