"""A tiny network end to end on generated runs: train, load, evaluate, forecast, refuse damaged artifacts."""

from __future__ import annotations

import csv
import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.forecast.networks import mlp, traced_cnn
from vramcast.errors import ArtifactUnusable
from vramcast.forecast.description import encode_profile, parse_profile
from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.forecast.model import MANIFEST, MODEL, ModelForecaster, choose_forecaster, load_artifact
from vramcast.forecast.physics import described_prior
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level
from vramcast.train.evaluation import evaluate
from vramcast.train.fitting import Schedule
from vramcast.train.network import Shape
from vramcast.train.pipeline import train
from vramcast.train.progress import Progress
from vramcast.train.records import make_task

pytestmark = pytest.mark.filterwarnings("ignore")  # from third-party libraries

A100 = "NVIDIA-A100-SXM4-40GB"
TINY = Shape(width=8, recurrent_width=4, heads=2, layers=1, facts_width=8)
SHORT = Schedule(epochs=3, batch=16)
QUIET = Progress(quiet=True)
_MIB = 1 << 20


def _profiles() -> list[dict[str, Any]]:
    dense = [mlp(width=64 * (1 + index % 5), depth=1 + index % 3) for index in range(15)]
    convolved = [traced_cnn(8 * (1 + index % 4), 32, 2 + index % 3, f"family{index % 10}") for index in range(12)]
    return [*dense, *convolved]


