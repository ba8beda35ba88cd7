"""What the webhook adds to a described pod, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.admission.pods import MODEL, SCHEDULER, admitted, new_container, new_context, new_pod

FROM_ASSIGNMENT = {
    "name": "NVIDIA_VISIBLE_DEVICES",
    "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['vramcast.dev/gpu-indices']"}},
}
TOLERATION = {"key": "vramcast.dev/gpu-sharing", "operator": "Exists", "effect": "NoSchedule"}
WHOLE = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}


def test_a_description_is_all_that_a_sharing_pod_has_to_say() -> None:
    pod = admitted(new_pod())
    assert pod["metadata"]["annotations"] == {
        "vramcast.dev/model": "timm/resnet50",
        "vramcast.dev/batch-size": "64",
        "vramcast.dev/share": "true",
        "vramcast.dev/injected": "share,schedulerName,toleration,NVIDIA_VISIBLE_DEVICES",
    }
    assert pod["spec"]["schedulerName"] == SCHEDULER
    assert pod["spec"]["tolerations"] == [TOLERATION]
    assert pod["spec"]["containers"][0]["env"] == [FROM_ASSIGNMENT]


def test_admitting_twice_is_admitting_once() -> None:
    once = admitted(new_pod())
    assert admitted(once) == once


def test_a_container_that_another_webhook_adds_later_gets_its_variable_too() -> None:
    pod = admitted(new_pod())
    pod["spec"]["containers"].append(new_container("proxy"))
    again = admitted(pod)
    assert [container["env"] for container in again["spec"]["containers"]] == [[FROM_ASSIGNMENT]] * 2
    assert again["metadata"] == pod["metadata"]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(new_pod({}), id="describes nothing"),
        pytest.param(new_pod(schedulerName="volcano"), id="another scheduler"),
        pytest.param(new_pod(nodeName="a"), id="bound already"),
        pytest.param(new_pod(os={"name": "windows"}), id="windows"),
        pytest.param(new_pod(nodeSelector={"kubernetes.io/os": "windows"}), id="windows by selector"),
        pytest.param(new_pod({"batch-siz": "64"}), id="nothing but a mistake"),
    ],
)
def test_a_pod_that_vramcast_does_not_place_is_left_alone(pod: Any) -> None:
    assert admitted(pod) == pod


def test_a_whole_gpu_is_handed_out_by_the_device_plugin() -> None:
    pod = admitted(new_pod(containers=[new_container(**WHOLE)]))
    assert pod["spec"]["schedulerName"] == SCHEDULER
    assert "tolerations" not in pod["spec"]
    assert "env" not in pod["spec"]["containers"][0]
    assert pod["metadata"]["annotations"]["vramcast.dev/injected"] == "schedulerName"


def test_a_gpu_of_an_init_container_or_of_a_claim_is_a_gpu() -> None:
    init, claim = new_pod(initContainers=[new_container("warm", **WHOLE)]), new_pod(resourceClaims=[{"name": "gpu"}])
    assert "vramcast.dev/share" not in admitted(init)["metadata"]["annotations"]
    assert "vramcast.dev/share" not in admitted(claim)["metadata"]["annotations"]


def test_a_namespace_may_opt_out_of_sharing() -> None:
    pod = new_pod()
    assert admitted(pod, new_context(shares=False)) == pod
    asked = admitted(new_pod({**MODEL, "share": "true"}), new_context(shares=False))
    assert asked["spec"]["schedulerName"] == SCHEDULER


def test_without_a_scheduler_of_its_own_vramcast_names_none() -> None:
    pod = admitted(new_pod(), new_context({"webhook_scheduler_name": ""}))
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert pod["spec"]["tolerations"] == [TOLERATION]


def test_the_clusters_own_scheduler_is_made_to_call_vramcast() -> None:
    context = new_context({"webhook_scheduler_name": "", "webhook_task_resource": "vramcast.dev/task"})
    pod = admitted(new_pod(containers=[new_container("a"), new_container("b", resources=None)]), context)
    assert [container["resources"] for container in pod["spec"]["containers"]] == [
        {"limits": {"vramcast.dev/task": "1"}, "requests": {"vramcast.dev/task": "1"}},
        None,
    ]
    assert admitted(pod, context) == pod
    whole = admitted(new_pod(containers=[new_container(**WHOLE)]), context)
    assert whole["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1", "vramcast.dev/task": "1"}


def test_a_service_that_only_observes_adds_nothing() -> None:
    pod = new_pod()
    assert admitted(pod, new_context({"mode": "observe"})) == pod


def test_every_container_sees_only_its_gpus() -> None:
    """CUDA images set the variable to `all`: a container that is left out would see every GPU of the node."""
    pod = new_pod(
        containers=[new_container("a"), new_container("b")],
        initContainers=[new_container("data"), new_container("log", restartPolicy="Always")],
    )
    spec = admitted(pod)["spec"]
    assert [each["env"] for each in (*spec["containers"], *spec["initContainers"])] == [[FROM_ASSIGNMENT]] * 4


@pytest.mark.parametrize("value", [{"value": "none"}, {"value": ""}, {"valueFrom": {"configMapKeyRef": {"name": "x"}}}])
def test_what_the_pod_sets_stays(value: dict[str, Any]) -> None:
    own = {"name": "NVIDIA_VISIBLE_DEVICES", **value}
    pod = new_pod(
        {**MODEL, "share": "true"},
        tolerations=[{"operator": "Exists"}],
        containers=[new_container(env=[{"name": "A", "value": "b"}, own])],
    )
    after = admitted(pod)
    assert after["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert after["spec"]["containers"] == pod["spec"]["containers"]
    assert after["metadata"]["annotations"]["vramcast.dev/injected"] == "schedulerName"


@pytest.mark.parametrize(
    ("toleration", "tolerates"),
    [
        ({"key": "vramcast.dev/gpu-sharing", "operator": "Equal", "value": "true"}, True),
        ({"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "vramcast.dev/gpu-sharing", "value": "false"}, False),
        ({"key": "vramcast.dev/gpu-sharing", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, False),
    ],
)
def test_a_toleration_of_the_sharing_taint_is_recognized(toleration: dict[str, str], tolerates: bool) -> None:
    tolerations = admitted(new_pod(tolerations=[toleration]))["spec"]["tolerations"]
    assert tolerations == ([toleration] if tolerates else [toleration, TOLERATION])


@pytest.mark.parametrize("field", ["tolerations", "initContainers", "nodeSelector", "os"])
def test_null_is_nothing(field: str) -> None:
    pod = new_pod(containers=[new_container(env=None)], **{field: None})
    assert admitted(pod)["spec"]["containers"][0]["env"] == [FROM_ASSIGNMENT]
