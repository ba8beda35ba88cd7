"""Every baseline on the same rows and the same folds as the shipped forecast: one command, one page.

    python bench/predictors.py --data DIR --out docs/predictors.md

Figures of a predictor are kept under `--work` (by default where `vramcast train` keeps its own) and not made again; so
are the features and networks that are found there. From nothing it takes about an hour and a half of one core.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import AdaBoostRegressor, ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from vramcast.core.quantity import MIB
from vramcast.forecast.program import NO_WORKSPACE
from vramcast.forecast.replay import replay
from vramcast.forecast.weights import optimizer_states
from vramcast.train.crossval import FOLDS, load_dataset, unseen_medians
from vramcast.train.dataset import Dataset, deal
from vramcast.train.fitting import Schedule
from vramcast.train.metrics import SM_ACTIVE_CUTS, capacities_mib
from vramcast.train.network import Shape
from vramcast.train.progress import Progress
from vramcast.train.records import TARGETS, Record, read_records

# As a script (`python bench/predictors.py`) its own folder is searched, not the one above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from bench import gpumemnet

Floats = NDArray[np.float64]
_SOURCES = ("timm-a100", "gpumemnet-cnn", "gpumemnet-mlp", "xmem")
_BIN_MIB = {"gpumemnet-mlp": 1024}
_DEFAULT_BIN_MIB = 8192
_HORUS_CONTEXT_MIB = 500.0


@dataclass(frozen=True, slots=True)
class Row:
    """One predictor on one source."""

    predictor: str
    source: str
    median: float
    mean: float
    bins: float
    classes: float = math.nan  # share of the right sm_active class; such rows have no other figure


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    run: Callable[[], list[Row]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("model_artifacts/work"))
    parser.add_argument("--artifact", type=Path, default=Path("model_artifacts"), help="its own figures head the table")
    parser.add_argument("--skip", metavar="PATTERN", help="do not make figures of these anew; what is kept is shown")
    chosen = parser.parse_args()
    progress = Progress()
    records = read_records(chosen.data)
    data = load_dataset(records, chosen.work, progress)
    jobs = [*_formulas(records, data), *_trees(data), *_binned(records, data)]
    jobs += _networks(data, chosen.work, progress)
    rows = list(_shipped(chosen.artifact))
    for job in progress.over(jobs, "predictors"):
        path = chosen.work / "predictors" / (re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-") + ".json")
        if path.exists() or not (chosen.skip and re.search(chosen.skip, job.name)):
            rows += _kept(job, path, progress)
    chosen.out.write_text(_markdown(rows), encoding="utf-8")


def _kept(job: Job, path: Path, progress: Progress) -> list[Row]:
    """Its figures from last time, or now."""
    if not path.exists():
        started = time.perf_counter()
        rows = job.run()
        progress.say(f"{job.name}: {time.perf_counter() - started:.0f} s")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def _shipped(artifact: Path) -> Iterator[Row]:
    """The manifest's figures are of unseen groups, on these very folds."""
    manifest = json.loads((artifact / "manifest.json").read_text(encoding="utf-8"))
    for entry in manifest["accuracy"]:
        if entry["slice"] in _SOURCES:
            width = "bin_accuracy_1gb" if entry["slice"] in _BIN_MIB else "bin_accuracy_8gb"
            yield Row("**what ships**", entry["slice"], entry["median_error"], entry["mean_error"], entry[width])
            yield Row("**network alone**", entry["slice"], entry["network_median_error"], math.nan, math.nan)
            if entry["slice"] in SM_ACTIVE_CUTS:
                share = entry["sm_active_class_accuracy"]
                yield Row("**what ships**", entry["slice"], math.nan, math.nan, math.nan, share)


def _formulas(records: list[Record], data: Dataset) -> Iterator[Job]:
    figures = {
        "physics alone": data.prior_mib,
        "physics from a summary": data.summary_prior_mib,
        "Horus's formula": np.array([_horus_mib(record) for record in records]),
        "FakeTensor's count": _fake_tensor_mib(records),
    }
    for estimator in ("xmem", "dnnmem", "schedtune", "llmem"):
        figures[f"{estimator} (published)"] = np.array([r.others_mib.get(estimator, np.nan) for r in records])
    for name, said_mib in figures.items():
        yield Job(name, partial(_judge, name, data, said_mib))


