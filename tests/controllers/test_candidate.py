"""A candidate on trial is compared on live outcomes, promoted by a rule, and never harms the active model."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.api.client import Client
from tests.fakes import FakeCluster
from tests.outcomes.laws import LAWS, Run, runs

from vramcast.app import build
from vramcast.forecast.catalog import builtin_artifact
from vramcast.forecast.forecast import UNADJUSTED
from vramcast.forecast.model import MANIFEST, MODEL, ModelForecaster
from vramcast.names import PodUid, Product
from vramcast.outcomes.comparison import Standing
from vramcast.outcomes.outcome import Outcome
from vramcast.settings import load_settings
from vramcast.task.run_status import Ending
from vramcast.task.task import Task
from vramcast.task.vocabulary import Architecture, Level
from vramcast.workers import Workers

A100 = Product("NVIDIA-A100-SXM4-40GB")
TASKS = [
    Task(Level.SUMMARY, parameters=10**7 * n, activations=10**6 * n, batch_size=16, architecture=Architecture.CNN)
    for n in range(1, 9)
]


async def offload(call: Callable[..., Any], *arguments: Any) -> Any:
    await asyncio.sleep(0)
    return call(*arguments)


def write_candidate(directory: Path, version: str = "candidate-1", *, width: float = 1.0) -> Path:
    """Write the built-in artifact under another version, with its calibration factors multiplied by `width`."""
    directory.mkdir(exist_ok=True)
    shutil.copy(builtin_artifact() / MODEL, directory)
    manifest = json.loads((builtin_artifact() / MANIFEST).read_text()) | {"version": version}
    for cell in manifest["calibration"].values():
        cell["factors"] = {risk: factor * width for risk, factor in cell["factors"].items()}
    (directory / MANIFEST).write_text(json.dumps(manifest))
    return directory


class Stage:
    """A learner with a candidate on trial, and outcomes that follow the active model's forecasts."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        flags = {"candidate_artifact": str(directory), "candidate_outcomes": 30, **settings}
        app = build(load_settings(flags, {}), FakeCluster(), Workers.all(offload))
        assert app.learner.trial is not None
        self.learner, self.trial, self.forecaster = app.learner, app.learner.trial, app.service.forecaster

    def record_outcomes(self, count: int, need_factor: float = 1.0, seed: int = 1) -> None:
        for run in runs(LAWS[0], seed, count):
            task = TASKS[run.number % len(TASKS)]
            self.learner.record(self.outcome(run, task, need_factor), task)
        if asyncio.run(self.trial.compare_waiting(offload, self.learner.teach)):
            self.learner.promote()

    def outcome(self, run: Run, task: Task, need_factor: float) -> Outcome:
        forecast = self.forecaster.forecast(task, A100)
        base = forecast.median_bytes / forecast.adjustment.median
        peak = round(base * need_factor * run.need_bytes / run.median_bytes)
        return Outcome(
            PodUid(f"{run.number}"), "ns/p", "", "f", forecast.family, task.level, A100, forecast.model_version,
            forecast.risk, forecast.median_bytes, forecast.bound_bytes, peak, Ending.SUCCEEDED, 0.0,
            adjustment=forecast.adjustment,
        )  # fmt: skip

    def version(self) -> str:
        return self.forecaster.forecast(TASKS[0], A100).model_version

    def watch(self) -> None:
        asyncio.run(self.trial.watch(offload))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_candidate(tmp_path / "candidate")


def test_the_candidate_forecasts_every_outcome_while_the_active_model_stays(directory: Path) -> None:
    stage = Stage(directory)
    active = stage.version()
    stage.record_outcomes(40)
    assert stage.trial.candidate is not None
    assert len(stage.trial.candidate.comparison) == 40
    assert stage.trial.standing() is Standing.READY
    assert stage.version() == active != "candidate-1"


def test_manual_promotion_only_reports_that_the_candidate_is_ready(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="manual")
    stage.record_outcomes(60)
    assert (stage.trial.standing(), stage.trial.promotions) == (Standing.READY, 0)


