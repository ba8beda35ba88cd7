"""GPU memory as an extended resource: the memory of all GPUs, once per pod, for pods that vramcast places."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.pods import admitted, new_container, new_context, new_pod
from tests.admission.test_dialects import needs

NAME = "vramcast.dev/gpu-memory"


def quota_context(gpus: int = 1, **settings: Any) -> Any:
    return new_context({"webhook_resource": True, **settings}, needs=needs(gpus))


def test_the_reserved_memory_becomes_a_resource_of_the_first_container() -> None:
    pod = admitted(new_pod(containers=[new_container("train"), new_container("proxy")]), quota_context())
    first, second = pod["spec"]["containers"]
    assert first["resources"] == {"limits": {NAME: "10001Mi"}, "requests": {NAME: "10001Mi"}}
    assert second["resources"] == {}


def test_the_memory_of_every_gpu_counts() -> None:
    pod = admitted(new_pod(containers=[new_container(resources={"limits": {"nvidia.com/gpu": "2"}})]), quota_context(2))
    assert pod["spec"]["containers"][0]["resources"]["limits"][NAME] == "20002Mi"


@pytest.mark.parametrize("place", ["containers", "initContainers"])
def test_a_pod_that_has_the_resource_keeps_it(place: str) -> None:
    own = new_container(resources={"limits": {NAME: "1Gi"}})
    pod = admitted(new_pod(**{"containers": [new_container()], place: [own]}), quota_context())
    made = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
    assert [each["resources"] for each in made if each["resources"]] == [{"limits": {NAME: "1Gi"}}]


@pytest.mark.parametrize(
    ("settings", "spec"),
    [({"webhook_resource": False}, {}), ({"mode": "observe"}, {}), ({}, {"schedulerName": "volcano"})],
)
def test_other_pods_do_not_get_it(settings: dict[str, Any], spec: dict[str, Any]) -> None:
    assert NAME not in str(admitted(new_pod(**spec), quota_context(**settings)))


def test_without_a_forecast_nothing_is_counted() -> None:
    assert NAME not in str(admitted(new_pod(), new_context({"webhook_resource": True})))


def test_admitting_twice_is_admitting_once() -> None:
    once = admitted(new_pod(), quota_context())
    assert admitted(once, quota_context()) == once
