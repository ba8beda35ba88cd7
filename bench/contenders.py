"""The predictors of memory and of `sm_active` that are compared, on the same rows and folds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import AdaBoostRegressor, ExtraTreesRegressor, RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from bench import gpumemnet
from vramcast.forecast.replay import NO_WORKSPACE, replay
from vramcast.forecast.rules import optimizer_states
from vramcast.task.quantity import MIB
from vramcast.train.crossval import FOLDS, unseen_medians
from vramcast.train.dataset import Dataset, assign_folds
from vramcast.train.evaluation import SM_ACTIVE_CUTS
from vramcast.train.fitting import Schedule
from vramcast.train.network import MEDIAN, Shape
from vramcast.train.pipeline import networks_of_artifact
from vramcast.train.progress import Progress
from vramcast.train.records import TARGETS, Record
from vramcast.train.unseen import correct_unseen

Floats = NDArray[np.float64]
SOURCES = ("timm-a100", "gpumemnet-cnn", "gpumemnet-mlp", "xmem")
# In the names of those that know what a summary tells.
FROM_SUMMARY, SUMMARY_TABLE = " from a summary", "summary table"
_BIN_MIB = {"gpumemnet-mlp": 1024}
_DEFAULT_BIN_MIB = 8192
_HORUS_CONTEXT_MIB = 500.0


@dataclass(frozen=True, slots=True)
class Contender:
    """`predict` returns MiB, or classes of `sm_active`, for every row; NaN if it has no prediction.

    A predictor that is fitted per source appears once per source, under the same name.
    """

    name: str
    predict: Callable[[], Floats]
    source: str = ""


def bin_mib(source: str) -> int:
    return _BIN_MIB.get(source, _DEFAULT_BIN_MIB)


def shipped(data: Dataset, artifact: Path) -> tuple[Floats, Floats]:
    """The shipped model, told the layers and told a summary: each row by those of its networks, and by trees, that are
    of the other folds."""
    unseen = networks_of_artifact(data, artifact)[0].unseen
    (first,), _ = correct_unseen(data, unseen, [unseen.fold])
    return (
        np.asarray(data.prior_mib * np.exp(first.shipped[:, MEDIAN])),
        np.asarray(data.summary_prior_mib * np.exp(first.summary[:, MEDIAN])),
    )


def of_memory(
    records: list[Record], data: Dataset, inputs: gpumemnet.Inputs, work: Path, progress: Progress
) -> list[Contender]:
    return [*_formulas(records, data), *_trees(data), *_binned(data, inputs), *_networks(data, work, progress)]


def of_sm_active(data: Dataset, inputs: gpumemnet.Inputs) -> Iterator[Contender]:
    for members, make, epochs in _MEMBERS:
        for source in SM_ACTIVE_CUTS:
            yield Contender(
                f"GPUUtilNet's {members}", partial(_voted_class, data, inputs, source, make, epochs), source
            )


_MEMBERS = (("MLPs", gpumemnet.mlps, 60), ("Transformer encoders", gpumemnet.encoders, 40))


def _formulas(records: list[Record], data: Dataset) -> Iterator[Contender]:
    figures = {
        "physics alone": data.prior_mib,
        f"physics{FROM_SUMMARY}": data.summary_prior_mib,
        "Horus's formula": np.array([_horus_mib(record) for record in records]),
        "FakeTensor's count": _fake_tensor_mib(records),
    }
    for estimator in ("xmem", "dnnmem", "schedtune", "llmem"):
        figures[f"{estimator} (published)"] = np.array([r.others_mib.get(estimator, np.nan) for r in records])
    for name, forecast_mib in figures.items():
        yield Contender(name, partial(np.asarray, forecast_mib))


def _trees(data: Dataset) -> Iterator[Contender]:
    tables = (
        (SUMMARY_TABLE, data.summary_facts, data.summary_prior_mib),
        ("layer sums", data.facts, data.prior_mib),
    )
    for name, make in regressors().items():
        for table, inputs, prior_mib in tables:
            yield Contender(f"{name}, {table}", partial(_cross_predict, data, inputs, prior_mib, make))


def regressors() -> dict[str, Callable[[], Any]]:
    # Imported late: these need the extra `predictors`.
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


def _cross_predict(data: Dataset, inputs: NDArray[np.float32], prior_mib: Floats, make: Callable[[], Any]) -> Floats:
    """One model per source and fold, on log(measured / prior)."""
    fold = assign_folds(data, FOLDS, 0)
    target = np.log(data.measured_mib / prior_mib)
    predicted = np.zeros(len(data))
    for source in SOURCES:
        for number in range(FOLDS):
            own = data.source == source
            training, unseen = own & (fold != number) & data.usable, own & (fold == number)
            if training.any() and unseen.any():
                predicted[unseen] = make().fit(inputs[training], target[training]).predict(inputs[unseen])
    return np.asarray(prior_mib * np.exp(predicted))


def _binned(data: Dataset, inputs: gpumemnet.Inputs) -> Iterator[Contender]:
    for members, make, epochs in _MEMBERS:
        for source in SOURCES:
            predict = partial(_voted_mib, data, inputs, source, make, epochs)
            yield Contender(f"GPUMemNet's binned {members}", predict, source)


def _voted_mib(data: Dataset, inputs: gpumemnet.Inputs, source: str, make: gpumemnet.Members, epochs: int) -> Floats:
    """The middle of the predicted bin."""
    width = bin_mib(source)
    known = data.usable & (data.source == source)
    bins = np.floor(data.measured_mib / width).astype(np.int64)
    voted = gpumemnet.classify(inputs, bins, known, assign_folds(data, FOLDS, 0), make, epochs)
    return np.where(known, (voted + 0.5) * width, np.nan)


def _voted_class(data: Dataset, inputs: gpumemnet.Inputs, source: str, make: gpumemnet.Members, epochs: int) -> Floats:
    classes, known = sm_active_classes(data, source)
    voted = gpumemnet.classify(inputs, classes, known, assign_folds(data, FOLDS, 0), make, epochs)
    return np.where(known, voted, np.nan)


def sm_active_classes(data: Dataset, source: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Low, medium or high; and which rows have a measurement."""
    measured = data.utilization[:, TARGETS.index("sm_active")]
    known = data.usable & (data.source == source) & ~np.isnan(measured)
    return np.where(known, np.digitize(measured, SM_ACTIVE_CUTS[source]), 0), known