def test_a_candidate_that_is_no_worse_is_promoted_with_its_calibration(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.record_outcomes(29, need_factor=1.2)
    assert stage.version() != "candidate-1"
    stage.record_outcomes(1, need_factor=1.2, seed=2)
    assert stage.version() == "candidate-1"
    assert stage.trial.promotions == 1
    (cell,) = stage.learner.calibrator.cells()
    assert cell.outcomes == 30
    assert stage.forecaster.forecast(TASKS[0], A100).adjustment.median == pytest.approx(1.2, abs=0.05)


def test_a_candidate_that_reserves_far_too_much_or_too_little_is_not_promoted(tmp_path: Path) -> None:
    for width in (8.0, 0.02):
        stage = Stage(
            write_candidate(tmp_path / f"c{width}", width=width), candidate_promotion="auto", calibration="off"
        )
        stage.record_outcomes(60)
        assert stage.trial.standing() is Standing.WORSE, width
        assert stage.trial.promotions == 0


def test_a_new_manifest_is_a_new_candidate_with_an_empty_comparison(directory: Path) -> None:
    stage = Stage(directory)
    stage.record_outcomes(40)
    write_candidate(directory, "candidate-2")
    stage.watch()
    assert stage.trial.candidate is not None
    assert stage.trial.candidate.version == "candidate-2"
    assert stage.trial.standing() is Standing.WAITING
    stage.watch()
    assert stage.trial.loads == {"ok": 2, "failed": 0}


def test_a_candidate_may_appear_later_and_disappear_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "candidate")
    assert stage.trial.standing() is Standing.NONE
    write_candidate(tmp_path / "candidate")
    stage.watch()
    assert stage.trial.standing() is Standing.WAITING
    shutil.rmtree(tmp_path / "candidate")
    stage.watch()
    assert stage.trial.standing() is Standing.NONE
    assert stage.trial.loads["failed"] == 0


def damage_model(directory: Path) -> None:
    (directory / MODEL).write_bytes(b"no model")


def damage_graph(directory: Path) -> None:
    """The checksum matches, but the file is not ONNX."""
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MODEL).write_bytes(b"")
    manifest["sha256"] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    (directory / MANIFEST).write_text(json.dumps(manifest))


def damage_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_text("{")


@pytest.mark.parametrize("damage", [damage_model, damage_graph, damage_manifest])
def test_a_corrupt_candidate_is_reported_once_and_leaves_the_active_model_alone(
    directory: Path, damage: Callable[[Path], None]
) -> None:
    damage(directory)
    stage = Stage(directory, candidate_promotion="auto")
    stage.watch()
    stage.record_outcomes(40)
    assert stage.trial.standing() is Standing.UNUSABLE
    assert stage.trial.loads == {"ok": 0, "failed": 1}
    assert stage.version().startswith("bigru-transformer")
    write_candidate(directory)
    stage.watch()
    assert stage.trial.standing() is Standing.WAITING


def test_a_candidate_that_loads_but_cannot_forecast_is_unusable(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text()) | {"calibration": {}}
    (directory / MANIFEST).write_text(json.dumps(manifest))
    stage = Stage(directory, candidate_promotion="auto")
    stage.record_outcomes(40)
    stage.watch()
    assert stage.trial.standing() is Standing.UNUSABLE
    assert stage.trial.loads["failed"] == 1
    assert stage.version().startswith("bigru-transformer")


