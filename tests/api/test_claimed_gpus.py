"""A pod whose GPU comes from another system is forecast and measured, and placed as if vramcast were not there."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.controllers.observed import SUMMARY, World, record_of, stamp
from tests.fakes import pod_manifest, sharing_node, whole_node
from vramcast.hardware.vendors import CLAIMED_GPU
from vramcast.names import NodeName
from vramcast.placement.changes import NodeSeen
from vramcast.task.pod import Ask

DESCRIBED = {name: value for name, value in SUMMARY.items() if name != "share"}
BY_CLAIM = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]}
BY_VOLCANO = {"containers": [{"name": "main", "resources": {"limits": {"volcano.sh/vgpu-number": "1"}}}]}


@pytest.fixture
def world() -> World:
    world = World()
    world.service.apply([NodeSeen(whole_node("a", 2))])
    return world


def claiming_pod(name: str = "p", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    manifest = pod_manifest(name, annotations or DESCRIBED)
    manifest["spec"] |= spec or BY_CLAIM
    return manifest


@pytest.mark.parametrize("spec", [BY_CLAIM, BY_VOLCANO])
def test_a_described_pod_that_asks_another_system_has_made_no_mistake(spec: dict[str, Any]) -> None:
    record = record_of(claiming_pod(**spec))
    assert record.invalid is None
    assert record.ask == Ask(CLAIMED_GPU, 1)
    assert record_of(claiming_pod(annotations={**DESCRIBED, "gpus": "2"}, **spec)).ask == Ask(CLAIMED_GPU, 2)


@pytest.mark.parametrize("annotation", ["gpu-memory", "gpu-fraction", "tensor-fusion.ai/vram-limit"])
def test_some_systems_are_asked_by_annotations(annotation: str) -> None:
    manifest = claiming_pod(containers=[{"name": "main"}])
    manifest["metadata"]["annotations"][annotation] = "1"
    assert record_of(manifest).ask == Ask(CLAIMED_GPU, 1)


def test_a_claim_for_something_else_changes_nothing_for_a_pod_that_shares() -> None:
    record = record_of(claiming_pod(annotations=SUMMARY))
    assert record.ask is not None
    assert record.ask.resource != CLAIMED_GPU


def test_an_undescribed_pod_with_a_claim_is_none_of_our_business() -> None:
    manifest = pod_manifest("p")
    manifest["spec"] |= BY_CLAIM
    assert not record_of(manifest).matters


def test_every_node_passes_none_is_preferred_and_the_binding_promises_nothing(world: World) -> None:
    pod = claiming_pod()
    answer = asyncio.run(world.client.filter(pod, ["a", "unknown"]))
    assert answer["NodeNames"] == ["a", "unknown"]
    body = {"Pod": pod, "Nodes": None, "NodeNames": ["a"]}
    assert asyncio.run(world.client.verb("prioritize", body)) == [{"Host": "a", "Score": 0}]
    assert asyncio.run(world.client.bind(pod, "a")) == ""
    (write,) = world.cluster.writes
    assert dict(write.annotations) == {}


def test_a_claimed_gpu_is_not_bound_to_a_node_that_shares_its_own(world: World) -> None:
    world.service.apply([NodeSeen(sharing_node("s"))])
    asyncio.run(world.client.filter(claiming_pod(), ["s"]))
    assert asyncio.run(world.client.bind(claiming_pod(), "s"))
    assert world.cluster.writes == []


def test_why_it_waits_is_not_for_vramcast_to_say(world: World) -> None:
    world.see(claiming_pod())
    shown = world.client.request("GET", "/pods/default/p").json()
    assert (shown["pod"]["reasons"], shown["advice"], shown["error"]) == ([], [], "")
    assert shown["needs_mib"]
    explained = world.client.request("POST", "/explain", msgspec.json.encode(claiming_pod())).json()
    assert explained["error"] == "another system hands out its GPU"


def test_it_takes_no_room_from_the_devices_of_the_plugin(world: World) -> None:
    before = world.service.state.ledger.device_views(NodeName("a"))
    _run(world, claiming_pod())
    assert world.service.state.ledger.device_views(NodeName("a")) == before


def test_its_run_becomes_an_outcome(world: World) -> None:
    pod = claiming_pod()
    _run(world, pod)
    world.pass_time(60)
    pod["metadata"]["annotations"]["vramcast.dev/observed-memory"] = "3Gi"
    world.see(pod)
    world.finish(pod)
    world.pass_time(60)
    (outcome,) = world.recorded
    assert outcome.peak_bytes == 3 << 30
    assert outcome.bound_bytes > outcome.median_bytes > 0


def _run(world: World, pod: dict[str, Any]) -> None:
    """On node `a`, where another scheduler put it."""
    pod["spec"]["nodeName"] = "a"
    pod["status"] = {"phase": "Running", "startTime": stamp(world.clock.now)}
    world.see(pod)
