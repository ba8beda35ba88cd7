"""Killed in the middle: what was counted and learned is as it was, and what happened meanwhile is counted once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.controlplane import ApiError, eventually
from tests.controlplane.objects import A100_40GB
from tests.e2e.observing.conftest import Begin
from tests.e2e.observing.recount import check_metrics, recount
from tests.e2e.observing.world import MEMORY_PATH, PATIENCE_SECONDS, Run, World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

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
    """What the next of them would be promised."""
    return world.forecast(Run("ask", TASK, 0, A100).manifest(), A100)


def lasting(world: World) -> list[str]:
    return [line for line in world.metrics_text().splitlines() if LASTING.match(line)]


def kept_outcomes(world: World) -> int:
    """By the ConfigMap, which an administrator can read as well."""
    try:
        kept = world.api.get(MEMORY_PATH)["data"]
    except ApiError as error:
        if error.status != 404:
            raise
        return 0
    return len(json.loads(kept["accuracy.json"])["counted"])


def test_a_killed_service_goes_on_where_it_was_and_counts_nobody_twice(begin: Begin) -> None:
    world = begin(NODES)
    fresh = ask(world)
    # Half as much again as forecast: there is something to learn.
    need_mib = round(fresh["median_bytes"] * 1.5) >> 20
    world.run_to_the_end(runs("first", [need_mib + 10 * number for number in range(12)]))
    learned = ask(world)
    assert learned["bound_bytes"] > 1.02 * fresh["bound_bytes"]
    eventually(lambda: kept_outcomes(world) == 12, PATIENCE_SECONDS, "the outcomes to be kept")

    meanwhile, through = runs("meanwhile", [3_000, 3_100]), runs("through", [3_200, 3_300])
    world.begin([*meanwhile, *through])
    world.await_peaks([*meanwhile, *through])
    world.service.kill()
    world.end(meanwhile)
    world.service.start()
    world.await_counted()
    world.end(through)
    world.await_counted()
    world.await_polls(4)
    assert world.counted() == 16
    assert world.service.metric("vramcast_unmeasured_runs_total") == 0
    eventually(lambda: check_metrics(world, recount(world)) is None, PATIENCE_SECONDS, "the metrics to be scraped")

    # Once more, with nothing in between: to the last digit.
    eventually(lambda: kept_outcomes(world) == 16, PATIENCE_SECONDS, "the outcomes to be kept")
    before, bound = lasting(world), ask(world)["bound_bytes"]
    world.service.kill()
    world.service.start()
    world.await_polls(4)
    assert lasting(world) == before
    assert ask(world)["bound_bytes"] == bound


def test_what_could_not_be_kept_before_the_end_is_counted_again_from_history(begin: Begin) -> None:
    world = begin(NODES, calibration_save_seconds="3600")
    world.run_to_the_end(runs("kept", [4_000]))
    eventually(lambda: kept_outcomes(world) == 1, PATIENCE_SECONDS, "the first outcome to be kept")
    world.run_to_the_end(runs("lost", [4_100, 4_200, 4_300]))
    world.service.kill()
    assert kept_outcomes(world) == 1
    world.service.start()
    world.await_counted()
    world.await_polls(4)
    assert world.counted() == 4
    eventually(lambda: check_metrics(world, recount(world)) is None, PATIENCE_SECONDS, "the metrics to be scraped")
