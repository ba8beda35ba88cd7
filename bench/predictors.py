"""Every baseline on the same rows and the same folds as the shipped forecast: one command, one page.

    python -m bench.predictors --data DIR --out docs/predictors.md

What a predictor said of every run is kept under `--work` (by default where `vramcast train` keeps its own) and not made
again while the features are the same; so are the networks that are found there. From nothing it takes some two hours
of one core, most of it for networks: `--skip "GPU|Transformer|BiGRU|papers"` leaves six minutes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from bench import gpumemnet
from bench.contenders import SOURCES, Contender, Floats, bin_mib, of_memory, of_sm_active, shipped, sm_active_classes
from bench.paired import Difference, compare

from vramcast.train.crossval import load_dataset
from vramcast.train.dataset import Dataset
from vramcast.train.metrics import SM_ACTIVE_CUTS, capacities_mib
from vramcast.train.progress import Progress
from vramcast.train.records import read_records

_SHIPPED = "**what ships**"
_PUBLISHED_CLASSES = {"gpumemnet-cnn": 0.77, "gpumemnet-mlp": 0.92}
# Half a hundredth of a per cent: less is no difference.
_SAME = 5e-5
# Of fewer an interval says nothing.
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
    parser.add_argument("--artifact", type=Path, default=Path("model_artifacts"), help="its own figures head the table")
    parser.add_argument(
        "--skip", metavar="PATTERN", help="do not run these (a name, or `name, source`); what is kept of them is shown"
    )
    chosen = parser.parse_args()
    progress = Progress()
    records = read_records(chosen.data)
    data = load_dataset(records, chosen.work, progress)
    bench = Bench(chosen.work / f"predictors-{hashlib.sha256(data.facts.tobytes()).hexdigest()[:12]}", progress)
    manifest = json.loads((chosen.artifact / "manifest.json").read_text(encoding="utf-8"))

    ours = bench.said(Contender(_SHIPPED + manifest["version"], partial(shipped, data, chosen.work, progress)))
    rows = list(_manifest_rows(manifest))
    _check_same(_judge(_SHIPPED, data, ours), rows)
    inputs = gpumemnet.read_inputs(records)
    others = bench.run(of_memory(records, data, inputs, chosen.work, progress), chosen.skip)
    rows += [row for name, said in others.items() for row in _judge(name, data, said)]

    classes = {(_SHIPPED, source): share for source, share in _manifest_classes(manifest)}
    for name, said in bench.run(list(of_sm_active(data, inputs)), chosen.skip).items():
        classes |= {(name, source): share for source, share in _right(data, said)}
    classes |= {("GPUUtilNet (published)", source): share for source, share in _PUBLISHED_CLASSES.items()}
    chosen.out.write_text(_markdown(rows, classes, list(_ahead(data, ours, others))), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs contenders, and keeps what they said."""

    kept: Path
    progress: Progress

    def run(self, contenders: Sequence[Contender], skip: str | None) -> dict[str, Floats]:
        """By name; where one comes source by source, put together."""
        found: dict[str, Floats] = {}
        for one in self.progress.over(contenders, "predictors"):
            if self._path(one).exists() or not (skip and re.search(skip, f"{one.name}, {one.source}")):
                said = self.said(one)
                before = found.get(one.name, np.full(len(said), np.nan))
                found[one.name] = np.where(np.isnan(said), before, said)
        return found

    def said(self, one: Contender) -> Floats:
        """What it said last time, or says now."""
        path = self._path(one)
        if not path.exists():
            started = time.perf_counter()
            said = one.says()
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, said)
            self.progress.say(f"{one.name} {one.source}: {time.perf_counter() - started:.0f} s")
        return np.asarray(np.load(path), np.float64)

    def _path(self, one: Contender) -> Path:
        return self.kept / (re.sub(r"[^a-z0-9]+", "-", f"{one.name} {one.source}".lower()).strip("-") + ".npy")


def _manifest_rows(manifest: Mapping[str, list[dict[str, float]]]) -> Iterator[Row]:
    """The manifest's figures are of unseen groups, on these very folds."""
    levels = ((_SHIPPED, "accuracy"), ("**what ships, told by a summary**", "summary_accuracy"))
    for name, key in levels:
        for entry in manifest[key]:
            source = str(entry["slice"])
            if source in SOURCES:
                bins = entry[f"bin_accuracy_{bin_mib(source) // 1024}gb"]
                yield Row(name, source, entry["median_error"], entry["mean_error"], bins)
                if key == "accuracy":
                    yield Row("**network alone**", source, entry["network_median_error"], math.nan, math.nan)


def _manifest_classes(manifest: Mapping[str, list[dict[str, float]]]) -> Iterator[tuple[str, float]]:
    for entry in manifest["accuracy"]:
        if entry["slice"] in SM_ACTIVE_CUTS:
            yield str(entry["slice"]), entry["sm_active_class_accuracy"]


