"""Fine-tuning on a cluster's own runs: more accurate on them, with honest figures, as an ordinary artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from tests.forecast.networks import mlp, traced_cnn
from vramcast.cli.records import write_records
from vramcast.errors import InvalidInput
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.description import encode_profile
from vramcast.forecast.model import MANIFEST, MODEL, ModelForecaster, load_artifact
from vramcast.names import Product
from vramcast.outcomes.records import short_hash
from vramcast.task.task import Task, parse_task
from vramcast.task.vocabulary import PREFIX
from vramcast.train.export import export
from vramcast.train.finetune import FineTuning, finetune
from vramcast.train.import_onnx import NotImportable, import_networks, replace_networks
from vramcast.train.network import ForecastNetwork, Shape
from vramcast.train.progress import Progress
from vramcast.train.trees import Correction
from vramcast.train.utilization import UtilizationTrees

pytestmark = pytest.mark.filterwarnings("ignore")  # from third-party libraries

A100 = Product("NVIDIA-A100-SXM4-40GB")
QUIET = Progress(quiet=True)
MORE = 1.25  # networks with convolutions need this many times the base's forecast


def descriptions(seed: int, count: int) -> list[dict[str, str]]:
    """A third each: summaries, traced convolutional networks, dense networks."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        batch, optimizer = int(rng.choice([8, 16, 32, 64, 128])), str(rng.choice(["sgd", "adam"]))
        settings = {"batch-size": str(batch), "optimizer": optimizer}
        match number % 3:
            case 0:
                settings |= {"architecture": "cnn", "parameters": str(int(rng.integers(5, 90)) * 10**6),
                          "activations": str(int(rng.integers(2, 40)) * 10**6), "layers": "50"}  # fmt: skip
            case 1:
                profile = traced_cnn(8 * int(rng.integers(2, 8)), 64, int(rng.integers(2, 6)), "resnet")
                settings["profile"] = encode_profile(profile)
            case _:
                profile = mlp(width=64 * int(rng.integers(1, 20)), depth=int(rng.integers(1, 5)))
                settings["profile"] = encode_profile(profile)
        made.append(settings)
    return made


def task_of(settings: dict[str, str]) -> Task:
    task = parse_task({PREFIX + name: text for name, text in settings.items()})
    assert task is not None
    return task


def true_need(base: ModelForecaster, settings: dict[str, str], rng: np.random.Generator) -> int:
    forecast = base.forecast(task_of(settings), A100)
    more = MORE if forecast.family == "cnn" else 1.0
    return round(forecast.median_bytes * more * float(np.exp(0.03 * rng.standard_normal())))


def write_runs(directory: Path, base: ModelForecaster, count: int, ending: str = "succeeded") -> None:
    rng = np.random.default_rng(7)
    runs, profiles = [], {}
    for number, settings in enumerate(descriptions(1, count)):
        text = settings.get("profile", "")
        profiles |= {short_hash(text): text} if text else {}
        runs.append({
            "run": f"{ending}-{number}", "product": A100, "profile": short_hash(text) if text else "", "shared": True,
            "task": {name: value for name, value in settings.items() if name != "profile"}, "ending": ending,
            "peak_bytes": true_need(base, settings, rng), "gpu_utilization": 0.5, "ended_at": 0.0, "model_version": "m",
        })  # fmt: skip
    write_records({"runs": runs, "profiles": profiles}, directory)


@pytest.fixture(scope="module")
def base() -> ModelForecaster:
    return ModelForecaster(load_artifact(builtin_artifact()), 0.05)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, base: ModelForecaster) -> tuple[Path, dict[str, Any]]:
    data, out = tmp_path_factory.mktemp("observed"), tmp_path_factory.mktemp("tuned")
    write_runs(data, base, 120)
    return out, finetune(data, builtin_artifact(), out, QUIET, FineTuning(epochs=3))


def errors(forecaster: ModelForecaster, base: ModelForecaster) -> tuple[np.ndarray, np.ndarray]:
    """On runs outside the tuning data: the error of the median, and whether the bound held."""
    rng = np.random.default_rng(99)
    missed, kept = [], []
    for settings in descriptions(2, 60):
        need = true_need(base, settings, rng)
        forecast = forecaster.forecast(task_of(settings), A100)
        missed.append(abs(forecast.median_bytes / need - 1))
        kept.append(need <= forecast.bound_bytes)
    return np.array(missed), np.array(kept)


