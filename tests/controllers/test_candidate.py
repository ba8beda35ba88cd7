"""A candidate on trial: compared on live outcomes, promoted by its rule, never a danger to the active model."""

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

A100 = Product("NVIDIA-A100-SXM4-40GB")
TASKS = [
    Task(Level.SUMMARY, parameters=10**7 * n, activations=10**6 * n, batch_size=16, architecture=Architecture.CNN)
    for n in range(1, 9)
]


async def offload(call: Callable[..., Any], *arguments: Any) -> Any:
    await asyncio.sleep(0)
    return call(*arguments)


def write_candidate(directory: Path, version: str = "candidate-1", *, width: float = 1.0) -> Path:
    """The built-in artifact under another name, its factors times `width`."""
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
        app = build(load_settings(flags, {}), FakeCluster(), offload)
        assert app.learner.trial is not None
        self.learner, self.trial, self.forecaster = app.learner, app.learner.trial, app.service.forecaster

    def live(self, count: int, more: float = 1.0, seed: int = 1) -> None:
        for run in runs(LAWS[0], seed, count):
            task = TASKS[run.number % len(TASKS)]
            self.learner.record(self.outcome(run, task, more), task)
        if asyncio.run(self.trial.compare_waiting(offload, self.learner.teach)):
            self.learner.promote()

    def outcome(self, run: Run, task: Task, more: float) -> Outcome:
        said = self.forecaster.forecast(task, A100)
        base = said.median_bytes / said.adjustment.median
        peak = round(base * more * run.need_bytes / run.median_bytes)
        return Outcome(
            PodUid(f"{run.number}"), "ns/p", "", "f", said.family, task.level, A100, said.model_version, said.risk,
            said.median_bytes, said.bound_bytes, peak, Ending.SUCCEEDED, 0.0, adjustment=said.adjustment,
        )  # fmt: skip

    def version(self) -> str:
        return self.forecaster.forecast(TASKS[0], A100).model_version

    def watch(self) -> None:
        asyncio.run(self.trial.watch(offload))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_candidate(tmp_path / "candidate")


def test_the_candidate_forecasts_every_outcome_and_nobody_sees_it(directory: Path) -> None:
    stage = Stage(directory)
    active = stage.version()
    stage.live(40)
    assert stage.trial.candidate is not None
    assert len(stage.trial.candidate.comparison) == 40
    assert stage.trial.standing() is Standing.READY
    assert stage.version() == active != "candidate-1"


def test_with_manual_promotion_being_ready_is_only_told(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="manual")
    stage.live(60)
    assert (stage.trial.standing(), stage.trial.promotions) == (Standing.READY, 0)


def test_a_candidate_that_is_no_worse_takes_over_with_what_it_was_taught(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.live(29, more=1.2)
    assert stage.version() != "candidate-1"
    stage.live(1, more=1.2, seed=2)
    assert stage.version() == "candidate-1"
    assert stage.trial.promotions == 1
    (cell,) = stage.learner.calibrator.cells()
    assert cell.outcomes == 30
    assert stage.forecaster.forecast(TASKS[0], A100).adjustment.median == pytest.approx(1.2, abs=0.05)


def test_one_that_reserves_much_more_or_falls_short_stays_on_trial(tmp_path: Path) -> None:
    for width in (8.0, 0.02):
        stage = Stage(
            write_candidate(tmp_path / f"c{width}", width=width), candidate_promotion="auto", calibration="off"
        )
        stage.live(60)
        assert stage.trial.standing() is Standing.WORSE, width
        assert stage.trial.promotions == 0


def test_a_new_manifest_is_a_new_candidate_that_begins_afresh(directory: Path) -> None:
    stage = Stage(directory)
    stage.live(40)
    write_candidate(directory, "candidate-2")
    stage.watch()
    assert stage.trial.candidate is not None
    assert stage.trial.candidate.version == "candidate-2"
    assert stage.trial.standing() is Standing.WAITING
    stage.watch()
    assert stage.trial.loads == {"ok": 2, "failed": 0}


def test_a_candidate_may_come_later_and_go_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "candidate")
    assert stage.trial.standing() is Standing.NONE
    write_candidate(tmp_path / "candidate")
    stage.watch()
    assert stage.trial.standing() is Standing.WAITING
    shutil.rmtree(tmp_path / "candidate")
    stage.watch()
    assert stage.trial.standing() is Standing.NONE
    assert stage.trial.loads["failed"] == 0


def spoil_model(directory: Path) -> None:
    (directory / MODEL).write_bytes(b"no model")


def spoil_graph(directory: Path) -> None:
    """As its manifest says, and no ONNX."""
    manifest = json.loads((directory / MANIFEST).read_text())
    (directory / MODEL).write_bytes(b"")
    manifest["sha256"] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    (directory / MANIFEST).write_text(json.dumps(manifest))