def _check_same(made: list[Row], stated: list[Row]) -> None:
    """Forecasts of other networks or trees than the artifact's would be compared under its name."""
    by_source = {row.source: row for row in stated if row.predictor == _SHIPPED}
    for row in made:
        if abs(row.mean - by_source[row.source].mean) > _SAME:
            raise SystemExit(
                f"{row.source}: the mean error is {row.mean:.4%} here and {by_source[row.source].mean:.4%} in the "
                "manifest; give the --work and the --artifact of one `vramcast train`"
            )


def _errors(data: Dataset, said_mib: Floats, source: str) -> tuple[Floats, np.ndarray]:
    """Of the rows that it says something of, and which these are."""
    said = np.minimum(said_mib, capacities_mib(data.product))
    known = (data.source == source) & data.usable & ~np.isnan(said)
    return np.abs(said[known] - data.measured_mib[known]) / data.measured_mib[known], known


def _judge(name: str, data: Dataset, said_mib: Floats) -> list[Row]:
    rows = []
    for source in SOURCES:
        error, known = _errors(data, said_mib, source)
        if known.any():
            width = bin_mib(source)
            said = np.minimum(said_mib, capacities_mib(data.product))[known]
            bins = float((data.measured_mib[known] // width == said // width).mean())
            rows.append(Row(name, source, float(np.median(error)), float(error.mean()), bins))
    return rows


def _right(data: Dataset, said: Floats) -> Iterator[tuple[str, float]]:
    for source in SM_ACTIVE_CUTS:
        classes, known = sm_active_classes(data, source)
        told = known & ~np.isnan(said)
        if told.any():
            yield source, float((said[told] == classes[told]).mean())


@dataclass(frozen=True, slots=True)
class Ahead:
    """A predictor whose median or mean error is nominally below that of what ships."""

    predictor: str
    source: str
    rows: int
    groups: int
    median: Difference
    mean: Difference


def _ahead(data: Dataset, ours: Floats, others: Mapping[str, Floats]) -> Iterator[Ahead]:
    for source in SOURCES:
        for name, said in others.items():
            theirs, known = _errors(data, said, source)
            groups = len(set(data.group[known]))
            if groups < _LEAST_GROUPS:
                continue
            own = _errors(data, np.where(known, ours, np.nan), source)[0]
            if min(np.median(theirs) - np.median(own), theirs.mean() - own.mean()) < -_SAME:
                median, mean = compare(own, theirs, data.group[known])
                yield Ahead(name, source, int(known.sum()), groups, median, mean)


def _markdown(rows: list[Row], classes: Mapping[tuple[str, str], float], ahead: list[Ahead]) -> str:
    by_place = {(row.predictor, row.source): _cell(row) for row in rows}
    shares = _table({place: f"{share:.3f}" for place, share in classes.items()}, tuple(SM_ACTIVE_CUTS))
    return "\n".join([
        "# Predictors on the same rows, the same folds", "", *_ABOUT, "", *_table(by_place, SOURCES), "",
        "## Is anything ahead?", "", *_AHEAD, "", *_ahead_table(ahead), "",
        "## Utilization: share of runs in the right class of `sm_active`", "", *shares, "",
        "Read with care:", "", *_NOTES,
    ]) + "\n"  # fmt: skip


_ABOUT = (
    "Median / mean error, then bin accuracy (8 GB; 1 GB for the MLPs). Five folds of whole groups; rows that ran",
    "out of memory and rows marked suspect are left out of these figures. One model per source for trees and",
    "GPUMemNet, one for all sources for ours. Made by `python -m bench.predictors`.",
)
_AHEAD = (
    "Every predictor whose median or mean error is nominally below that of what ships, and by how much: ours less",
    "theirs in points of a per cent, with the interval that holds 95 % of 2,000 draws of whole groups. Where it holds",
    "zero, which of the two is nearer hangs on which networks happened to be measured. Less than 0.005 points does not",
    "count, nor do runs of fewer than five groups.",
)
_NOTES = (
    "- The tree baselines on *layer sums* read this project's own features, prior and repaired shapes among them:",
    "  on the published table's features they are the *summary table* rows.",
    "- xMem's own estimator runs the task on a CPU first, for 13 to 22 s a run: that is what it is ahead by.",
    "- Horus's formula is our reading of it: every activation kept with its gradient, nothing reused.",
    "- FakeTensor's count is what it would add up (tensors alive at the peak), taken from the profiles: no model",
    "  was built to be run under it. It leaves out context, allocator and workspaces by design.",
    "- GPUMemNet and GPUUtilNet are retrained from their paper's description, which gives neither widths nor",
    "  epochs; they say a bin, and their error is that of its middle.",
    "- Rows that start with *first fold* are of one fifth of the runs and are to be read beside each other only.",
)


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
        return ["None is."]
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