def test_it_is_more_accurate_on_the_clusters_runs_than_its_base(tuned: tuple[Path, Any], base: ModelForecaster) -> None:
    forecaster = ModelForecaster(load_artifact(tuned[0]), 0.05)
    (before, _), (after, kept) = errors(base, base), errors(forecaster, base)
    assert before.mean() > 0.12
    assert after.mean() < 0.5 * before.mean()
    assert kept.mean() >= 0.9


def test_the_manifest_names_its_base_and_has_figures_on_held_out_runs(tuned: tuple[Path, dict[str, Any]]) -> None:
    _, manifest = tuned
    shipped = json.loads((builtin_artifact() / MANIFEST).read_text())
    assert manifest["base"] == {"version": shipped["version"], "sha256": shipped["sha256"]}
    assert manifest["version"] != shipped["version"]
    assert manifest["training_data"][-1]["name"] == "observed"
    (before,), (after,) = ([e for e in manifest[k] if e["slice"] == "observed"] for k in ("base_accuracy", "accuracy"))
    assert after["rows"] == before["rows"] == 120
    assert after["mean_error"] < 0.6 * before["mean_error"]
    assert after["coverage"]["0.05"] > before["coverage"]["0.05"] + 0.15


def test_cells_without_runs_in_the_cluster_keep_the_bases_calibration(tuned: tuple[Path, dict[str, Any]]) -> None:
    shipped = json.loads((builtin_artifact() / MANIFEST).read_text())["calibration"]
    assert set(shipped) <= set(tuned[1]["calibration"])
    untouched = [key for key in shipped if "transformer" in key]
    assert untouched
    assert all(tuned[1]["calibration"][key] == shipped[key] for key in untouched)


def test_too_few_runs_are_refused(tmp_path: Path, base: ModelForecaster) -> None:
    write_runs(tmp_path, base, 30)
    write_runs(tmp_path, base, 60, ending="stopped")
    with pytest.raises(InvalidInput, match="30 finished runs"):
        finetune(tmp_path, builtin_artifact(), tmp_path / "out", QUIET)


TINY = Shape(width=8, recurrent_width=4, heads=2, layers=1, facts_width=8)


def tiny_networks(seed: int) -> list[ForecastNetwork]:
    torch.manual_seed(seed)
    networks = [ForecastNetwork(TINY).eval() for _ in range(3)]
    with torch.no_grad():
        for network in networks:
            for tensor in (*network.parameters(), *network.buffers()):
                tensor.add_(0.1 * torch.rand_like(tensor))
    return networks


def weights(model: onnx.ModelProto) -> list[bytes]:
    """In the order of use in the graph."""
    values = {initializer.name: numpy_helper.to_array(initializer) for initializer in model.graph.initializer}
    return [values[name].tobytes() for node in model.graph.node for name in node.input if name in values]


def test_networks_can_be_imported_from_a_graph_and_put_into_another() -> None:
    first, second = (
        onnx.load_from_string(export(tiny_networks(seed), Correction(), UtilizationTrees())) for seed in (1, 2)
    )
    imported = import_networks(first, TINY, 3)
    expected = weights(first)
    assert weights(first) != weights(second)
    for model in (first, second):
        replaced = onnx.load_from_string(replace_networks(model, imported.networks, imported.network_nodes))
        assert weights(replaced) == expected


def test_a_graph_of_another_shape_is_refused() -> None:
    model = onnx.load_from_string(export(tiny_networks(1), Correction(), UtilizationTrees()))
    with pytest.raises(NotImportable):
        import_networks(model, Shape(), 3)


def test_the_artifact_loads_like_any_other(tuned: tuple[Path, Any]) -> None:
    artifact = load_artifact(tuned[0])
    assert artifact.version == tuned[1]["version"]
    assert (tuned[0] / MODEL).stat().st_size == pytest.approx((builtin_artifact() / MODEL).stat().st_size, rel=0.01)
