"""Mode `extender` while vramcast is down: described pods wait, nothing else does, and vramcast's own pod comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.conftest import NAMESPACE
from tests.chart.extender import ExtenderService, extender_snippet
from tests.chart.helm import CHART, Helm
from tests.controlplane import Api, ApiError, ControlPlane, eventually, scheduler_config
from tests.controlplane.objects import A100_40GB, cpu_node, pod, shared_pod, sharing_node, whole_gpu_node, whole_gpu_pod

pytestmark = pytest.mark.e2e

Json = dict[str, Any]
TASK = {"vramcast.dev/task": "1"}


@pytest.fixture
def service(plane: ControlPlane, api: Api, helm: Helm, tmp_path: Path) -> Iterator[ExtenderService]:
    """Installed, not running."""
    helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values={"mode": "extender"})
    created = ExtenderService(plane, "vramcast", tmp_path)
    yield created
    created.process.kill()
    helm.run("uninstall", "vramcast", f"--namespace={NAMESPACE}")


@pytest.fixture
def default_scheduler(plane: ControlPlane, helm: Helm, service: ExtenderService) -> Iterator[None]:
    """The cluster's own kube-scheduler, configured as the notes tell."""
    entry = service.entry(extender_snippet(helm, "vramcast"))
    scheduler = plane.scheduler(scheduler_config(entry, podMaxBackoffSeconds=2))
    yield
    scheduler.terminate()


def own_pod(api: Api) -> Json:
    """What the Deployment controller creates when vramcast's pod is gone."""
    template = api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/vramcast")["spec"]["template"]
    return {"metadata": {**template["metadata"], "name": "own", "namespace": NAMESPACE}, "spec": template["spec"]}


def bound(api: Api, name: str, namespace: str = "default") -> Callable[[], str | None]:
    return lambda: api.pod(name, namespace)["spec"].get("nodeName")


def refused(api: Api, name: str) -> Callable[[], bool]:
    """The scheduler has tried the pod, and the extender did not answer."""
    return lambda: any("connection refused" in event["message"] for event in api.events(about=name))


def test_an_outage_holds_up_described_pods_and_nothing_else(
    api: Api, service: ExtenderService, default_scheduler: None
) -> None:
    api.create_nodes([cpu_node("cpu"), sharing_node("shared", A100_40GB, 1), whole_gpu_node("whole", A100_40GB, 2)])
    for outage in range(2):
        # The described pods first: if they blocked the queue, the others would wait behind them.
        api.create_pod(shared_pod(f"shares-{outage}", "10Gi", resources=TASK))
        api.create_pod(whole_gpu_pod(f"describes-{outage}", annotations={"gpu-memory": "10Gi"}, resources=TASK))
        api.create_pod(pod(f"web-{outage}"))
        api.create_pod(own_pod(api))
        eventually(bound(api, "own", NAMESPACE), what="vramcast's own pod to be bound")
        eventually(bound(api, f"web-{outage}"), what="an ordinary pod to be bound")
        if not outage:
            api.create_pod(whole_gpu_pod("undescribed"))
            eventually(bound(api, "undescribed"), what="an undescribed GPU pod to be bound")
        for name in (f"shares-{outage}", f"describes-{outage}"):
            eventually(refused(api, name), what=f"the scheduler to try {name}")
            assert bound(api, name)() is None
        service.start()
        assert eventually(bound(api, f"shares-{outage}"), what="the sharing pod to be bound") == "shared"
        api.delete_pod("own", NAMESPACE)
        if not outage:
            assert eventually(bound(api, "describes-0"), what="the described pod to be bound") == "whole"
            api.delete_pod("describes-0")
        else:
            eventually(bound(api, "describes-1"), what="the described pod to be bound")
        service.process.kill()
    written = api.pod("shares-0")["metadata"]["annotations"]
    assert written["vramcast.dev/gpu-indices"] == "0"


def test_a_described_pod_that_would_bypass_vramcast_is_not_admitted(api: Api, service: ExtenderService) -> None:
    def rejected(manifest: Json) -> bool:
        try:
            api.request("POST", "/api/v1/namespaces/default/pods", manifest, query={"dryRun": "All"})
        except ApiError as error:
            return 'resources.limits "vramcast.dev/task: 1"' in str(error)
        return False

    # The API server notices a new policy within a second or so.
    eventually(lambda: rejected(shared_pod("bare")), what="the policy to take effect")
    assert rejected(whole_gpu_pod("whole", annotations={"model": "timm/resnet50"}))
    assert not rejected(shared_pod("task", resources=TASK))
    assert not rejected(whole_gpu_pod("undescribed"))
    assert not rejected(pod("web"))
    assert not rejected(shared_pod("elsewhere", scheduler="another-scheduler"))
