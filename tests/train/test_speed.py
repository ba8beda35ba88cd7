"""The model of step times, end to end on made benchmarks: read, train, export, load; and what is left out."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vramcast.errors import InvalidInput
from vramcast.forecast.speed_artifact import MANIFEST, MODEL
from vramcast.forecast.step_time import StepTimer
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level, Precision
from vramcast.train.progress import Progress
from vramcast.train.speed import train_speed
from vramcast.train.speed_data import assign, make_data
from vramcast.train.speed_evaluation import evaluate_speed
from vramcast.train.speed_network import SpeedSchedule
from vramcast.train.speed_runs import read_speed_runs

pytestmark = pytest.mark.filterwarnings("ignore")  # from third-party libraries
pytest.importorskip("timm")

QUIET = Progress(quiet=True)
SHORT = SpeedSchedule(epochs=2, rows_per_epoch=16, batch=8)
_MODELS = {
    "resnet18": 11.69, "resnet34": 21.80, "vit_tiny_patch16_224": 5.72, "mobilenetv2_100": 3.50, "densenet121": 7.98,
    "convnext_atto": 3.70, "mixer_s32_224": 19.10, "vgg11": 132.86,
}  # fmt: skip
_COLUMNS = ("model", "samples_per_sec", "step_time", "batch_size", "img_size")


def _row(mode: str, model: str, batch: int, milliseconds: float, parameters: float) -> dict[str, Any]:
    figures = (model, 1e3 * batch / milliseconds, milliseconds, batch, 224)
    names = ("model", *(f"{mode}_{name}" for name in _COLUMNS[1:]))
    return {**dict(zip(names, figures, strict=True)), "param_count": parameters}


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_benchmarks(directory: Path) -> None:
    rows = [_row("train", name, 64, 50.0 + 9 * at, size) for at, (name, size) in enumerate(_MODELS.items())]
    wrong = [
        _row("train", "no_such_model", 64, 50.0, 1.0),
        _row("train", "resnet50", 64, 50.0, 99.0),
        _row("train", "resnet18", 64, 50.0, 11.69) | {"train_samples_per_sec": 1.0},
        _row("train", "resnet18", 64, 50.0, 11.69) | {"train_step_time": ""},
    ]
    _write(directory / "speed/benchmark-train-amp-nchw-pt112-cu113-rtx3090.csv", rows + wrong)
    fast = [_row("infer", name, 256, 20.0 + 3 * at, size) for at, (name, size) in enumerate(_MODELS.items())]
    _write(directory / "speed/benchmark-infer-amp-nchw-pt240-cu124-rtx4090.csv", fast)
    jobs = ["('ResNet-50 (batch size 32)', 1)", "('ResNet-50 (batch size 32)', 4)", "('A3C', 1)"]
    _write(
        directory / "extra/gavel_colocation.csv",
        [{"gpu": "v100", "jobA": job, "jobB": "x", "tputA_iso": 8.0} for job in jobs],
    )


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    write_benchmarks(tmp_path)
    return tmp_path


def test_rows_that_cannot_be_trusted_are_counted_by_reason(benchmarks: Path) -> None:
    found = read_speed_runs(benchmarks)
    assert len(found.runs) == 2 * len(_MODELS) + 1
    assert dict(found.left_out) == {
        "timm-train-nchw: unknown model": 1,
        "timm-train-nchw: other parameters than the catalog's network": 1,
        "timm-train-nchw: impossible figures": 1,
        "timm-train-nchw: a figure is missing": 1,
        "gavel: unknown network, several GPUs, or it did not run": 2,
    }


def test_a_family_is_never_on_both_sides_of_a_fold(benchmarks: Path) -> None:
    data = make_data(read_speed_runs(benchmarks), QUIET)
    folds = assign(data.group)
    assert all(len(set(folds[data.group == group])) == 1 for group in set(data.group))
    assert len(set(data.group[[run.startswith("res") for run in data.group]])) == 1  # ResNets are one family


def test_training_is_repeatable_and_what_it_writes_can_be_used(benchmarks: Path, tmp_path: Path) -> None:
    once, again = tmp_path / "once", tmp_path / "again"
    manifest = train_speed(benchmarks, once, QUIET, SHORT)
    train_speed(benchmarks, again, QUIET, SHORT)
    assert (once / MODEL).read_bytes() == (again / MODEL).read_bytes()
    assert json.loads((once / MANIFEST).read_text()) == manifest
    assert manifest["parity"] < 1e-4
    assert {"what ships", "Transformer-BiGRU", "LightGBM", "ExtraTrees"} <= set(
        manifest["unseen_families"]["timm-train-nchw"]
    )
    judged = evaluate_speed(benchmarks, once, QUIET)
    assert {entry["slice"]: entry["rows"] for entry in judged["slices"]} == {
        "speed/benchmark-train-amp-nchw-pt112-cu113-rtx3090": len(_MODELS),
        "speed/benchmark-infer-amp-nchw-pt240-cu124-rtx4090": len(_MODELS),
        "speed/gavel_colocation": 1,
    }
    assert all(0.0 < entry["step_mape"] < 1.0 for entry in judged["slices"])
    assert judged["speed_left_out"]["timm-train-nchw: unknown model"] == 1
    task = Task(Level.NAME, model="timm/resnet18", batch_size=8, precision=Precision.AMP_FP16)
    timer, product = StepTimer(once), Product("NVIDIA-GeForce-RTX-3090")
    few, many = (timer.forecast(replace(task, batch_size=size), product).seconds for size in (8, 80))
    assert few is not None
    assert many is not None
    assert few < many


def test_evaluating_without_benchmarks_or_model_says_so(benchmarks: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    assert evaluate_speed(empty, empty, QUIET) == {"slices": [], "speed_left_out": {}}
    judged = evaluate_speed(benchmarks, empty, QUIET)
    assert judged["slices"] == []
    assert list(judged["speed_left_out"].values()) == [2 * len(_MODELS) + 1]


def test_a_directory_without_benchmarks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no speed/\*\.csv"):
        read_speed_runs(tmp_path)
    _write(tmp_path / "speed/mine.csv", [{"model": "resnet18"}])
    with pytest.raises(InvalidInput, match=r"mine\.csv: expected a name such as"):
        read_speed_runs(tmp_path)
