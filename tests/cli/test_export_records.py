"""`vramcast export-records`: the runs of a service become training records."""

from __future__ import annotations

import asyncio
import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.controllers.observed import SUMMARY, FinishedCluster, World
from tests.fakes import FakeClock
from tests.forecast.networks import traced_cnn
from tests.forecast.recordings import language_recording
from vramcast.cli.records import COLUMNS, Credentials, RecordsUnavailable, fetch_records, write_records
from vramcast.errors import InvalidInput
from vramcast.forecast.description import encode_profile
from vramcast.forecast.storage import encode
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.task.vocabulary import Architecture, Level, Optimizer
from vramcast.train.records import TARGETS, RecordOutcome, read_records

PROFILED = {"share": "true", "profile": encode_profile(traced_cnn()), "batch-size": "16", "optimizer": "sgd"}

RECORDED = {"sequence-length": "1024", "lora-rank": "8"}


def run_pod(world: World, name: str, annotations: dict[str, str], used_mib: float, **end: Any) -> None:
    pod = world.place(name, annotations)
    world.telemetry.used_mib = {0: used_mib, 1: used_mib}
    world.pass_time(60)
    world.finish(pod, **end)
    world.telemetry.used_mib = {0: 0.0, 1: 0.0}
    world.pass_time(60)


def records_of(world: World, query: str = "") -> Any:
    return asyncio.run(world.client.send("GET", f"/records{query}")).json()


@pytest.fixture
def world() -> World:
    world = World()
    run_pod(world, "summary", SUMMARY, 3_000.0)
    run_pod(world, "profiled", PROFILED, 2_000.0)
    return world


def test_an_export_is_read_as_training_records(world: World, tmp_path: Path) -> None:
    assert write_records(records_of(world), tmp_path).added == 2
    summary, profiled = read_records(tmp_path)
    assert (summary.measured_mib, summary.outcome, summary.product) == (
        3_000.0,
        RecordOutcome.OK,
        "NVIDIA-A100-SXM4-40GB",
    )
    assert (summary.network, summary.task.level) == (None, Level.SUMMARY)
    assert (summary.task.parameters, summary.task.batch_size) == (25_600_000, 64)
    assert summary.utilization == pytest.approx((0.5, math.nan, math.nan), nan_ok=True)
    assert profiled.network is not None
    assert profiled.network.parameters == traced_cnn()["parameters"]
    assert (profiled.task.batch_size, profiled.task.optimizer) == (16, Optimizer.SGD)
    assert (profiled.family, profiled.task.parameters) == (Architecture.CNN, traced_cnn()["parameters"])


def test_every_counter_that_was_scraped_is_a_target_of_training(tmp_path: Path) -> None:
    world = World()
    world.telemetry.profiled = {UtilizationCounter.SM_ACTIVE: 0.41, UtilizationCounter.SM_OCCUPANCY: 0.2}
    run_pod(world, "summary", SUMMARY, 3_000.0)
    write_records(records_of(world), tmp_path)
    (record,) = read_records(tmp_path)
    assert dict(zip(TARGETS, record.utilization, strict=True)) == pytest.approx(
        {"gpu_util": 0.5, "sm_active": 0.41, "sm_occupancy": 0.2}
    )


def test_runs_of_recordings_are_left_out_and_counted(world: World, tmp_path: Path) -> None:
    run_pod(world, "recorded", {**PROFILED, "profile": encode(language_recording(RECORDED))}, 2_100.0)
    exported = write_records(records_of(world), tmp_path)
    assert (exported.added, exported.left_out) == (2, 1)
    assert len(read_records(tmp_path)) == 2


def test_a_second_export_adds_the_new_runs(world: World, tmp_path: Path) -> None:
    write_records(records_of(world), tmp_path)
    again = write_records(records_of(world), tmp_path)
    assert (again.added, again.known) == (0, 2)
    run_pod(world, "third", PROFILED, 2_100.0)
    assert write_records(records_of(world), tmp_path).added == 1
    assert [record.measured_mib for record in read_records(tmp_path)] == [3_000.0, 2_000.0, 2_100.0]
    assert len(list((tmp_path / "profiles").iterdir())) == 1


def test_records_contain_pod_names_only_on_request(world: World, tmp_path: Path) -> None:
    write_records(records_of(world), tmp_path / "a")
    assert "profiled" not in (tmp_path / "a" / "measurements.csv").read_text()
    write_records(records_of(world, "?names=true"), tmp_path / "b")
    with (tmp_path / "b" / "measurements.csv").open() as file:
        assert [row["pod"] for row in csv.DictReader(file)] == ["default/summary", "default/profiled"]


def test_an_oom_on_a_shared_gpu_and_a_failed_run_are_floors(tmp_path: Path) -> None:
    world = World()
    run_pod(world, "died", SUMMARY, 3_000.0, phase="Failed", message="CUDA out of memory", exit_code=1)
    run_pod(world, "failed", SUMMARY, 1_500.0, phase="Failed", exit_code=3)
    write_records(records_of(world), tmp_path)
    died, failed = read_records(tmp_path)
    assert died.outcome is failed.outcome is RecordOutcome.FLOOR
    assert died.measured_mib >= 3_000.0
    assert failed.measured_mib == 1_500.0


def test_a_restart_measures_finished_pods_again_and_counts_none_twice() -> None:
    clock = FakeClock()
    world = World(FinishedCluster(), clock)
    run_pod(world, "p", SUMMARY, 3_000.0)
    before, kept = records_of(world), world.service.tracker.accuracy.snapshot()
    world.start()
    world.service.tracker.accuracy.restore(json.loads(json.dumps(kept)))
    assert records_of(world)["runs"] == []
    world.pass_time(60)
    assert records_of(world)["runs"] == before["runs"]
    assert world.metric("vramcast_outcomes_total") == 1
    assert world.recorded == []


def test_a_directory_with_other_records_is_refused(world: World, tmp_path: Path) -> None:
    (tmp_path / "measurements.csv").write_text("source,profile\n")
    with pytest.raises(InvalidInput, match="a directory of its own"):
        write_records(records_of(world), tmp_path)
    assert "run" in COLUMNS


def test_a_service_that_does_not_answer_is_a_clear_error() -> None:
    with pytest.raises(RecordsUnavailable, match="is it the address of a running vramcast"):
        fetch_records("http://127.0.0.1:9", Credentials(), named=False)
