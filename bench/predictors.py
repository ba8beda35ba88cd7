"""Compares every baseline with the shipped model on the same rows and folds, and writes one page.

    python -m bench.predictors --data DIR --out docs/predictors.md

Predictions are cached under `--work` (by default the directory of `vramcast train`) until the features change, and so
are networks. From scratch it takes about two hours on one core, mostly for networks. With
`--skip "GPU|Transformer|BiGRU|papers"` it takes six minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from bench.contenders import (
    FROM_SUMMARY,
    SOURCES,
    SUMMARY_TABLE,
    Contender,
    Floats,
    bin_mib,
    of_memory,
    of_sm_active,
    shipped,
    sm_active_classes,
)
from bench.paired import Difference, compare

from bench import gpumemnet
from vramcast.train.crossval import load_dataset
from vramcast.train.dataset import Dataset
from vramcast.train.evaluation import SM_ACTIVE_CUTS, capacities_mib
from vramcast.train.progress import Progress
from vramcast.train.records import read_records

_SHIPPED = "**what ships**"
_SHIPPED_SUMMARY = "**what ships, told by a summary**"
_PUBLISHED_CLASSES = {"gpumemnet-cnn": 0.77, "gpumemnet-mlp": 0.92}
# Smaller differences, below 0.005 percentage points, do not count.
_SAME = 5e-5
# With fewer groups an interval is meaningless.
_LEAST_GROUPS = 5


@dataclass(frozen=True, slots=True)
class Row:
    """One predictor on one source."""

    predictor: str
    source: str
    median: float
    mean: float
    bins: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("model_artifacts/work"))
    parser.add_argument(
        "--artifact",
        type=Path,
        default=Path("model_artifacts"),
        help="its manifest provides the first rows of the table",
    )
    parser.add_argument(
        "--skip",
        metavar="PATTERN",
        help="do not run these (a name, or `name, source`); cached predictions are still shown",
    )
    chosen = parser.parse_args()
    progress = Progress()
    records = read_records(chosen.data)
    data = load_dataset(records, chosen.work, progress)
    bench = Bench(chosen.work / f"predictors-{hashlib.sha256(data.facts.tobytes()).hexdigest()[:12]}", progress)
    manifest = json.loads((chosen.artifact / "manifest.json").read_text(encoding="utf-8"))

    both = Contender(f"{_SHIPPED} {manifest['version']}", lambda: np.stack(shipped(data, chosen.artifact)))
    ours, ours_by_summary = bench.predictions(both)
    rows = list(_manifest_rows(manifest))
    _check_same([*_judge(_SHIPPED, data, ours), *_judge(_SHIPPED_SUMMARY, data, ours_by_summary)], rows)
    inputs = gpumemnet.read_inputs(records)
    others = bench.run(of_memory(records, data, inputs, chosen.work, progress), chosen.skip)
    rows += [row for name, predicted in others.items() for row in _judge(name, data, predicted)]

    classes = {(_SHIPPED, source): share for source, share in _manifest_classes(manifest)}
    for name, predicted in bench.run(list(of_sm_active(data, inputs)), chosen.skip).items():
        classes |= {(name, source): share for source, share in _right(data, predicted)}
    classes |= {("GPUUtilNet (published)", source): share for source, share in _PUBLISHED_CLASSES.items()}
    told = {name: predicted for name, predicted in others.items() if name.endswith((FROM_SUMMARY, SUMMARY_TABLE))}
    ahead = list(_ahead(data, ours, others)), list(_ahead(data, ours_by_summary, told))
    chosen.out.write_text(_markdown(rows, classes, *ahead, bench.left_out), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs contenders and caches their predictions."""

    kept: Path
    progress: Progress
    left_out: list[str] = field(default_factory=list)

    def run(self, contenders: Sequence[Contender], skip: str | None) -> dict[str, Floats]:
        """Predictions by name, with those per source combined."""
        found: dict[str, Floats] = {}
        for one in self.progress.over(contenders, "predictors"):
            if self._path(one).exists() or not (skip and re.search(skip, f"{one.name}, {one.source}")):
                predicted = self.predictions(one)
                before = found.get(one.name, np.full(len(predicted), np.nan))
                found[one.name] = np.where(np.isnan(predicted), before, predicted)
            elif one.name not in self.left_out:
                self.left_out.append(one.name)
        return found

    def predictions(self, one: Contender) -> Floats:
        path = self._path(one)
        if not path.exists():
            started = time.perf_counter()
            predicted = one.predict()
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, predicted)
            self.progress.say(f"{one.name} {one.source}: {time.perf_counter() - started:.0f} s")
        return np.asarray(np.load(path), np.float64)

    def _path(self, one: Contender) -> Path:
        return self.kept / (re.sub(r"[^a-z0-9]+", "-", f"{one.name} {one.source}".lower()).strip("-") + ".npy")


