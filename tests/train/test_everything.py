"""`vramcast train` from scratch on made runs: every part of an artifact, and one manifest that names them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.test_speed import SHORT as SHORT_SPEED
from tests.train.test_speed import write_benchmarks
from tests.train.test_training import SHORT, TINY, write_data
from vramcast.forecast.model import MANIFEST
from vramcast.train.artifact_parts import name_parts
from vramcast.train.commands import stages_table
from vramcast.train.everything import TrainedParts, TrainingPlan, train_everything
from vramcast.train.progress import Progress
from vramcast.train.totals_blend import Schedules
from vramcast.train.totals_network import TotalsSchedule
from vramcast.train.totals_trees import TreeSchedule

pytestmark = pytest.mark.filterwarnings("ignore")  # from third-party libraries
pytest.importorskip("timm")

SIMULATED = (
    "torchvision/alexnet", "hf/bert-tiny", "timm/resnet18", "timm/vit_tiny_patch16_224", "timm/mobilenetv2_100",
    "timm/convnext_atto",
)  # fmt: skip
PLAN = TrainingPlan(
    1,
    TINY,
    SHORT,
    Schedules(TreeSchedule(rounds=4), TotalsSchedule(steps=3, networks=2, jobs=4)),
    SIMULATED,
    SHORT_SPEED,
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, TrainedParts, Progress]:
    data, out = tmp_path_factory.mktemp("everything") / "data", tmp_path_factory.mktemp("artifact")
    write_data(data)
    write_benchmarks(data)
    progress = Progress(quiet=True)
    return data, out, train_everything(data, out, progress, PLAN), progress


def _manifest(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / MANIFEST).read_text()))


def test_one_manifest_names_every_part_by_version_and_hash(trained: tuple[Path, Path, TrainedParts, Progress]) -> None:
    _, out, made, _ = trained
    parts = _manifest(out)["parts"]
    assert set(parts) == {"totals", "speed"}
    assert made.speed is not None
    for name, own in (("totals", made.totals), ("speed", made.speed)):
        assert parts[name]["version"] == own["version"]
        assert parts[name]["sha256"] == hashlib.sha256((out / parts[name]["model"]).read_bytes()).hexdigest()
        assert json.loads((out / parts[name]["manifest"]).read_text())["version"] == own["version"]


def test_every_stage_tells_how_long_it_took(trained: tuple[Path, Path, TrainedParts, Progress]) -> None:
    seconds = trained[3].stage_seconds
    assert list(seconds) == [
        "runs and their features", "networks", "trees on the networks' unseen rows", "bounds of recorded forecasts",
        "totals", "time per step",
    ]  # fmt: skip
    assert stages_table(seconds).row_count == len(seconds) + 1


def test_a_second_command_makes_the_same_artifact(trained: tuple[Path, Path, TrainedParts, Progress]) -> None:
    data, out, _, _ = trained
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in (".json", ".onnx")}
    train_everything(data, out, Progress(quiet=True), PLAN)
    assert {name: (out / name).read_bytes() for name in before} == before


def test_without_benchmarks_everything_else_is_trained(
    trained: tuple[Path, Path, TrainedParts, Progress], tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_data(data)
    assert train_everything(data, out, Progress(quiet=True), PLAN).speed is None
    assert set(_manifest(out)["parts"]) == {"totals"}


def test_a_part_that_is_trained_again_is_named_anew(trained: tuple[Path, Path, TrainedParts, Progress]) -> None:
    out = trained[1]
    manifest = json.loads((out / "speed.json").read_text())
    (out / "speed.json").write_text(json.dumps(manifest | {"version": "speed-other"}))
    name_parts(out)
    assert _manifest(out)["parts"]["speed"]["version"] == "speed-other"
    (out / "speed.json").write_text(json.dumps(manifest))