def _trees(data: Dataset) -> Iterator[Job]:
    tables = (
        ("summary table", data.summary_facts, data.summary_prior_mib),
        ("layer sums", data.facts, data.prior_mib),
    )
    for name, make in _regressors().items():
        for table, inputs, prior_mib in tables:
            yield Job(f"{name}, {table}", partial(_judge_trees, f"{name}, {table}", data, inputs, prior_mib, make))


def _judge_trees(
    name: str, data: Dataset, inputs: NDArray[np.float32], prior_mib: Floats, make: Callable[[], Any]
) -> list[Row]:
    return _judge(name, data, _cross_predict(data, inputs, prior_mib, make))


def _regressors() -> dict[str, Callable[[], Any]]:
    # Late and one by one: each is an extra of its own.
    from catboost import CatBoostRegressor  # noqa: PLC0415
    from lightgbm import LGBMRegressor  # noqa: PLC0415
    from xgboost import XGBRegressor  # noqa: PLC0415

    return {
        "Decision Tree": lambda: DecisionTreeRegressor(min_samples_leaf=5, random_state=0),
        "Random Forest": lambda: RandomForestRegressor(100, min_samples_leaf=2, max_features=0.3, random_state=0),
        "AdaBoost": lambda: AdaBoostRegressor(DecisionTreeRegressor(max_depth=6), n_estimators=60, random_state=0),
        "ExtraTrees": lambda: ExtraTreesRegressor(100, min_samples_leaf=2, max_features=0.3, random_state=0),
        "XGBoost": lambda: XGBRegressor(
            n_estimators=400, learning_rate=0.05, max_depth=5, subsample=0.8, colsample_bytree=0.3, n_jobs=1,
            objective="reg:absoluteerror",
        ),
        "LightGBM": lambda: LGBMRegressor(
            objective="l1", n_estimators=600, learning_rate=0.03, num_leaves=15, min_child_samples=8, subsample=0.8,
            subsample_freq=1, colsample_bytree=0.3, reg_lambda=1.0, verbose=-1, n_jobs=1, random_state=0,
        ),
        "CatBoost": lambda: CatBoostRegressor(
            iterations=500, learning_rate=0.05, depth=6, loss_function="MAE", rsm=0.3, verbose=False, thread_count=1,
            random_seed=0, allow_writing_files=False,
        ),
    }  # fmt: skip


def _usable(data: Dataset) -> NDArray[np.bool_]:
    return np.asarray(~data.suspect & ~data.censored)


def _cross_predict(data: Dataset, inputs: NDArray[np.float32], prior_mib: Floats, make: Callable[[], Any]) -> Floats:
    """One model per source and fold, on log(measured / prior), as the yardstick of the issue does it."""
    fold = deal(data, FOLDS, 0)
    target = np.log(data.measured_mib / prior_mib)
    said = np.zeros(len(data))
    for source in _SOURCES:
        for number in range(FOLDS):
            own = data.source == source
            training, unseen = own & (fold != number) & _usable(data), own & (fold == number)
            if training.any() and unseen.any():
                said[unseen] = make().fit(inputs[training], target[training]).predict(inputs[unseen])
    return np.asarray(prior_mib * np.exp(said))


def _binned(records: list[Record], data: Dataset) -> Iterator[Job]:
    inputs = gpumemnet.read_inputs(records)
    for members, make, epochs in (("MLPs", gpumemnet.mlps, 60), ("Transformer encoders", gpumemnet.encoders, 40)):
        for source in _SOURCES:
            name = f"GPUMemNet's binned {members}"
            yield Job(f"{name}, {source}", partial(_judge_bins, name, data, inputs, source, make, epochs))
        for source in SM_ACTIVE_CUTS:
            name = f"GPUUtilNet's {members}"
            yield Job(f"{name}, {source}", partial(_judge_classes, name, data, inputs, source, make, epochs))
    published = {"gpumemnet-cnn": 0.77, "gpumemnet-mlp": 0.92}
    rows = [Row("GPUUtilNet (published)", s, math.nan, math.nan, math.nan, share) for s, share in published.items()]
    yield Job("GPUUtilNet (published)", lambda: rows)