def test_runs_forecast_by_the_previous_model_calibrate_the_promoted_one(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    unfinished = [(stage.outcome(run, TASKS[0], 1.3), TASKS[0]) for run in runs(LAWS[0], 5, 25)]
    stage.record_outcomes(30)
    assert stage.version() == "candidate-1"
    before = stage.forecaster.forecast(TASKS[0], A100)
    for outcome, task in unfinished:
        stage.learner.record(outcome, task)
    asyncio.run(stage.trial.compare_waiting(offload, stage.learner.teach))
    (cell,) = stage.learner.calibrator.cells()
    assert cell.outcomes == 55
    assert stage.forecaster.forecast(TASKS[0], A100).bound_bytes > 1.1 * before.bound_bytes


def test_the_comparison_continues_after_a_restart(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.record_outcomes(20, need_factor=1.2)
    stored = json.loads(json.dumps(stage.learner.snapshot()))
    restarted = Stage(directory, candidate_promotion="auto")
    restarted.learner.restore(stored)
    assert restarted.learner.snapshot() == stage.learner.snapshot()
    restarted.record_outcomes(10, need_factor=1.2, seed=2)
    assert restarted.version() == "candidate-1"


def test_a_promoted_model_is_still_active_and_calibrated_after_a_restart(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.record_outcomes(40, need_factor=1.2)
    before = stage.forecaster.forecast(TASKS[0], A100)
    restarted = Stage(directory, candidate_promotion="auto")
    restarted.learner.restore(json.loads(json.dumps(stage.learner.snapshot())))
    assert restarted.forecaster.forecast(TASKS[0], A100) == before
    restarted.watch()
    assert restarted.trial.standing() is Standing.NONE


def test_a_candidate_that_becomes_the_configured_artifact_keeps_its_calibration(directory: Path) -> None:
    stage = Stage(directory)
    stage.record_outcomes(40, need_factor=1.2)
    configured = Stage(directory / "none", artifact=str(directory))
    configured.learner.restore(json.loads(json.dumps(stage.learner.snapshot())))
    assert configured.version() == "candidate-1"
    assert configured.forecaster.forecast(TASKS[0], A100).adjustment.median == pytest.approx(1.2, abs=0.05)


def test_a_reset_restores_the_configured_artifact(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.record_outcomes(40)
    assert stage.version() == "candidate-1"
    stage.learner.restore(None)
    assert stage.version() != "candidate-1"
    assert stage.forecaster.forecast(TASKS[0], A100).adjustment == UNADJUSTED
    stage.watch()
    assert stage.trial.standing() is Standing.WAITING


def test_damaged_candidate_state_leaves_the_active_models_calibration_intact(directory: Path) -> None:
    stage = Stage(directory)
    stage.record_outcomes(25, need_factor=1.2)
    stored = json.loads(json.dumps(stage.learner.snapshot()))
    stored["candidate"]["active"] = [1]
    restarted = Stage(directory)
    restarted.learner.restore(stored)
    assert list(restarted.learner.calibrator.cells()) == list(stage.learner.calibrator.cells())
    assert restarted.trial.standing() is Standing.WAITING


def test_every_comparison_and_promotion_changes_the_revision_to_save(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    revisions = [stage.learner.revision]
    for seed in range(40):
        stage.record_outcomes(1, seed=seed)
        revisions.append(stage.learner.revision)
    assert stage.trial.promotions == 1
    assert revisions == sorted(set(revisions))


def test_the_metrics_show_the_active_and_the_candidate_model(directory: Path) -> None:
    settings = load_settings({"candidate_artifact": str(directory)}, {})
    app = build(settings, FakeCluster(), Workers.all(offload))
    trial = app.learner.trial
    assert trial is not None
    assert isinstance(trial.active, ModelForecaster)
    task = TASKS[0]
    forecast = app.service.forecaster.forecast(task, A100)
    outcome = Outcome(
        PodUid("u"), "ns/p", "", "f", forecast.family, task.level, A100, forecast.model_version, forecast.risk,
        forecast.median_bytes, forecast.bound_bytes, forecast.median_bytes, Ending.SUCCEEDED, 0.0,
    )  # fmt: skip
    app.learner.record(replace(outcome, peak_bytes=round(outcome.median_bytes * 1.01)), task)
    asyncio.run(trial.compare_waiting(offload, app.learner.teach))
    client = Client(app.service)
    for role in ("active", "candidate"):
        assert client.metric(f'vramcast_comparison_outcomes{{role="{role}"}}') == 1
        assert client.metric(f'vramcast_comparison_error_ratio{{role="{role}"}}') == pytest.approx(0.01, abs=1e-3)
    assert client.metric('vramcast_candidate_standing{standing="waiting"}') == 1
    info = 'vramcast_model_info{role="candidate",source="model",version="candidate-1"}'
    assert client.metric(info) == 1