def _fake_tensor_mib(records: list[Record]) -> Floats:
    """The live tensors at the peak, without context, allocator and workspaces.

    This does not run FakeTensor. If the graph is known, it is the peak of the replay's tensors. For traced networks it
    is weights, gradients, states, buffers, inputs and the traced bytes.
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
    """Weights, gradients, optimizer states, and every activation with its gradient, without any reuse."""
    states = {"sgd": 0, "sgd-momentum": 1, "rmsprop": 1, "adagrad": 1}.get(record.task.optimizer, 2)
    parameters = 4.0 * (record.task.parameters or 0) * (2 + states)
    activations = 2 * 4.0 * sum(op.out_elements for op in record.network.ops) * record.task.batch_size
    return (parameters + activations) / MIB + _HORUS_CONTEXT_MIB


def _networks(data: Dataset, work: Path, progress: Progress) -> Iterator[Contender]:
    """Ablations, and the papers' sizes. The slow ones are trained on the first fold only, as is ours to compare."""
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
        yield Contender(name, partial(_network_mib, data, shape, schedule, folds, work, progress))


# Larger networks get fewer epochs, and the largest one epoch with smaller batches and a lower learning rate.
_SHORT = Schedule(epochs=12)
_LARGE = Schedule(epochs=1, batch=32, learning_rate=3e-4)


def _network_mib(
    data: Dataset, shape: Shape, schedule: Schedule, folds: Sequence[int], work: Path, progress: Progress
) -> Floats:
    return np.asarray(data.prior_mib * np.exp(unseen_medians(data, shape, schedule, folds, work, progress)))
