"""The tables of docs/step-time.md, which the shipped manifest states."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_MANIFEST = Path(__file__).parents[2] / "model_artifacts/speed.json"
_SOURCES = {
    "timm-train-nchw": "training, RTX 3090",
    "timm-train-nhwc": "training, RTX 3090, channels last",
    "timm-infer": "inference, four GPUs",
    "gavel": "Gavel's ResNet-50, fp32, V100, P100, K80",
}
_PREDICTORS = (
    "what ships", "Transformer-BiGRU", "ExtraTrees", "CatBoost", "XGBoost", "LightGBM", "weighted parts", "roofline",
)  # fmt: skip


def networks_table() -> str:
    """Unseen families by source and predictor, then unseen networks of families that may be known."""
    between = "\nNetworks that were held out, while others of their family may have been seen:\n\n"
    return _by_source("unseen_families") + between + _by_source("unseen_networks")


def _by_source(key: str) -> str:
    slices = _manifest()[key]
    title = "| runs | predictor | MSE (s²) | RMSE (s) | MAE (s) | MAPE | R² | R² of samples/s |"
    rows = (
        [_source(source, figures["rows"]), _predictor(name), f"{figures['mse']:.4f}", f"{figures['rmse']:.3f}",
         f"{figures['mae']:.3f}", f"{figures['mape']:.1%}", f"{figures['r2']:.3f}", f"{figures['r2_rate']:.3f}"]
        for source in _SOURCES
        for name in _PREDICTORS
        if (figures := slices[source].get(name)) is not None
    )  # fmt: skip
    return _table(title, rows)


def gpus_table() -> str:
    """Each GPU held out of training, MAPE by predictor."""
    slices = _manifest()["unseen_gpus"]
    shown = [name for name in _PREDICTORS if name in next(iter(slices.values()))]
    title = f"| unseen GPU, runs | rows | {' | '.join(map(_predictor, shown))} |"
    rows = (
        [name.replace("timm-", ""), str(predictors[shown[0]]["rows"]),
         *(f"{predictors[predictor]['mape']:.1%}" for predictor in shown)]
        for name, predictors in slices.items()
    )  # fmt: skip
    return _table(title, rows)


def coverage_table() -> str:
    """How many runs of unseen families are inside their range, and how the FLOPs compare with published ones."""
    manifest = _manifest()
    flops = manifest["flops"]
    rows = [[_SOURCES[source], f"{share:.1%}"] for source, share in manifest["coverage"].items()]
    published = (
        f"\nMultiply-accumulates beside the published ones: {flops['networks']:,} networks and sizes, "
        f"{flops['within_1_percent']:.1%} within 1 %, median difference {flops['median_difference']:.2%}.\n"
    )
    return _table("| runs of unseen families | inside the range |", iter(rows)) + published


def _manifest() -> dict[str, Any]:
    return dict(json.loads(_MANIFEST.read_text()))


def _source(source: str, rows: float) -> str:
    return f"{_SOURCES[source]} ({rows:,.0f})"


def _predictor(name: str) -> str:
    return f"**{name}**" if name == _PREDICTORS[0] else name


def _table(title: str, rows: Iterator[Sequence[str]]) -> str:
    ruler = "|" + "---|" * (title.count("|") - 1)
    return "\n".join([title, ruler, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"
