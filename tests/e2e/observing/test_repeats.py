"""Jobs run again, four to a GPU, where no exporter can tell their memory apart: the second run is known."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import product as combinations
from pathlib import Path
from statistics import median

import pytest

from tests.controlplane import eventually, quantity
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing.conftest import Begin
from tests.e2e.observing.test_law import new_candidate
from tests.e2e.observing.test_restart import stored_outcomes
from tests.e2e.observing.world import Run, World, written

pytestmark = pytest.mark.e2e

MIB = 1 << 20
GPUS = 8
NODES = {"a": (A100_40GB, GPUS)}
A100 = A100_40GB.product
KINDS = [
    {"architecture": architecture, "parameters": parameters, "activations": activations, "batch-size": batch}
    for architecture, parameters, (activations, batch) in combinations(
        ("cnn", "transformer"), ("11M", "25.6M", "44M", "60M", "86M"), (("22M", "32"), ("40M", "32"))
    )
]
# What a kind takes, relative to the model's first forecast: some less, some more than its bound.
TAKES = (0.6, 0.75, 0.9, 1.1, 1.3)


def exit_report(reserved_mib: int) -> str:
    """As vramcast.report writes it."""
    gpus = {"GPU-a": {"allocated": reserved_mib * MIB, "reserved": reserved_mib * MIB, "ooms": 0}}
    process = {"ended": "exited", "seconds": 60.0, "gpus": gpus, "versions": {"torch": "2.9.0"}}
    return json.dumps({"vramcast": 1, "processes": {"pid 1": process}}, separators=(",", ":"))


def kinds(world: World) -> list[Run]:
    """One run of each kind. Its report lacks the CUDA context, which the driver counts."""
    found = []
    for number, task in enumerate(KINDS):
        run = Run(f"kind-{number}", task, 0, A100)
        forecast = world.forecast(run.manifest(), A100)
        (context,) = (part["size_bytes"] for part in forecast["parts"] if part["name"] == "CUDA context")
        need_mib = round(TAKES[number % len(TAKES)] * forecast["median_bytes"] / MIB)
        found.append(replace(run, need_mib=need_mib, message=exit_report(need_mib - context // MIB)))
    return found


def run_wave(world: World, wave: int, runs: list[Run]) -> list[float]:
    """What was reserved over what was used, of each run."""
    named = [replace(run, name=f"wave-{wave}-{run.name}") for run in runs]
    world.begin(named)
    reserved = reserved_over_used(world, named)
    moment = int(time.time())
    world.over += [world.finish(run, moment) for run in named]
    world.await_counted()
    return reserved


def reserved_over_used(world: World, runs: list[Run]) -> list[float]:
    return [quantity(written(world.api.pod(run.name))["reserved-memory"]) / MIB / run.need_mib for run in runs]


def test_from_the_second_run_on_a_job_gets_what_it_takes(begin: Begin, tmp_path: Path) -> None:
    world = begin(NODES)
    world.exporter.names_pods = False
    runs = kinds(world)
    assert len(runs) == 20

    first = run_wave(world, 0, runs)
    assert median(first) > 1.1 or min(first) < 1.0
    eventually(lambda: stored_outcomes(world) == 20, what="the outcomes to be stored")
    world.service.kill()
    world.service.start()

    second = run_wave(world, 1, runs)
    eventually(lambda: stored_outcomes(world) == 40, what="the outcomes to be stored")
    world.service.kill()
    # A new artifact starts its calibration over. Runs are facts and stay.
    world.service.process.environment["VRAMCAST_ARTIFACT"] = str(new_candidate(tmp_path / "newer"))
    world.service.start()

    third = run_wave(world, 2, runs)
    for reserved in (second, third):
        assert max(reserved) <= 1.10
        assert sum(each < 1.0 for each in reserved) <= 1
    outcomes = world.prometheus
    eventually(
        lambda: outcomes.total('vramcast_outcomes_total{truth="report"}') == 60, what="60 outcomes by exit report"
    )
    assert world.service.metric("vramcast_unmeasured_runs_total") == 0


def run_wave_with_agent(world: World, wave: int, runs: list[Run]) -> list[float]:
    """The same, measured by the agent alone."""
    named = [replace(run, name=f"wave-{wave}-{run.name}", message="") for run in runs]
    world.begin(named)
    world.show_processes()
    reserved = reserved_over_used(world, named)
    seen_at = world.await_agent_peaks(named)
    # Kubernetes writes whole seconds, and a run that lasts less than one does not count.
    eventually(lambda: int(time.time()) >= seen_at + 3, what="runs that are long enough")
    world.await_polls(2)
    moment = int(time.time())
    world.over += [world.finish(run, moment) for run in named]
    world.show_processes()
    world.await_counted()
    return reserved


def test_the_agent_tells_neighbours_apart_without_reports(begin: Begin) -> None:
    world = begin(NODES, agent=True)
    world.exporter.names_pods = False
    runs = kinds(world)
    first, second, third = (run_wave_with_agent(world, wave, runs) for wave in range(3))
    assert median(first) > 1.1 or min(first) < 1.0
    for reserved in (second, third):
        assert max(reserved) <= 1.10
        assert sum(each < 1.0 for each in reserved) <= 1
    eventually(
        lambda: world.prometheus.total('vramcast_outcomes_total{truth="agent"}') == 60, what="60 outcomes by agent"
    )
    assert world.service.metric("vramcast_unmeasured_runs_total") == 0


def test_without_reports_the_metrics_say_that_neighbours_cannot_be_told_apart(begin: Begin) -> None:
    world = begin({"a": (A100_40GB, 1)})
    world.exporter.names_pods = False
    runs = [replace(run, message="") for run in kinds(world)[:3]]
    world.begin(runs)
    world.await_polls(6)
    moment = int(time.time())
    world.over += [world.finish(run, moment) for run in runs]
    world.await_counted()
    assert world.service.metric("vramcast_outcomes_total") == 0
    text = world.metrics_text()
    assert 'vramcast_unmeasured_runs_total{why="unclear"} 3.0' in text