def spoil_manifest(directory: Path) -> None:
    (directory / MANIFEST).write_text("{")


@pytest.mark.parametrize("spoil", [spoil_model, spoil_graph, spoil_manifest])
def test_a_corrupt_candidate_never_harms_and_is_told_once(directory: Path, spoil: Callable[[Path], None]) -> None:
    spoil(directory)
    stage = Stage(directory, candidate_promotion="auto")
    stage.watch()
    stage.live(40)
    assert stage.trial.standing() is Standing.UNUSABLE
    assert stage.trial.loads == {"ok": 0, "failed": 1}
    assert stage.version().startswith("bigru-transformer")
    write_candidate(directory)
    stage.watch()
    assert stage.trial.standing() is Standing.WAITING


def test_a_candidate_that_loads_and_cannot_forecast_is_put_aside(directory: Path) -> None:
    manifest = json.loads((directory / MANIFEST).read_text()) | {"calibration": {}}
    (directory / MANIFEST).write_text(json.dumps(manifest))
    stage = Stage(directory, candidate_promotion="auto")
    stage.live(40)
    stage.watch()
    assert stage.trial.standing() is Standing.UNUSABLE
    assert stage.trial.loads["failed"] == 1
    assert stage.version().startswith("bigru-transformer")


def test_runs_that_the_former_model_had_forecast_teach_the_promoted_one(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    under_way = [(stage.outcome(run, TASKS[0], 1.3), TASKS[0]) for run in runs(LAWS[0], 5, 25)]
    stage.live(30)
    assert stage.version() == "candidate-1"
    before = stage.forecaster.forecast(TASKS[0], A100)
    for outcome, task in under_way:
        stage.learner.record(outcome, task)
    asyncio.run(stage.trial.compare_waiting(offload, stage.learner.teach))
    (cell,) = stage.learner.calibrator.cells()
    assert cell.outcomes == 55
    assert stage.forecaster.forecast(TASKS[0], A100).bound_bytes > 1.1 * before.bound_bytes


def test_a_restart_goes_on_with_the_comparison(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.live(20, more=1.2)
    stored = json.loads(json.dumps(stage.learner.snapshot()))
    again = Stage(directory, candidate_promotion="auto")
    again.learner.restore(stored)
    assert again.learner.snapshot() == stage.learner.snapshot()
    again.live(10, more=1.2, seed=2)
    assert again.version() == "candidate-1"


def test_after_a_restart_who_was_promoted_is_active_with_what_it_learned(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.live(40, more=1.2)
    before = stage.forecaster.forecast(TASKS[0], A100)
    again = Stage(directory, candidate_promotion="auto")
    again.learner.restore(json.loads(json.dumps(stage.learner.snapshot())))
    assert again.forecaster.forecast(TASKS[0], A100) == before
    again.watch()
    assert again.trial.standing() is Standing.NONE


def test_whoever_puts_a_candidate_into_service_by_hand_finds_what_it_was_taught(directory: Path) -> None:
    stage = Stage(directory)
    stage.live(40, more=1.2)
    by_hand = Stage(directory / "none", artifact=str(directory))
    by_hand.learner.restore(json.loads(json.dumps(stage.learner.snapshot())))
    assert by_hand.version() == "candidate-1"
    assert by_hand.forecaster.forecast(TASKS[0], A100).adjustment.median == pytest.approx(1.2, abs=0.05)


def test_a_reset_puts_the_artifact_of_the_settings_back(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    stage.live(40)
    assert stage.version() == "candidate-1"
    stage.learner.restore(None)
    assert stage.version() != "candidate-1"
    assert stage.forecaster.forecast(TASKS[0], A100).adjustment == UNADJUSTED
    stage.watch()
    assert stage.trial.standing() is Standing.WAITING


def test_what_is_damaged_of_the_candidate_leaves_the_active_model_as_it_was(directory: Path) -> None:
    stage = Stage(directory)
    stage.live(25, more=1.2)
    stored = json.loads(json.dumps(stage.learner.snapshot()))
    stored["candidate"]["active"] = [1]
    again = Stage(directory)
    again.learner.restore(stored)
    assert list(again.learner.calibrator.cells()) == list(stage.learner.calibrator.cells())
    assert again.trial.standing() is Standing.WAITING


def test_every_promotion_and_comparison_is_a_change_to_keep(directory: Path) -> None:
    stage = Stage(directory, candidate_promotion="auto")
    revisions = [stage.learner.revision]
    for seed in range(40):
        stage.live(1, seed=seed)
        revisions.append(stage.learner.revision)
    assert stage.trial.promotions == 1
    assert revisions == sorted(set(revisions))


def test_the_metrics_show_both(directory: Path) -> None:
    settings = load_settings({"candidate_artifact": str(directory)}, {})
    app = build(settings, FakeCluster(), offload)
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
