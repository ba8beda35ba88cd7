"""Two hundred runs take more than the model forecasts. Calibration recovers, and every metric shown is correct."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product as combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import httpx
import pytest

from tests.controlplane import PATIENCE_SECONDS, ControlPlane, eventually, quantity
from tests.controlplane.objects import A100_40GB, L40S, T4
from tests.e2e.observing.conftest import Begin
from tests.e2e.observing.law import RISK, FirstForecast, Law
from tests.e2e.observing.recount import check_metrics, recount
from tests.e2e.observing.world import Run, World, written

pytestmark = pytest.mark.e2e

TOP = Path(__file__).parents[3]
DASHBOARD = TOP / "helm/vramcast/files/dashboard.json"
ARTIFACT = TOP / "model_artifacts"
MIB = 1 << 20
WAVES, WAVE = 5, 20  # waves per family, runs per wave
LEARNED = 60  # outcomes after which a family must be calibrated

NODES = {"a100-0": (A100_40GB, 8), "a100-1": (A100_40GB, 8), "l40s-0": (L40S, 8), "l40s-1": (L40S, 8), "t4": (T4, 4)}
# Tasks are taken in steps of a number that is coprime to their count.
SIZES = list(combinations(("11M", "25.6M", "44M"), ("4M", "11.1M", "22M"), ("16", "32", "64")))
STEP = 7


@dataclass(frozen=True, slots=True)
class Family:
    architecture: str
    product: str
    law: Law


FAMILIES = (
    Family("cnn", A100_40GB.product, Law(need_factor=1.2)),
    Family("transformer", L40S.product, Law(need_factor=1.5)),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """One run and what only the test knows about it."""

    run: Run
    family: Family
    number: int
    forecast: FirstForecast


def summary(architecture: str, number: int) -> dict[str, str]:
    parameters, activations, batch = SIZES[number * STEP % len(SIZES)]
    return {
        "architecture": architecture, "parameters": parameters, "activations": activations, "batch-size": batch,
        "optimizer": "adamw",
    }  # fmt: skip


def draw(world: World, family: Family) -> list[Drawn]:
    """All runs of a family. The law is relative to the model's forecast before it has seen any outcome."""
    forecasts = [_ask(world, Run("ask", summary(family.architecture, n), 0, family.product)) for n in range(len(SIZES))]
    drawn = []
    for number in range(WAVES * WAVE):
        of_task = forecasts[number % len(SIZES)]
        need_mib = math.ceil(family.law.need_bytes(of_task, number) / MIB)
        name = f"{family.architecture}-{number:03d}"
        run = Run(name, summary(family.architecture, number), need_mib, family.product)
        drawn.append(Drawn(run, family, number, of_task))
    return drawn


def _ask(world: World, run: Run) -> FirstForecast:
    found = world.forecast(run.manifest(), run.product)
    return FirstForecast(found["median_bytes"], found["bound_bytes"])


# --- checks


def promised_bytes(world: World, drawn: Drawn) -> int:
    """As written on the pod."""
    return quantity(written(world.api.pod(drawn.run.name))["reserved-memory"])


def coverage(world: World, all_drawn: Sequence[Drawn]) -> float:
    """The exact share of such promises kept under the law. A count of these few runs would only estimate it."""
    return fmean(drawn.family.law.coverage(drawn.forecast, promised_bytes(world, drawn)) for drawn in all_drawn)


def price(world: World, all_drawn: Sequence[Drawn]) -> float:
    """Median over-reservation relative to that of an oracle that knows the law."""
    over = median(promised_bytes(world, drawn) / MIB / drawn.run.need_mib - 1 for drawn in all_drawn)
    oracle = median(drawn.family.law.oracle_bytes(drawn.forecast) / MIB / drawn.run.need_mib - 1 for drawn in all_drawn)
    return over / oracle


# --- other endings and errors, so that no dashboard panel stays empty


