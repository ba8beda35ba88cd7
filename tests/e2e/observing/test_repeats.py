"""Jobs run again, four to a GPU, where no exporter can tell their memory apart: the second run is known."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from itertools import product as combinations
from pathlib import Path
from statistics import median

import pytest

from tests.controlplane import eventually
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing import replicas
from tests.e2e.observing.conftest import Begin
from tests.e2e.observing.kinds import Kind, ask_kind, over_used, reserved_mib
from tests.e2e.observing.test_law import DASHBOARD, new_candidate
from tests.e2e.observing.test_restart import stored_outcomes
from tests.e2e.observing.world import LEARNED_STATE_PATH, Run, World, written

pytestmark = pytest.mark.e2e

# Twenty jobs at a time on five GPUs.
NODES = {"a": (A100_40GB, 5)}
A100 = A100_40GB.product
TASKS = [
    {"architecture": architecture, "parameters": parameters, "activations": activations, "batch-size": batch}
    for architecture, parameters, (activations, batch) in combinations(
        ("cnn", "transformer"), ("11M", "25.6M", "44M", "60M", "86M"), (("14M", "32"), ("26M", "32"))
    )
]
# What a kind takes, relative to the model's first forecast: some less, some more than its bound.
TAKES = (0.6, 0.75, 0.9, 1.1, 1.3)
# What one run of a kind takes relative to another.
SCATTER = (1.0, 0.99, 1.01, 1.005, 0.995)


def kinds(world: World, scheduler: str | None = None) -> list[Kind]:
    found = [
        ask_kind(world, f"kind-{number}", task, TAKES[number % len(TAKES)], scheduler)
        for number, task in enumerate(TASKS)
    ]
    assert len(found) == 20
    return found


def wave_of(all_kinds: Sequence[Kind], wave: int, *, report: bool = True) -> list[Run]:
    return [
        kind.run(wave, SCATTER[(3 * number + 2 * wave) % len(SCATTER)], report=report)
        for number, kind in enumerate(all_kinds)
    ]


def finish(world: World, runs: Sequence[Run]) -> None:
    moment = int(time.time())
    world.over += [world.finish(run, moment) for run in runs]


def check_first(reserved: Sequence[float]) -> None:
    """There is something to learn."""
    assert median(reserved) > 1.1 or min(reserved) < 1.0


def check_known(reserved: Sequence[float], risk: float = 0.05) -> None:
    assert max(reserved) <= 1.10
    assert sum(each < 1.0 for each in reserved) <= risk * len(reserved)


def check_accuracy_of_all(world: World, truth: str, count: int) -> None:
    """Every accuracy metric has every run."""
    for metric in (
        "vramcast_outcomes_total", "vramcast_coverage_outcomes", "vramcast_forecast_error_ratio_count",
        "vramcast_over_reservation_ratio_count",
    ):  # fmt: skip
        selector = f'{metric}{{truth="{truth}"}}'
        eventually(lambda selector=selector: world.prometheus.total(selector) == count, what=f"{count} in {selector}")
    assert world.service.metric("vramcast_unmeasured_runs_total") == 0


def check_rebuilt(world: World, all_kinds: Sequence[Kind]) -> None:
    """If the store is lost, finished pods are read again: their reports, and their samples from Prometheus."""
    before = [bound_mib(world, kind.run(3)) for kind in all_kinds]
    world.service.kill()
    world.api.request("DELETE", LEARNED_STATE_PATH)
    world.restart()
    world.await_counted()
    assert [bound_mib(world, kind.run(3)) for kind in all_kinds] == before


def test_from_the_second_run_on_a_job_gets_what_it_takes(begin: Begin, tmp_path: Path) -> None:
    """Through a restart, a leader change while jobs run, and a new artifact."""
    world = begin(NODES, replicas=2)
    world.exporter.names_pods = False
    all_kinds = kinds(world, replicas.SCHEDULER)

    first = wave_of(all_kinds, 0)
    world.begin(first)
    check_first(over_used(world, first))
    finish(world, first)
    world.await_counted()
    eventually(lambda: stored_outcomes(world) == 20, what="the outcomes to be stored")
    world.restart()

    second = wave_of(all_kinds, 1)
    world.begin(second)
    check_known(over_used(world, second))
    world.lose_leader()
    finish(world, second)
    world.await_counted()
    eventually(lambda: stored_outcomes(world) == 40, what="the outcomes to be stored")
    # A new artifact starts its calibration over. Runs are facts and stay.
    world.service.process.environment["VRAMCAST_ARTIFACT"] = str(new_candidate(tmp_path / "newer"))
    world.restart()

    third = wave_of(all_kinds, 2)
    world.begin(third)
    check_known(over_used(world, third))
    finish(world, third)
    world.await_counted()
    check_accuracy_of_all(world, "report", 60)
    check_rebuilt(world, all_kinds)
    check_that_false_runs_move_nobody_else(world, all_kinds)


# --- false and broken runs

SUSPECTS = ("hundredfold", "hundredth", "fivefold", "forged-ranks", "forged-text", "twins", "grows")


def check_that_false_runs_move_nobody_else(world: World, others: Sequence[Kind]) -> None:
    """The first report of each is false, or its runs are not alike. Six runs each, in a namespace of their own."""
    new = Run("new", {**TASKS[0], "parameters": "33M"}, 0, A100)
    before, before_new = [bound_mib(world, kind.run(3)) for kind in others], bound_mib(world, new)
    namespace = world.make_namespace("intruders")
    suspects = {
        name: ask_kind(world, name, {**TASKS[0], "parameters": f"{30 + number}M"}, 0.6, replicas.SCHEDULER, namespace)
        for number, name in enumerate(SUSPECTS)
    }
    for turn in range(6):
        runs = [suspect_run(kind, turn) for kind in suspects.values()]
        world.begin(runs)
        promised = {run.name: reserved_mib(world, run) / run.need_mib for run in runs}
        finish(world, [run.died(reserved_mib(world, run)) for run in runs])
        world.await_counted()
    assert min(promised.values()) >= 1.0, promised
    steady = {name: bound_mib(world, kind.run(6)) / kind.need_mib for name, kind in suspects.items()}
    assert max(share for name, share in steady.items() if name not in ("twins", "grows")) <= 1.1, steady
    assert [bound_mib(world, kind.run(3)) for kind in others] == before
    assert bound_mib(world, new) <= 1.1 * before_new
    # Two of the seven first reports are impossible, and one is no report at all.
    assert world.service.metric("vramcast_telemetry_faults_total", 'fault="report"') == 2


def suspect_run(kind: Kind, turn: int) -> Run:
    """What it takes, and what it says on its first run."""
    needs = {"twins": (1.0, 1.5)[turn % 2], "grows": 1.1**turn}
    run = kind.run(turn, needs.get(kind.name, 1.0))
    if turn > 0:
        return run
    says = {
        "hundredfold": kind.report(100 * run.need_mib),
        "hundredth": kind.report(kind.context_mib + run.need_mib // 100),
        "fivefold": kind.report(5 * run.need_mib),
        "forged-ranks": kind.report(run.need_mib, processes=39),
        "forged-text": '{"vramcast":1,"processes":{"rank 0":{"gpus":{"GPU-0":{"reserved":-1}},"ended":7}}}',
    }
    return run.saying(says.get(kind.name, run.message))


def bound_mib(world: World, run: Run) -> float:
    return float(world.forecast(run.manifest(), A100)["bound_bytes"]) / (1 << 20)


# --- without reports


def test_the_agent_tells_neighbours_apart_without_reports(begin: Begin) -> None:
    world = begin(NODES, agent=True)
    world.exporter.names_pods = False
    all_kinds = kinds(world)
    for wave in range(3):
        runs = wave_of(all_kinds, wave, report=False)
        world.begin(runs)
        world.show_processes()
        (check_known if wave else check_first)(over_used(world, runs))
        seen_at = world.await_agent_peaks(runs)
        # Kubernetes writes whole seconds, and a run that lasts less than one does not count.
        eventually(lambda seen_at=seen_at: int(time.time()) >= seen_at + 3, what="runs that are long enough")
        world.await_polls(2)
        finish(world, runs)
        world.show_processes()
        world.await_counted()
    check_accuracy_of_all(world, "agent", 60)
    check_rebuilt(world, all_kinds)


def test_with_neither_the_metrics_say_how_many_runs_were_not_measured_and_why(begin: Begin) -> None:
    world = begin(NODES)
    world.exporter.names_pods = False
    all_kinds = kinds(world)
    sharing = 0
    for wave in range(3):
        runs = wave_of(all_kinds, wave, report=False)
        world.begin(runs)
        on_gpu = Counter(written(world.api.pod(run.name))["gpu-indices"] for run in runs)
        sharing += sum(count for count in on_gpu.values() if count > 1)
        world.await_polls(6)
        finish(world, runs)
        world.await_counted()
    assert sharing >= 50
    assert world.service.metric("vramcast_unmeasured_runs_total", 'why="unclear"') == sharing
    assert world.service.metric("vramcast_outcomes_total", 'truth="alone"') == 60 - sharing
    check_panel(world)


def check_panel(world: World) -> None:
    """The dashboard tells the administrator what to switch on."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    (panel,) = (each for each in panels if "what to switch on" in each["title"])
    (target,) = (each for each in panel["targets"] if "unclear" in each["expr"])
    assert "agent.enabled" in target["legendFormat"]
    assert "exit reports" in target["legendFormat"]
    eventually(lambda: world.prometheus.total(target["expr"]) > 0, what="the panel to show unmeasured runs")