def _judge_bins(
    name: str, data: Dataset, inputs: gpumemnet.Inputs, source: str, make: gpumemnet.Members, epochs: int
) -> list[Row]:
    """What is said is the middle of the bin."""
    width = _BIN_MIB.get(source, _DEFAULT_BIN_MIB)
    known = _usable(data) & (data.source == source)
    bins = np.floor(data.measured_mib / width).astype(np.int64)
    voted = gpumemnet.classify(inputs, bins, known, deal(data, FOLDS, 0), make, epochs)
    return _judge(name, data, np.where(known, (voted + 0.5) * width, np.nan))


def _judge_classes(
    name: str, data: Dataset, inputs: gpumemnet.Inputs, source: str, make: gpumemnet.Members, epochs: int
) -> list[Row]:
    measured = data.utilization[:, TARGETS.index("sm_active")]
    known = _usable(data) & (data.source == source) & ~np.isnan(measured)
    classes = np.where(known, np.digitize(measured, SM_ACTIVE_CUTS[source]), 0)
    voted = gpumemnet.classify(inputs, classes, known, deal(data, FOLDS, 0), make, epochs)
    return [Row(name, source, math.nan, math.nan, math.nan, float((voted == classes)[known].mean()))]


def _fake_tensor_mib(records: list[Record]) -> Floats:
    """The tensors that live at the peak and nothing else: no context, no allocator, no workspace.

    Nothing is run under FakeTensor here. Where the graph is known this is the peak of the replay's tensors; where leaf
    modules were traced on the meta device, weights, gradients, states, buffers, inputs and the bytes that were traced.
    """
    return np.array([_active_mib(record) if record.network.replayable else _traced_mib(record) for record in records])


def _active_mib(record: Record) -> float:
    batch, states = record.task.batch_size, optimizer_states(record.task.optimizer)
    return replay(record.network, [batch, batch], states, NO_WORKSPACE, 0).peak_active_bytes / MIB


def _traced_mib(record: Record) -> float:
    network, batch = record.network, record.task.batch_size
    saved = network.saved_bytes_per_sample
    if saved is None:
        return math.nan
    model = 4.0 * network.parameters * (2 + optimizer_states(record.task.optimizer)) + 4.0 * network.buffers
    return (model + batch * (saved + 4.0 * network.input_elements)) / MIB


def _horus_mib(record: Record) -> float:
    """Weights, gradients and optimizer states, and every activation with its gradient: nothing is reused."""
    states = {"sgd": 0, "sgd-momentum": 1, "rmsprop": 1, "adagrad": 1}.get(record.task.optimizer, 2)
    parameters = 4.0 * (record.task.parameters or 0) * (2 + states)
    activations = 2 * 4.0 * sum(op.out_elements for op in record.network.ops) * record.task.batch_size
    return (parameters + activations) / MIB + _HORUS_CONTEXT_MIB


def _networks(data: Dataset, work: Path, progress: Progress) -> Iterator[Job]:
    """Ablations and the papers' sizes; sizes that take long are trained on the first fold, beside ours on that fold."""
    everywhere, first = tuple(range(FOLDS)), (0,)
    small = Shape(width=128, recurrent_width=64)
    large = Shape(width=512, recurrent_width=256, layers=6, heads=8)
    sizes = [
        ("BiGRU-Transformer (ours, one seed)", Shape(), Schedule(), everywhere),
        ("plain Transformer (no BiGRU)", Shape(recurrent=False), Schedule(), everywhere),
        ("BiGRU alone (no Transformer)", Shape(attention=False), Schedule(), everywhere),
        ("first fold: BiGRU-Transformer (ours, one seed)", Shape(), Schedule(), first),
        ("first fold: the papers' small size (2 layers, 4 heads, 128 wide), 12 epochs", small, _SHORT, first),
        ("first fold: the papers' size (6 layers, 8 heads, 512, BiGRU 256), 1 epoch", large, _LARGE, first),
    ]
    for name, shape, schedule, folds in sizes:
        yield Job(name, partial(_judge_network, name, data, shape, schedule, folds, work, progress))