def other_runs() -> list[Run]:
    mlp = summary("mlp", 0)
    return [
        Run("oom", mlp, 700, T4.product, "Failed", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
        Run("fails", mlp, 600, T4.product, "Failed", "KeyError: 'lr'"),
        Run("own-number", {"gpu-memory": "3Gi"}, 2_000, T4.product),
    ]


def lone_runs() -> list[Run]:
    """For what only pods alone on a GPU have, their utilization, and pods that say their own peak: a second source."""
    need_mib = 700
    task = {**summary("rnn", 0), "observed-memory": f"{need_mib}Mi"}
    return [Run(f"alone-{number}", task, need_mib, T4.product) for number in range(2)]


def cause_errors(world: World) -> None:
    httpx.post(f"{world.service.url}/filter", content=b"{", timeout=PATIENCE_SECONDS)
    world.api.create_pod(Run("too-large", {"gpu-memory": "900Gi"}, 0, T4.product).manifest())


def new_candidate(directory: Path) -> Path:
    """The active model under another version: equally good, and on trial throughout."""
    manifest = json.loads((ARTIFACT / "manifest.json").read_text()) | {"version": "candidate"}
    directory.mkdir()
    (directory / "manifest.json").write_text(json.dumps(manifest))
    shutil.copy(ARTIFACT / "model.onnx", directory)
    return directory


def queries() -> Iterator[tuple[str, str]]:
    dashboard: dict[str, Any] = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def check_dashboard(world: World) -> None:
    for title, expression in queries():

        def has_data(expression: str = expression) -> bool:
            return any(math.isfinite(value) for _, value in world.prometheus.query(expression))

        eventually(has_data, what=f"panel {title!r}: {expression}", interval_seconds=0.2)


def check_rules(world: World) -> None:
    """This Prometheus evaluates every alert of the chart without an error."""
    rules = [rule for group in world.prometheus.ask("rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["name"]: rule["lastError"] for rule in rules if rule["health"] == "err"} == {}


def check_promises(world: World, all_drawn: Sequence[Drawn]) -> None:
    """While the runs last, the metric equals the sum of their promises."""
    promised = sum(promised_bytes(world, drawn) for drawn in all_drawn)
    eventually(lambda: world.prometheus.total("vramcast_promised_bytes") == promised, what=f"{promised} promised")


def test_after_60_outcomes_coverage_recovers_and_every_metric_shown_is_correct(
    begin: Begin, plane: ControlPlane, tmp_path: Path
) -> None:
    # What a task took last time would hide what calibration learns.
    candidate = new_candidate(tmp_path / "candidate")
    world = begin(NODES, candidate_artifact=str(candidate), run_memory="false")
    families = {family: draw(world, family) for family in FAMILIES}
    world.exporter.profiled.add("t4")
    for run in lone_runs():
        world.run_to_the_end([run])
    world.run_to_the_end(other_runs())
    cause_errors(world)

    for wave in range(WAVES):
        drawn = [one for of_family in families.values() for one in of_family[wave * WAVE : (wave + 1) * WAVE]]
        runs = [one.run for one in drawn]
        world.begin(runs)
        if wave == WAVES - 1:
            check_dashboard(world)
            check_promises(world, drawn)
        world.end(runs)
        world.await_counted()

    for all_drawn in families.values():
        assert coverage(world, all_drawn[:WAVE]) < 0.9
        learned = all_drawn[LEARNED:]
        assert 0.94 <= coverage(world, learned) <= 0.97
        assert price(world, learned) <= 1.3

    assert world.service.metric("vramcast_unmeasured_runs_total") == 0
    promised = world.prometheus.query('vramcast_coverage_promised_ratio{level="summary"}')
    assert [value for _, value in promised] == [pytest.approx(1 - RISK)] * 4
    eventually(lambda: check_metrics(world, recount(world)) is None, what="the metrics to be scraped")
    check_rules(world)
    checked = subprocess.run(
        [str(plane.binaries.promtool), "check", "metrics"],
        input=world.metrics_text(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
