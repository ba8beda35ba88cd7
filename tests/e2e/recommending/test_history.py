"""`vramcast recommend` on a real Prometheus: 200 workloads whose peaks are known, counted twice."""

from __future__ import annotations

import json
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.observing.prometheus import Prometheus
from tests.e2e.recommending.backfill import prometheus, write_blocks
from tests.e2e.recommending.recount import count
from tests.recommend.played import HOUR, play, write_openmetrics
from tests.serve.running import run_to_the_end
from vramcast.cli.recommend.asking import PatientApi, QuestionTooLarge
from vramcast.cli.recommend.collecting import WINDOW_SECONDS, collect, span
from vramcast.cli.recommend.reading import Scope
from vramcast.cli.recommend.store import WindowStore
from vramcast.cluster.prometheus import PrometheusApi
from vramcast.cluster.telemetry import HttpReader
from vramcast.recommend.advice import RecommendedAction
from vramcast.recommend.report import make_report
from vramcast.recommend.runs import History, PodRun, Workload

pytestmark = pytest.mark.e2e
WORKLOADS = 200
HOURS = 72
SEED = 15


class World:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.end = int(time.time() // WINDOW_SECONDS * WINDOW_SECONDS) - 12 * HOUR
        self.start = self.end - HOURS * HOUR
        self.pods = play(WORKLOADS, self.start + HOUR, self.end - HOUR, SEED)
        samples = directory / "samples.txt"
        write_openmetrics(self.pods, samples, self.start, self.end, [*mig_pod(self.start), *time_sliced(self.start)])
        write_blocks(samples, directory / "server/data")
        samples.unlink()
        self.server = prometheus(directory / "server")

    def history(self, server: Prometheus, cache: str, scope: Scope = Scope()) -> History:  # noqa: B008 - frozen
        api = PatientApi(PrometheusApi(HttpReader(60.0), server.url))
        store = WindowStore(self.directory / cache, "played", scope)
        return collect(api, scope, span(self.end, HOURS * HOUR), store, Silent())


class Silent:
    def windows(self, done: int, total: int, *, stored: int) -> None: ...


GPU = 'UUID="GPU-{0}",gpu="0",Hostname="special",modelName="NVIDIA A100-SXM4-80GB",job="dcgm-exporter"'


def mig_pod(start: int) -> list[str]:
    labels = GPU.format("mig") + ',GPU_I_ID="3",GPU_I_PROFILE="3g.40gb",exported_namespace="odd",exported_pod="mig"'
    return [f"DCGM_FI_DEV_FB_USED{{{labels}}} 6000 {at}\n" for at in range(start + HOUR, start + 2 * HOUR, 150)]


def time_sliced(start: int) -> list[str]:
    lines = []
    for pod in ("left", "right"):
        labels = GPU.format("sliced") + f',exported_namespace="odd",exported_pod="{pod}"'
        lines += [f"DCGM_FI_DEV_FB_USED{{{labels}}} 9000 {at}\n" for at in range(start + HOUR, start + 2 * HOUR, 150)]
    return lines


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("history"))
    world.server.start()
    yield world
    world.server.stop()


@pytest.fixture(scope="module")
def history(world: World) -> History:
    return world.history(world.server, "cache")


def figures(runs: list[PodRun]) -> tuple[list[str], dict[Workload, float]]:
    """In any order. Which of two pods of one name was how busy depends on how windows were read, but not their sum."""
    busy: dict[Workload, float] = defaultdict(float)
    for run in runs:
        busy[run.workload] += run.busy_sum
    each = sorted(repr(replace(run, busy_sum=0.0, busy_weight=0.0)) for run in runs)
    return each, {workload: round(total, 6) for workload, total in busy.items()}


