"""Mode observe forecasts and measures everything and blocks nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.controllers.observed import SUMMARY, World, record_of, stamp
from tests.fakes import pod_manifest, shared_pod
from vramcast.placement.changes import PodSeen


@pytest.fixture
def world() -> World:
    return World(mode="observe")


def placed_by_another_scheduler(world: World, name: str, annotations: dict[str, str]) -> dict[str, Any]:
    manifest = pod_manifest(name, annotations)
    manifest["spec"]["nodeName"] = "a"
    manifest["status"] = {"phase": "Running", "startTime": stamp(world.clock.now)}
    world.see(manifest)
    return manifest


def test_every_node_passes_whatever_the_pod_needs_and_nothing_is_held(world: World) -> None:
    for pod in (shared_pod("huge", "900Gi"), shared_pod("misspelt", "-1"), pod_manifest("plain")):
        answer = asyncio.run(world.client.filter(pod, ["a", "unknown"]))
        assert answer["NodeNames"] == ["a", "unknown"], answer
    assert len(world.service.state.ledger.holds) == 0
    assert len(world.service.state.unschedulable) == 0


def test_every_node_passes_even_while_the_cluster_view_is_stale(world: World) -> None:
    world.cluster.stale_seconds = 1e6
    assert asyncio.run(world.client.filter(shared_pod("p"), ["a"]))["NodeNames"] == ["a"]


def test_no_node_is_preferred_and_nothing_is_bound(world: World) -> None:
    body = {"Pod": shared_pod("p"), "Nodes": None, "NodeNames": ["a"]}
    assert asyncio.run(world.client.verb("prioritize", body)) == [{"Host": "a", "Score": 0}]
    assert "mode observe binds nothing" in asyncio.run(world.client.bind(shared_pod("p"), "a"))
    assert world.cluster.writes == []


def test_runs_placed_by_another_scheduler_become_outcomes(world: World) -> None:
    pod = placed_by_another_scheduler(world, "p", {**SUMMARY, "gpus": "2"})
    world.telemetry.used_mib = {0: 3_000.0, 1: 3_100.0}
    world.pass_time(60)
    world.finish(pod)
    world.telemetry.used_mib = {0: 0.0, 1: 0.0}
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.peak_bytes == 3_100 << 20
    assert outcome.bound_bytes > outcome.median_bytes > 0


def test_each_placement_by_another_scheduler_gets_one_verdict(world: World) -> None:
    fits = placed_by_another_scheduler(world, "fits", {"share": "true", "gpu-memory": "30Gi"})
    placed_by_another_scheduler(world, "too-much", {"share": "true", "gpu-memory": "30Gi"})
    placed_by_another_scheduler(world, "huge", {"share": "true", "gpu-memory": "300Gi"})
    world.service.apply([PodSeen(record_of(fits))])
    assert world.metric("vramcast_observed_placements_total", verdict="fits") == 1
    assert world.metric("vramcast_observed_placements_total", verdict="no_room") == 1
    assert world.metric("vramcast_observed_placements_total", verdict="too_small") == 1


def test_only_mode_observe_counts_placement_verdicts() -> None:
    world = World()
    placed_by_another_scheduler(world, "huge", {"share": "true", "gpu-memory": "300Gi"})
    assert world.metric("vramcast_observed_placements_total") == 0
