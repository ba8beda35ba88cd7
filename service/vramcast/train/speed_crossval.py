"""Step times of rows that were held out of training. It can resume: the predictions of every fold are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from vramcast.forecast import speed_features
from vramcast.forecast.speed_artifact import QUANTILES
from vramcast.train.progress import Progress
from vramcast.train.speed_data import Floats, SpeedData
from vramcast.train.speed_export import BLEND, Fitted
from vramcast.train.speed_network import SpeedArrays, SpeedSchedule, SpeedShape, fit_network
from vramcast.train.speed_trees import boosted_parameters, fit_trees, forest_parameters

_MEDIAN = QUANTILES.index(0.5)
Others = Mapping[str, Callable[[], Any]]
_SHIPPED, _NETWORK = "what ships", "Transformer-BiGRU"


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Predictions of rows that were held out, in logarithms of seconds."""

    quantiles: Floats  # (rows, quantiles), what ships
    medians: dict[str, Floats]  # by predictor


def cross_validate(
    data: SpeedData,
    folds: NDArray[np.int64],
    schedule: SpeedSchedule,
    progress: Progress,
    what: str,
    work: Path,
    *,
    compare: bool,
) -> HeldOut:
    others = _others() if compare else {}
    common = _digest(data, schedule, others)
    quantiles, medians = np.zeros((len(folds), len(QUANTILES))), dict[str, Floats]()
    for fold in progress.over(sorted(set(folds.tolist())), what):
        here = folds == fold
        weights = data.weights(~here)
        own = np.concatenate([weights[cell] for cell in sorted(weights)])
        path = work / f"speed-{hashlib.sha256(common + here.tobytes() + own.tobytes()).hexdigest()[:16]}.npz"
        if not path.exists():
            work.mkdir(parents=True, exist_ok=True)
            np.savez(path, allow_pickle=False, **_predict_fold(data, here, weights, schedule, others))
        with np.load(path) as kept:
            quantiles[here] = kept["quantiles"]
            for name in set(kept.files) - {"quantiles"}:
                medians.setdefault(name, np.zeros(len(folds)))[here] = kept[name]
    return HeldOut(quantiles, {_SHIPPED: quantiles[:, _MEDIAN], **dict(sorted(medians.items()))})


def _predict_fold(
    data: SpeedData,
    here: NDArray[np.bool_],
    weights: dict[str, Floats],
    schedule: SpeedSchedule,
    others: Others,
) -> dict[str, Floats]:
    """`quantiles`, and medians by predictor, of the rows that are held out. `weights` are fitted to the others."""
    arrays, prior = data.arrays(weights), np.log(data.priors(weights)[here])
    seen, held = arrays.where(~here), arrays.where(here)
    shipped, own = fit(seen, schedule, (1,)).quantiles(held)
    over = np.log(data.seconds[~here] / data.roofline[~here])
    return {
        "quantiles": prior[:, None] + shipped,
        _NETWORK: prior + own[:, _MEDIAN],
        "weighted parts": prior,
        "roofline": np.log(data.roofline[here]) + np.median(over),
        **{
            name: prior + make().fit(seen.facts, seen.target, sample_weight=seen.weight).predict(held.facts)
            for name, make in others.items()
        },
    }


def _digest(data: SpeedData, schedule: SpeedSchedule, others: Others) -> bytes:
    """Of everything that a fold's predictions follow from, but for the fold and its weights."""
    settings = [sorted(make().get_params().items(), key=str) for make in others.values()]
    own = (boosted_parameters(), forest_parameters(), BLEND)
    digest = hashlib.sha256(repr((speed_features.VERSION, SpeedShape(), schedule, own, settings)).encode())
    for field in fields(SpeedData):
        digest.update(np.ascontiguousarray(getattr(data, field.name)).tobytes())
    return digest.digest()


def fit(data: SpeedArrays, schedule: SpeedSchedule, seeds: Sequence[int]) -> Fitted:
    return Fitted(tuple(fit_network(data, SpeedShape(), schedule, seed) for seed in seeds), fit_trees(data))


def _others() -> Others:
    """The second paper's four. Two need the extra `predictors`."""
    found: dict[str, Callable[[], Any]] = {
        "LightGBM": lambda: lightgbm.LGBMRegressor(
            n_estimators=400, learning_rate=0.05, num_leaves=31, min_child_samples=8, verbose=-1, n_jobs=1,
            random_state=0, deterministic=True, force_row_wise=True,
        ),
        "ExtraTrees": lambda: ExtraTreesRegressor(100, min_samples_leaf=2, max_features=0.4, n_jobs=1, random_state=0),
    }  # fmt: skip
    try:
        from catboost import CatBoostRegressor  # noqa: PLC0415
        from xgboost import XGBRegressor  # noqa: PLC0415
    except ImportError:
        return found
    return found | {
        "CatBoost": lambda: CatBoostRegressor(
            iterations=300, learning_rate=0.1, depth=6, loss_function="MAE", verbose=False, thread_count=1,
            random_seed=0, allow_writing_files=False,
        ),
        "XGBoost": lambda: XGBRegressor(
            n_estimators=400, learning_rate=0.05, max_depth=6, subsample=0.8, colsample_bytree=0.5, n_jobs=1,
            random_state=0, objective="reg:absoluteerror",
        ),
    }  # fmt: skip