def _manifest_rows(manifest: Mapping[str, Any]) -> Iterator[Row]:
    """The manifest's figures are for unseen groups, on the same folds."""
    levels = ((_SHIPPED, "accuracy"), (_SHIPPED_SUMMARY, "summary_accuracy"))
    for name, key in levels:
        for entry in manifest["first_dealing"][key]:
            source = str(entry["slice"])
            if source in SOURCES:
                bins = entry[f"bin_accuracy_{bin_mib(source) // 1024}gb"]
                yield Row(name, source, entry["median_error"], entry["mean_error"], bins)
                if key == "accuracy":
                    yield Row("**network alone**", source, entry["network_median_error"], math.nan, math.nan)


def _manifest_classes(manifest: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for entry in manifest["accuracy"]:
        if entry["slice"] in SM_ACTIVE_CUTS:
            yield str(entry["slice"]), entry["sm_active_class_accuracy"]


def _check_same(made: list[Row], stated: list[Row]) -> None:
    """Makes sure that the cached networks and trees are the artifact's."""
    means = {(row.predictor, row.source): row.mean for row in stated}
    for row in made:
        expected = means[row.predictor, row.source]
        if abs(row.mean - expected) > _SAME:
            raise SystemExit(
                f"{row.predictor}, {row.source}: the mean error is {row.mean:.4%} here and {expected:.4%} in the "
                "manifest; --data and --artifact must be of the same `vramcast train`"
            )


def _errors(data: Dataset, predicted_mib: Floats, source: str) -> tuple[Floats, np.ndarray]:
    """The errors of the rows that have a prediction, and which rows those are."""
    capped = np.minimum(predicted_mib, capacities_mib(data.product))
    known = (data.source == source) & data.usable & ~np.isnan(capped)
    return np.abs(capped[known] - data.measured_mib[known]) / data.measured_mib[known], known


def _judge(name: str, data: Dataset, predicted_mib: Floats) -> list[Row]:
    rows = []
    for source in SOURCES:
        error, known = _errors(data, predicted_mib, source)
        if known.any():
            width = bin_mib(source)
            capped = np.minimum(predicted_mib, capacities_mib(data.product))[known]
            bins = float((data.measured_mib[known] // width == capped // width).mean())
            rows.append(Row(name, source, float(np.median(error)), float(error.mean()), bins))
    return rows


def _right(data: Dataset, predicted: Floats) -> Iterator[tuple[str, float]]:
    """By source, the share of rows in the right class."""
    for source in SM_ACTIVE_CUTS:
        classes, known = sm_active_classes(data, source)
        both = known & ~np.isnan(predicted)
        if both.any():
            yield source, float((predicted[both] == classes[both]).mean())


@dataclass(frozen=True, slots=True)
class Ahead:
    """A predictor whose median or mean error is nominally below that of the shipped model."""

    predictor: str
    source: str
    rows: int
    groups: int
    median: Difference
    mean: Difference


def _ahead(data: Dataset, ours: Floats, others: Mapping[str, Floats]) -> Iterator[Ahead]:
    for source in SOURCES:
        for name, predicted in others.items():
            theirs, known = _errors(data, predicted, source)
            groups = len(set(data.group[known]))
            if groups < _LEAST_GROUPS:
                continue
            own = _errors(data, np.where(known, ours, np.nan), source)[0]
            if min(np.median(theirs) - np.median(own), theirs.mean() - own.mean()) < -_SAME:
                median, mean = compare(own, theirs, data.group[known])
                yield Ahead(name, source, int(known.sum()), groups, median, mean)


def _markdown(
    rows: list[Row], classes: Mapping[tuple[str, str], float], ahead: list[Ahead], ahead_by_summary: list[Ahead],
    left_out: Sequence[str],
) -> str:  # fmt: skip
    by_place = {(row.predictor, row.source): _cell(row) for row in rows}
    shares = _table({place: f"{share:.3f}" for place, share in classes.items()}, tuple(SM_ACTIVE_CUTS))
    return "\n".join([
        "# Predictors on the same rows, the same folds", "", _ABOUT, "", *_left_out(left_out),
        *_table(by_place, SOURCES), "",
        "## Is anything ahead?", "", _AHEAD, "", *_ahead_table(ahead), "",
        "### Told by a summary alone", "", _AHEAD_BY_SUMMARY, "", *_ahead_table(ahead_by_summary), "",
        "## Utilization: share of runs in the right class of `sm_active`", "", *shares, "",
        "Caveats:", "", _NOTES,
    ]) + "\n"  # fmt: skip


_ABOUT = """\
Median / mean error, then bin accuracy (8 GB bins; 1 GB for the MLPs). Five folds of whole groups. Rows that ran out of
memory and suspect rows are excluded. Trees and GPUMemNet get one model per source; ours is one model for all sources.
Generated by `python -m bench.predictors`."""
_AHEAD = """\
Every predictor whose median or mean error is nominally below that of the shipped model. The difference is ours minus
theirs in percentage points, with the 95 % interval from 2,000 bootstrap draws of whole groups. If the interval contains
zero, the order depends on which networks happened to be measured. Differences below 0.005 points and slices with fewer
than five groups are left out."""
_AHEAD_BY_SUMMARY = """\
The same, where nothing but a summary is known: what ships beside the trees on the summary table and the physics from a
summary."""
_NOTES = """\
- The tree baselines on *layer sums* use this project's own features, including the physics estimate and the repaired
  shapes. On the published table's features they are the *summary table* rows.
- xMem's own estimator first runs the task on a CPU, for 13 to 22 s per run. That is where its lead comes from.
- Horus's formula is our reading of the paper: every activation kept with its gradient, nothing reused.
- FakeTensor's count is the sum of tensors alive at the peak, taken from the profiles; no model was run under it. By
  design it leaves out context, allocator and workspaces.
- GPUMemNet and GPUUtilNet were retrained from their paper's description, which gives neither widths nor epochs. They
  predict a bin, and their error is that of its middle.
- Rows that start with *first fold* cover one fifth of the runs. Compare them only with each other.
- These runs are fp32. Predictors of runs in other settings, told by totals, are compared in
  [totals](benchmarks/totals.md), and predictors of the time per step in [time per step](step-time.md)."""


def _left_out(names: Sequence[str]) -> list[str]:
    """What an older page may have had, and nobody ran on these features."""
    return [fill(f"Not run on these features: {'; '.join(names)}.", 120), ""] if names else []


def _table(cells: Mapping[tuple[str, str], str], sources: Sequence[str]) -> list[str]:
    names = list(dict.fromkeys(name for name, _ in cells))
    return [
        "| predictor | " + " | ".join(sources) + " |",
        "|---|" + "---|" * len(sources),
        *(f"| {name} | " + " | ".join(cells.get((name, source), "") for source in sources) + " |" for name in names),
    ]


def _cell(row: Row) -> str:
    if np.isnan(row.mean):
        return f"{row.median:.2%}"
    return f"{row.median:.2%} / {row.mean:.2%}; {row.bins:.3f}"


def _ahead_table(ahead: Sequence[Ahead]) -> list[str]:
    if not ahead:
        return ["None."]
    return [
        "| predictor | slice | runs, groups | median | mean |",
        "|---|---|---|---|---|",
        *(
            f"| {one.predictor} | {one.source} | {one.rows:,}, {one.groups} "
            f"| {_points(one.median)} | {_points(one.mean)} |"
            for one in ahead
        ),
    ]


def _points(difference: Difference) -> str:
    value, low, high = (f"{100 * part:+.2f}" for part in (difference.value, difference.low, difference.high))
    return f"{value} ({low} to {high})" + (" **settled**" if difference.settled else "")


if __name__ == "__main__":
    main()