# What a larger network was given: fewer epochs, and for the largest one epoch of smaller steps.
_SHORT = Schedule(epochs=12)
_LARGE = Schedule(epochs=1, batch=32, learning_rate=3e-4)


def _judge_network(
    name: str, data: Dataset, shape: Shape, schedule: Schedule, folds: Sequence[int], work: Path, progress: Progress
) -> list[Row]:
    return _judge(name, data, data.prior_mib * np.exp(unseen_medians(data, shape, schedule, folds, work, progress)))


def _judge(name: str, data: Dataset, said_mib: Floats) -> list[Row]:
    rows = []
    said = np.minimum(said_mib, capacities_mib(data.product))
    for source in _SOURCES:
        known = (data.source == source) & _usable(data) & ~np.isnan(said)
        if known.any():
            measured, claimed = data.measured_mib[known], said[known]
            error = np.abs(claimed - measured) / measured
            width = _BIN_MIB.get(source, _DEFAULT_BIN_MIB)
            bins = float((measured // width == claimed // width).mean())
            rows.append(Row(name, source, float(np.median(error)), float(error.mean()), bins))
    return rows


def _markdown(rows: list[Row]) -> str:
    memory = [row for row in rows if not np.isnan(row.median)]
    lines = ["# Predictors on the same rows, the same folds", "", *_ABOUT, "", *_table(memory, _SOURCES, _cell), ""]
    lines += ["## Utilization: share of runs in the right class of `sm_active`", ""]
    classes = [row for row in rows if not np.isnan(row.classes)]
    lines += _table(classes, tuple(SM_ACTIVE_CUTS), lambda row: f"{row.classes:.3f}" if row else "")
    return "\n".join([*lines, "", "Read with care:", "", *_NOTES]) + "\n"


_ABOUT = (
    "Median / mean error, then bin accuracy (8 GB; 1 GB for the MLPs). Five folds of whole groups; rows that ran",
    "out of memory and rows marked suspect are left out of these figures. One model per source for trees and",
    "GPUMemNet, one for all sources for ours. Made by `python bench/predictors.py`.",
)
_NOTES = (
    "- The tree baselines on *layer sums* read this project's own features, prior and repaired shapes among them:",
    "  on the published table's features they are the *summary table* rows.",
    "- xMem's own estimator runs the task on a CPU first, for 13 to 22 s a run.",
    "- Horus's formula is our reading of it: every activation kept with its gradient, nothing reused.",
    "- FakeTensor's count is what it would add up (tensors alive at the peak), taken from the profiles: no model",
    "  was built to be run under it. It leaves out context, allocator and workspaces by design.",
    "- GPUMemNet and GPUUtilNet are retrained from their paper's description, which gives neither widths nor",
    "  epochs; they say a bin, and their error is that of its middle.",
    "- Rows that start with *first fold* are of one fifth of the runs and are to be read beside each other only.",
)


def _table(rows: list[Row], sources: Sequence[str], cell: Callable[[Row | None], str]) -> list[str]:
    names = list(dict.fromkeys(row.predictor for row in rows))
    by_place = {(row.predictor, row.source): row for row in rows}
    return [
        "| predictor | " + " | ".join(sources) + " |",
        "|---|" + "---|" * len(sources),
        *(
            f"| {name} | " + " | ".join(cell(by_place.get((name, source))) for source in sources) + " |"
            for name in names
        ),
    ]


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    if np.isnan(row.mean):
        return f"{row.median:.2%}"
    return f"{row.median:.2%} / {row.mean:.2%}; {row.bins:.3f}"


if __name__ == "__main__":
    main()