def write_data(directory: Path) -> None:
    (directory / "profiles").mkdir(parents=True)
    profiles = {profile["id"]: profile for profile in _profiles()}
    with gzip.open(directory / "profiles" / "made.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(profile) + "\n" for profile in profiles.values())
    columns = ["source", "profile", "gpu", "batch_size", "precision", "optimizer", "memory_mib", "memory_kind",
               "outcome", "gpu_util", "sm_active", "sm_occupancy"]  # fmt: skip
    with (directory / "measurements.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for number, profile in enumerate(profiles.values()):
            network = parse_profile(profile)
            source = "gpumemnet-mlp" if profile["family"] == "mlp" else "timm-a100"
            for batch in (8, 32, 128):
                prior = described_prior(network, make_task(network, batch, "adam", "fp32"), Product(A100))
                mib = prior.total_bytes / _MIB * 1.1
                outcome = "oom" if number == 0 and batch == 128 else "ok"
                use = f"{min(0.9, math.log(batch) / 6):.3f}"
                writer.writerow([source, profile["id"], A100, batch, "fp32", "adam", f"{mib:.0f}", "nvml-device",
                                 outcome, use, use, ""])  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    data, out = tmp_path_factory.mktemp("data") / "runs", tmp_path_factory.mktemp("out")
    write_data(data)
    train(data, out, [1], QUIET, TINY, SHORT)
    return data, out


def test_the_artifact_names_its_training_data(trained: tuple[Path, Path]) -> None:
    manifest = json.loads((trained[1] / MANIFEST).read_text())
    assert {entry["name"] for entry in manifest["training_data"]} == {"gpumemnet-mlp", "timm-a100"}
    assert manifest["parity"] <= 1e-4
    assert (trained[1] / "loss.png").exists()
    assert (trained[1] / "predicted.png").exists()


def test_a_second_training_resumes_from_the_first_and_gives_the_same_model(trained: tuple[Path, Path]) -> None:
    before = (trained[1] / MODEL).read_bytes()
    manifest = train(trained[0], trained[1], [1], QUIET, TINY, SHORT)
    assert (trained[1] / MODEL).read_bytes() == before
    assert manifest["networks"] == 5


def test_networks_of_an_artifact_can_be_kept(trained: tuple[Path, Path], tmp_path: Path) -> None:
    manifest = train(trained[0], tmp_path, [1], QUIET, TINY, SHORT, trained[1])
    assert manifest["networks_of"] == json.loads((trained[1] / MANIFEST).read_text())["version"]
    before, after = evaluate(*trained, QUIET), evaluate(trained[0], tmp_path, QUIET)
    for one, other in zip(before["slices"], after["slices"], strict=True):
        assert one["network_median_error"] == pytest.approx(other["network_median_error"], abs=1e-4)


def test_the_manifest_says_how_unseen_architectures_are_covered_one_by_one(trained: tuple[Path, Path]) -> None:
    evenness = json.loads((trained[1] / MANIFEST).read_text()).get("evenness")
    assert evenness is not None
    for entry in evenness.values():
        assert 0.0 <= entry["worst"] <= 1.0
        assert entry["groups"] > 0


def test_the_report_has_a_slice_per_source(trained: tuple[Path, Path]) -> None:
    report = evaluate(*trained, QUIET)
    by_name = {entry["slice"]: entry for entry in report["slices"]}
    assert by_name["timm-a100"]["rows"] > 0
    assert set(by_name["timm-a100"]["coverage"]) == {"0.1", "0.05", "0.01"}
    assert by_name["gpumemnet-mlp"]["oom_rows"] == 1
    assert report["latency_ms"]["p50"] > 0


@pytest.mark.parametrize("level", [Level.PROFILE, Level.SUMMARY])
def test_a_forecast_explains_itself(trained: tuple[Path, Path], level: Level) -> None:
    forecaster = ModelForecaster(load_artifact(trained[1]), default_risk=0.05)
    task = Task(
        level=level, profile=encode_profile(traced_cnn()) if level is Level.PROFILE else None, batch_size=16,
        architecture=Architecture.CNN, parameters=10**6, activations=10**6,
    )  # fmt: skip
    forecast = forecaster.forecast(task, Product(A100))
    assert forecast.bound_bytes >= forecast.median_bytes > 0
    assert forecast.parts[-1].name == "learned correction"
    assert sum(part.size_bytes for part in forecast.parts) == pytest.approx(forecast.median_bytes, rel=0.02)
    assert forecast.utilization.sm_active is not None


def test_a_task_unlike_the_training_data_gets_a_warning(trained: tuple[Path, Path]) -> None:
    forecaster = ModelForecaster(load_artifact(trained[1]), default_risk=0.05)
    strange = Task(level=Level.SUMMARY, batch_size=10**6, parameters=10**12, activations=10**10, layers=10**5)
    forecast = forecaster.forecast(strange, Product("Tesla-K80"))
    assert any("unlike the training data" in assumption for assumption in forecast.assumptions)


def _copy(trained: Path, target: Path) -> Path:
    for name in (MODEL, MANIFEST):
        (target / name).write_bytes((trained / name).read_bytes())
    return target


def test_a_missing_artifact_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ArtifactUnusable, match="no artifact at"):
        load_artifact(tmp_path)


def test_a_changed_model_is_refused(trained: tuple[Path, Path], tmp_path: Path) -> None:
    directory = _copy(trained[1], tmp_path)
    (directory / MODEL).write_bytes((directory / MODEL).read_bytes() + b" ")
    with pytest.raises(ArtifactUnusable, match="sha256"):
        load_artifact(directory)


def test_another_feature_layout_is_refused(trained: tuple[Path, Path], tmp_path: Path) -> None:
    directory = _copy(trained[1], tmp_path)
    manifest = json.loads((directory / MANIFEST).read_text()) | {"features": "features-0"}
    (directory / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactUnusable, match="features-0"):
        load_artifact(directory)


def test_a_damaged_artifact_is_an_error_unless_physics_may_replace_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactUnusable):
        choose_forecaster(str(tmp_path), 0.05, physics_if_unusable=False)
    assert isinstance(choose_forecaster(str(tmp_path), 0.05, physics_if_unusable=True), PhysicsForecaster)
    assert isinstance(choose_forecaster("physics", 0.05, physics_if_unusable=False), PhysicsForecaster)
