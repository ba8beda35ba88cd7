"""One pod at a time, each through the real scheduler."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.controlplane import Api, Recorder, eventually
from tests.controlplane.objects import (
    A100,
    A100_40GB,
    L40S,
    MIG_1G_10GB,
    T4,
    cpu_node,
    mig_mixed_node,
    pod,
    shared_pod,
    sharing_node,
    time_sliced_node,
    whole_gpu_node,
    whole_gpu_pod,
)
from tests.e2e.conftest import SCHEDULER, RunningService

pytestmark = pytest.mark.e2e


def bound_node(api: Api, name: str) -> str:
    return str(eventually(lambda: api.pod(name)["spec"].get("nodeName"), what=f"{name} to be bound"))


def failure(api: Api, name: str, expected: str) -> str:
    """The pod's FailedScheduling message, once one contains `expected`.

    The first message may still be about the nodes of the previous test, because the scheduler's cache lags.
    """

    def message() -> str:
        messages = [event["message"] for event in api.events(about=name) if event["reason"] == "FailedScheduling"]
        matching = [text for text in messages if expected in text]
        assert matching, f"{expected!r} not in {messages}"
        return str(matching[-1])

    return eventually(message, what=f"a FailedScheduling event about {name}")


def written_on(api: Api, name: str) -> dict[str, str]:
    found: dict[str, str] = api.pod(name)["metadata"].get("annotations", {})
    return {key.removeprefix("vramcast.dev/"): value for key, value in found.items()}


def create(api: Api, manifest: dict[str, Any]) -> str:
    name: str = manifest["metadata"]["name"]
    api.create_pod(manifest)
    return name


def test_a_pod_too_big_for_every_gpu_stays_pending_with_one_readable_reason(api: Api) -> None:
    api.create_nodes([sharing_node(f"l40s-{n}", L40S) for n in range(3)])
    huge = create(api, shared_pod("huge", "60Gi", scheduler=SCHEDULER))
    assert failure(api, huge, "0/3 nodes are available: 3 GPU too small for 60.0 GiB.")
    assert "nodeName" not in api.pod(huge)["spec"]


def test_a_pod_that_fits_only_one_product_lands_on_it(api: Api) -> None:
    api.create_nodes([whole_gpu_node("t4", T4), whole_gpu_node("a100", A100), whole_gpu_node("l40s", L40S)])
    large = create(api, whole_gpu_pod("large", annotations={"gpu-memory": "70Gi"}, scheduler=SCHEDULER))
    assert bound_node(api, large) == "a100"


def test_a_summary_is_forecast_and_written_onto_the_pod(api: Api) -> None:
    api.create_nodes([sharing_node("a100", A100_40GB, 2)])
    summary = {"parameters": "25.6M", "activations": "11.1M", "batch-size": "64", "optimizer": "sgd-momentum"}
    name = create(api, shared_pod("resnet50", None, annotations=summary, scheduler=SCHEDULER))
    assert bound_node(api, name) == "a100"
    written = written_on(api, name)
    assert written["gpu-indices"] == "0"
    assert written["model-version"].startswith("bigru-transformer-")
    assert written["reserved-memory"].endswith(("Mi", "Gi"))
    assert written["forecast-memory"].endswith(("Mi", "Gi"))
    event = eventually(lambda: [e for e in api.events(about=name) if e["reason"] == "GpuAssigned"])[0]
    assert "GPU 0 on a100" in event["message"]


def test_sharing_pods_pack_onto_one_gpu_until_it_is_full(api: Api) -> None:
    api.create_nodes([sharing_node("a100", A100_40GB, 2)])
    indices = []
    for number in range(4):
        name = create(api, shared_pod(f"pod-{number}", "18Gi", scheduler=SCHEDULER))
        bound_node(api, name)
        indices.append(written_on(api, name)["gpu-indices"])
    assert indices == ["0", "0", "1", "1"]
    one_too_many = create(api, shared_pod("one-too-many", "18Gi", scheduler=SCHEDULER))
    assert failure(api, one_too_many, "GPU memory promised to other pods, 18.0 GiB needed")


def test_a_pod_that_needs_several_gpus_gets_all_of_them(api: Api) -> None:
    api.create_nodes([sharing_node("a100", A100_40GB, 4)])
    name = create(api, shared_pod("three", "30Gi", gpus=3, scheduler=SCHEDULER))
    bound_node(api, name)
    assert written_on(api, name)["gpu-indices"] == "0,1,2"


def test_mig_slices_are_gpus_of_their_own_size(api: Api) -> None:
    api.create_nodes([mig_mixed_node("mig", slices={MIG_1G_10GB: 7})])
    resources = {"nvidia.com/mig-1g.10gb": "1"}
    fits = create(api, pod("fits", {"gpu-memory": "9Gi"}, resources=resources, scheduler=SCHEDULER))
    assert bound_node(api, fits) == "mig"
    too_big = create(api, pod("too-big", {"gpu-memory": "10Gi"}, resources=resources, scheduler=SCHEDULER))
    assert failure(api, too_big, "GPU too small for 10.0 GiB")


def test_on_time_sliced_gpus_a_pod_must_fit_whichever_gpu_the_kubelet_picks(api: Api) -> None:
    api.create_nodes([time_sliced_node("sliced", A100_40GB, count=2, replicas=2)])
    for number in range(2):
        manifest = whole_gpu_pod(f"pod-{number}", annotations={"gpu-memory": "19Gi"}, scheduler=SCHEDULER)
        assert bound_node(api, create(api, manifest)) == "sliced"
    # The kubelet may put both 19 GiB pods on one GPU or one on each, so 25 GiB is not safe on either.
    third = create(api, whole_gpu_pod("third", annotations={"gpu-memory": "25Gi"}, scheduler=SCHEDULER))
    assert failure(api, third, "GPU memory promised to other pods")


def test_a_misspelt_annotation_gets_a_warning_event_and_the_pod_is_still_bound(api: Api) -> None:
    api.create_nodes([whole_gpu_node("a100", A100)])
    name = create(api, whole_gpu_pod("typo", annotations={"batch_size": "32"}, scheduler=SCHEDULER))
    assert bound_node(api, name) == "a100"
    event = eventually(lambda: [e for e in api.events(about=name) if e["reason"] == "InvalidTaskDescription"])[0]
    assert "vramcast.dev/batch_size" in event["message"]
    assert "did you mean vramcast.dev/batch-size?" in event["message"]
    assert event["type"] == "Warning"


def test_an_unannotated_pod_is_bound_untouched(api: Api) -> None:
    api.create_nodes([cpu_node("cpu")])
    # The scheduler may still list nodes of the previous test, and vramcast does not filter for this pod.
    here = {"kubernetes.io/hostname": "cpu"}
    name = create(api, pod("plain", scheduler=SCHEDULER, nodeSelector=here))
    assert bound_node(api, name) == "cpu"
    assert written_on(api, name) == {}


def test_sharing_and_device_plugin_pods_never_land_on_the_same_node(api: Api) -> None:
    api.create_nodes([sharing_node("sharing", A100), whole_gpu_node("whole", A100)])
    assert bound_node(api, create(api, shared_pod("shares", "10Gi", scheduler=SCHEDULER))) == "sharing"
    whole = whole_gpu_pod("takes-a-whole-one", annotations={"gpu-memory": "10Gi"}, scheduler=SCHEDULER)
    assert bound_node(api, create(api, whole)) == "whole"


def test_a_pod_bound_by_another_scheduler_counts(api: Api, service: RunningService) -> None:
    api.create_nodes([sharing_node("taken", A100_40GB, 1), sharing_node("free", A100_40GB, 1)])
    elsewhere = shared_pod("elsewhere", "30Gi", scheduler="another-scheduler", nodeName="taken")
    create(api, elsewhere)
    promised = eventually(lambda: service.get("/state?node=taken")["nodes"][0]["pools"][0]["gpus"][0]["promised_mib"])
    assert promised == 30 * 1024
    for number in range(2):
        create(api, shared_pod(f"ours-{number}", "18Gi", scheduler=SCHEDULER))
    assert {bound_node(api, f"ours-{number}") for number in range(2)} == {"free"}


def test_a_deleted_pods_room_is_reused_long_before_the_scheduler_would_retry_by_itself(api: Api) -> None:
    api.create_nodes([sharing_node("a100", A100_40GB, 1)])
    bound_node(api, create(api, shared_pod("first", "30Gi", scheduler=SCHEDULER)))
    create(api, shared_pod("waits", "30Gi", scheduler=SCHEDULER))
    failure(api, "waits", "GPU memory promised to other pods")
    with Recorder(api) as recorder:
        api.delete_pod("first")
        deleted_at = time.monotonic()
        bound_node(api, "waits")
        bound = [event for event in recorder.sync().bindings() if event.state.name == "waits"]
    # Two seconds on a quiet machine. By itself the scheduler retries after five minutes.
    assert bound[0].seen_at - deleted_at < 60