@pytest.mark.parametrize("risk", [0.05, 0.1])
def test_every_figure_equals_an_independent_recount(world: World, history: History, risk: float) -> None:
    report, counted = make_report(history, risk), count(world.pods, risk)
    found = {
        (one.workload.namespace, one.workload.kind, one.workload.name): one
        for one in report.recommendations
        if one.workload.namespace != "odd"
    }
    assert len(found) == len(counted.workloads) == WORKLOADS
    for workload, expected in counted.workloads.items():
        one = found[workload.namespace, workload.kind, workload.name]
        assert (one.runs, one.pods, one.peak_mib) == (expected.runs, expected.pods, expected.peak_mib), workload
        assert (one.asked, one.used) == (workload.gpus, workload.gpus - workload.idle_gpus), workload
        assert one.need.mib == expected.need_mib, workload
        assert one.gpu_hours == pytest.approx(expected.gpu_hours), workload
        assert one.busy == pytest.approx(workload.busy_percent / 100), workload
        assert (one.mig.name if one.mig else None) == expected.mig, workload
        assert one.share == (pytest.approx(expected.share) if expected.share is not None else None), workload
    for plan, occupancy in report.plans:
        assert occupancy.most == counted.gpus[plan], plan
        assert occupancy.gpu_hours == pytest.approx(counted.gpu_hours[plan]), plan
    assert counted.gpus["with shares"] < counted.gpus["as it was"]


def test_slices_and_shared_gpus_are_recognized(history: History) -> None:
    odd = {
        one.workload.name: one for one in make_report(history, 0.05).recommendations if one.workload.namespace == "odd"
    }
    assert (odd["mig"].profile, odd["mig"].verdict, odd["mig"].peak_mib) == ("3g.40gb", RecommendedAction.SLICE, 6000)
    assert (odd["left"].verdict, odd["right"].verdict) == (RecommendedAction.UNCLEAR, RecommendedAction.UNCLEAR)
    assert all(one.workload.guessed for one in odd.values())


def test_a_question_holds_a_fraction_of_all_series(world: World, history: History) -> None:
    total = world.server.total(f'count(last_over_time({{__name__=~".+"}}[{HOURS + 24}h]))')
    assert len(world.pods) * 6 < total
    assert history.most_series < total / 8


def test_a_server_with_a_low_limit_gives_the_same_figures(world: World, history: History) -> None:
    """It refuses what would load more samples than this, and the windows are halved."""
    shutil.copytree(
        world.directory / "server/data", world.directory / "limited/data", ignore=shutil.ignore_patterns("lock")
    )
    limited = prometheus(world.directory / "limited", ["--query.max-samples=4000"])
    limited.start()
    busiest = round((make_report(history, 0.05).as_it_was.busiest_at or 0) // WINDOW_SECONDS * WINDOW_SECONDS)
    window = "max_over_time(DCGM_FI_DEV_FB_USED[300s])", busiest, busiest + WINDOW_SECONDS, 300
    try:
        with pytest.raises(QuestionTooLarge, match="too many samples"):
            PatientApi(PrometheusApi(HttpReader(60.0), limited.url)).query_range(*window)
        again = world.history(limited, "limited-cache")
    finally:
        limited.stop()
    assert figures(again.runs) == figures(history.runs)


def test_one_namespace_at_a_time(world: World, history: History) -> None:
    scope = Scope(("team-3",))
    found = world.history(world.server, "one", scope)
    expected = [run for run in history.runs if run.workload.namespace == "team-3"]
    assert figures(found.runs) == figures(expected)


def test_the_program_prints_the_same_and_a_second_time_from_what_it_kept(world: World, history: History) -> None:
    cache = world.directory / "cli"
    arguments = ("recommend", "--prometheus", world.server.url, "--since", f"{HOURS + 24}h", "-o", "json")
    first = run_to_the_end(*arguments, environ={"XDG_CACHE_HOME": str(cache)})
    assert first.returncode == 0, first.stderr
    data = json.loads(first.stdout)
    peaks = {(one["namespace"], one["kind"], one["name"]): one["peak_mib"] for one in data["workloads"]}
    assert peaks == {
        (one.workload.namespace, one.workload.kind, one.workload.name): one.peak_mib
        for one in make_report(history, 0.05).recommendations
    }
    assert "the history is incomplete" in " ".join(data["notes"])
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*.json")}
    second = run_to_the_end(*arguments, environ={"XDG_CACHE_HOME": str(cache)})
    assert json.loads(second.stdout)["workloads"] == data["workloads"]
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_played_pods_are_as_varied_as_a_cluster(world: World) -> None:
    """The history is worth counting: every kind, failures, names that are used again, and GPUs that idle."""
    kinds = {pod.workload.kind for pod in world.pods}
    assert len(kinds) == 6
    assert any(pod.failed for pod in world.pods)
    assert len({(pod.workload.namespace, pod.name) for pod in world.pods}) < len({pod.uid for pod in world.pods})
    assert any(pod.workload.idle_gpus for pod in world.pods)
