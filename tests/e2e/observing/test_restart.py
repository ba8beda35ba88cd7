"""A killed service restores its counts and calibration, and counts runs that ended while it was down exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.controlplane import ApiError, eventually
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing.conftest import Begin
from tests.e2e.observing.recount import COUNTERS, check_metrics, recount
from tests.e2e.observing.world import LEARNED_STATE_PATH, Run, World

pytestmark = pytest.mark.e2e

A100 = A100_40GB.product
NODES = {"a": (A100_40GB, 8)}
TASK = {"architecture": "cnn", "parameters": "25.6M", "activations": "11.1M", "batch-size": "32"}
# What a restart must not change.
LASTING = re.compile(
    r"^vramcast_(outcomes|promises_kept|ooms|unmeasured_runs|forecast_error|forecast_bias|coverage|over_reservation"
    r"|utilization_error)\w*(\{.*)? "
)


def runs(prefix: str, needs_mib: Sequence[int]) -> list[Run]:
    return [Run(f"{prefix}-{number}", TASK, need, A100) for number, need in enumerate(needs_mib)]


def ask(world: World) -> dict[str, Any]:
    """The forecast for the next such run."""
    return world.forecast(Run("ask", TASK, 0, A100).manifest(), A100)


def lasting(world: World) -> list[str]:
    return [line for line in world.metrics_text().splitlines() if LASTING.match(line)]


def stored_outcomes(world: World) -> int:
    """Read from the ConfigMap."""
    try:
        stored = world.api.get(LEARNED_STATE_PATH)["data"]
    except ApiError as error:
        if error.status != 404:
            raise
        return 0
    return len(json.loads(stored["accuracy.json"])["counted"])


def check_counters(world: World, least: int) -> None:
    """Each counter was compared with DCGM's of that name, by so many runs or more."""
    for counter in COUNTERS:
        of_counter = f'counter="{counter}"'
        assert world.service.metric("vramcast_utilization_scraped", of_counter) == 1
        assert world.service.metric("vramcast_utilization_error_ratio_bucket", of_counter, 'le="+Inf"') >= least


def test_a_killed_service_resumes_where_it_stopped_and_counts_no_run_twice(begin: Begin) -> None:
    world = begin(NODES)
    world.exporter.profiled.add("a")
    fresh = ask(world)
    # The runs take a tenth more than the bound, so there is something to learn.
    need_mib = round(fresh["bound_bytes"] * 1.1) >> 20
    # Pods that share a GPU have no utilization of their own, so these follow each other.
    for run in runs("alone", [need_mib - 20, need_mib - 10]):
        world.run_to_the_end([run])
    check_counters(world, 2)
    world.run_to_the_end(runs("first", [need_mib + 10 * number for number in range(12)]))
    learned = ask(world)
    assert learned["bound_bytes"] > 1.02 * fresh["bound_bytes"]
    eventually(lambda: stored_outcomes(world) == 14, what="the outcomes to be stored")

    during_outage, across_restart = runs("during-outage", [3_000, 3_100]), runs("across-restart", [3_200, 3_300])
    world.begin([*during_outage, *across_restart])
    world.await_peaks([*during_outage, *across_restart])
    world.service.kill()
    world.end(during_outage)
    world.service.start()
    world.await_counted()
    world.end(across_restart)
    world.await_counted()
    world.await_polls(4)
    assert world.counted() == 18
    assert world.service.metric("vramcast_unmeasured_runs_total") == 0
    eventually(lambda: check_metrics(world, recount(world)) is None, what="the metrics to be scraped")

    # Restart again with no runs in between: every value must match exactly.
    check_counters(world, 2)
    eventually(lambda: stored_outcomes(world) == 18, what="the outcomes to be stored")
    before, bound = lasting(world), ask(world)["bound_bytes"]
    world.service.kill()
    world.service.start()
    world.await_polls(4)
    assert lasting(world) == before
    assert ask(world)["bound_bytes"] == bound


def test_outcomes_that_were_not_stored_before_a_kill_are_recounted_from_history(begin: Begin) -> None:
    world = begin(NODES, calibration_save_seconds="3600")
    world.run_to_the_end(runs("stored", [4_000]))
    eventually(lambda: stored_outcomes(world) == 1, what="the first outcome to be stored")
    world.run_to_the_end(runs("lost", [4_100, 4_200, 4_300]))
    world.service.kill()
    assert stored_outcomes(world) == 1
    world.service.start()
    world.await_counted()
    world.await_polls(4)
    assert world.counted() == 4
    eventually(lambda: check_metrics(world, recount(world)) is None, what="the metrics to be scraped")
