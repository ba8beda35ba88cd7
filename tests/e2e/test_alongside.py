"""What the webhook tells other systems, on a real API server: every recipe of docs/alongside.md, claims, a quota."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.controlplane import Api, ApiError, ControlPlane, eventually, extender, scheduler_config
from tests.controlplane.objects import A100_40GB, cpu_node, shared_pod, sharing_node, whole_gpu_node
from tests.e2e.conftest import RunningService
from tests.e2e.webhook import admitting_service, create_namespace, is_registered, paths
from vramcast.settings import System

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).parents[2] / "docs/alongside.md"
GPU_CLASS = "gpu.nvidia.com"
SCHEDULER = "quota-scheduler"
Json = dict[str, Any]


def recipes() -> dict[str, list[Json]]:
    """The manifests of the page, by the heading above them."""
    found = re.findall(r"^### (.+?)$(?:(?!^###).)*?```yaml\n(.*?)```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return {heading: list(yaml.safe_load_all(text)) for heading, text in found}


@pytest.fixture(scope="module")
def api(plane: ControlPlane) -> Iterator[Api]:
    plane.api.clear()
    plane.api.create_nodes([whole_gpu_node("w", A100_40GB, 2), sharing_node("s", A100_40GB, 4)])
    yield plane.api
    plane.api.clear()


@pytest.fixture(scope="module")
def teller(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that places nothing, and tells others."""
    directory = tmp_path_factory.mktemp("told", numbered=False)
    settings = {"mode": "observe", "webhook_dialects": ",".join(System), "resource_slices": True}
    with admitting_service(plane, directory, **settings) as service:
        yield service


@pytest.fixture(scope="module")
def told(api: Api, teller: RunningService) -> str:
    """A namespace whose pods and claims it is told about."""
    assert teller.ready()
    create_namespace(api, "told", "told")
    eventually(lambda: is_registered(api, "told"), what="the webhook to be called")
    return "told"


@pytest.fixture(scope="module")
def limited(plane: ControlPlane, api: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A namespace whose pods vramcast places, with a quota of GPU memory."""
    directory = tmp_path_factory.mktemp("limited", numbered=False)
    settings = {"webhook_scheduler_name": SCHEDULER, "webhook_resource": True, "webhook_caps": "torch"}
    with admitting_service(plane, directory, **settings) as service:
        scheduler = plane.scheduler(_ignoring_the_resource(service))
        create_namespace(api, "limited", directory.name)
        eventually(lambda: is_registered(api, "limited"), what="the webhook to be called")
        yield "limited"
        scheduler.terminate()


def _ignoring_the_resource(service: RunningService) -> Json:
    config = scheduler_config(extender(service.url), name=SCHEDULER)
    ignored = {"ignoredResources": ["vramcast.dev/gpu-memory"]}
    config["profiles"][0]["pluginConfig"] = [{"name": "NodeResourcesFit", "args": ignored}]
    return config


def need_mib(pod: Json) -> int:
    """Of the recipes' task: each is told it in another way."""
    return int(pod["metadata"]["annotations"]["gpu-memory"])


@pytest.fixture(scope="module")
def expected_mib(api: Api, told: str) -> int:
    (manifest,) = recipes()["KAI"]
    return need_mib(
        api.create_pod({**manifest, "metadata": {**manifest["metadata"], "name": "need", "namespace": told}})
    )


@pytest.mark.parametrize(
    ("heading", "field", "form"),
    [
        ("HAMi", "nvidia.com/gpumem", "{mib}"),
        ("KAI", "gpu-memory", "{mib}"),
        ("Volcano", "volcano.sh/vgpu-memory", "{mib}"),
        ("Volcano's GPU share", "volcano.sh/gpu-memory", "{mib}"),
        ("Koordinator", "koordinator.sh/gpu-memory", "{twice}Mi"),
        ("gpushare", "aliyun.com/gpu-mem", "{gib}"),
        ("TensorFusion", "tensor-fusion.ai/vram-request", "{mib}Mi"),
    ],
)
def test_a_recipe_gets_its_number(api: Api, told: str, expected_mib: int, heading: str, field: str, form: str) -> None:
    (manifest,) = recipes()[heading]
    manifest["metadata"]["namespace"] = told
    pod = api.create_pod(manifest)
    written = {**pod["metadata"]["annotations"], **pod["spec"]["containers"][0]["resources"].get("requests", {})}
    number = form.format(mib=expected_mib, twice=2 * expected_mib, gib=-(-expected_mib // 1024))
    assert written[field] == number
    assert field in pod["metadata"]["annotations"]["vramcast.dev/injected"]


def test_every_recipe_is_tried() -> None:
    marks = test_a_recipe_gets_its_number.pytestmark  # type: ignore[attr-defined]
    tried = {row[0] for mark in marks if mark.name == "parametrize" for row in mark.args[1]}
    assert recipes().keys() == tried | {"Dynamic resource allocation", "Quotas, and Kueue"}


def test_the_recipe_of_a_claim_template_gets_its_number(api: Api, told: str, expected_mib: int) -> None:
    template, pod = recipes()["Dynamic resource allocation"]
    made = api.request("POST", paths(told)["ResourceClaimTemplate"], template)
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["capacity"]["requests"]["memory"] == f"{expected_mib}Mi"
    pod["metadata"]["namespace"] = told
    assert api.create_pod(pod)["spec"]["resourceClaims"]


def test_a_template_may_describe_the_claims_and_not_itself(api: Api, told: str, expected_mib: int) -> None:
    template, _ = recipes()["Dynamic resource allocation"]
    template["spec"]["metadata"] = {"annotations": template["metadata"].pop("annotations")}
    template["metadata"]["name"] = "described-inside"
    (request,) = api.request("POST", paths(told)["ResourceClaimTemplate"], template)["spec"]["spec"]["devices"][
        "requests"
    ]
    assert request["exactly"]["capacity"]["requests"]["memory"] == f"{expected_mib}Mi"


@pytest.fixture
def _two_claimable_gpus(plane: ControlPlane, api: Api) -> Iterator[None]:
    """And the vanilla scheduler, which knows nothing of vramcast."""
    device_class = {"metadata": {"name": GPU_CLASS}, "spec": {}}
    api.request("POST", "/apis/resource.k8s.io/v1/deviceclasses", device_class)
    slices = _publish_gpus(api, "w", 2)
    scheduler = plane.scheduler(scheduler_config())
    yield
    scheduler.terminate()
    api.request("DELETE", slices)


@pytest.mark.usefixtures("_two_claimable_gpus")
def test_nine_claims_are_booked_four_on_each_of_two_gpus(api: Api, told: str) -> None:
    """The scheduler adds up the memory that the webhook wrote, and the ninth waits."""
    names = [f"claimed-{number}" for number in range(9)]
    for name in names:
        _create_claimed_pod(api, told, name)
    eventually(lambda: len(_bound(api, told, names)) == 8, what="eight of nine pods to be bound")
    (waiting,) = set(names) - _bound(api, told, names)
    eventually(lambda: _is_unschedulable(api.pod(waiting, told)), what="the ninth pod to be unschedulable")
    results = [_allocated(api, told, name) for name in names if name != waiting]
    assert sorted(result["device"] for result in results) == ["gpu-0"] * 4 + ["gpu-1"] * 4
    assert {result["consumedCapacity"]["memory"] for result in results} == {"10Gi"}


def test_gpus_without_labels_are_known_from_what_their_driver_publishes(api: Api, teller: RunningService) -> None:
    api.create_nodes([cpu_node("bare")])
    slices = _publish_gpus(api, "bare", 2)
    eventually(lambda: _gpus_of(teller, "bare") == ["NVIDIA-L4"], what="the published GPUs to be seen")
    api.request("DELETE", slices)
    eventually(lambda: _gpus_of(teller, "bare") == [], what="the GPUs to be gone")


def _gpus_of(service: RunningService, node: str) -> list[str]:
    nodes = service.get("/state")["nodes"]
    return [pool["product"] for each in nodes if each["name"] == node for pool in each["pools"]]


def _publish_gpus(api: Api, node: str, count: int) -> str:
    """As a driver does whose GPUs may be shared by memory. Returns the path of what it published."""
    attributes = {"productName": {"string": "NVIDIA L4"}, "type": {"string": "gpu"}}
    memory = {"value": "40Gi", "requestPolicy": {"default": "40Gi", "validRange": {"min": "1Mi", "step": "1Mi"}}}
    device = {"allowMultipleAllocations": True, "attributes": attributes, "capacity": {"memory": memory}}
    spec = {
        "driver": GPU_CLASS,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": f"gpu-{number}", **device} for number in range(count)],
    }
    devices = "/apis/resource.k8s.io/v1"
    api.request("POST", f"{devices}/resourceslices", {"metadata": {"name": f"{node}-gpus"}, "spec": spec})
    return f"{devices}/resourceslices/{node}-gpus"


def _create_claimed_pod(api: Api, namespace: str, name: str) -> None:
    claim = {
        "metadata": {"name": name, "annotations": {"vramcast.dev/gpu-memory": "10Gi"}},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": GPU_CLASS}}]}},
    }
    api.request("POST", paths(namespace)["ResourceClaim"], claim)
    container = {"name": "train", "image": "trainer", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [container]}
    api.create_pod({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def _bound(api: Api, namespace: str, names: list[str]) -> set[str]:
    return {name for name in names if api.pod(name, namespace)["spec"].get("nodeName")}


def _is_unschedulable(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)


def _allocated(api: Api, namespace: str, name: str) -> Json:
    claim = api.get(f"{paths(namespace)['ResourceClaim']}/{name}")
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    return dict(result)


def test_a_quota_refuses_the_pod_that_would_pass_it_and_the_others_run(api: Api, limited: str) -> None:
    (quota,) = recipes()["Quotas, and Kueue"]
    made = api.request("POST", paths(limited)["ResourceQuota"], quota)
    # As the quota controller, which does not run here.
    status = {"status": {"hard": made["spec"]["hard"], "used": dict.fromkeys(made["spec"]["hard"], "0")}}
    api.patch(f"{paths(limited)['ResourceQuota']}/gpu-memory/status", status)
    for name in ("a", "b", "c"):
        api.create_pod(_described(name, limited, "30Gi"))
    with pytest.raises(
        ApiError, match=r"exceeded quota: gpu-memory, requested: requests\.vramcast\.dev/gpu-memory=30Gi"
    ):
        api.create_pod(_described("d", limited, "30Gi"))
    api.create_pod(_described("e", limited, "10Gi"))
    names = ["a", "b", "c", "e"]
    eventually(lambda: _bound(api, limited, names) == set(names), what="the pods within the quota to be bound")
    pod = api.pod("a", limited)
    assert pod["spec"]["containers"][0]["resources"]["limits"]["vramcast.dev/gpu-memory"] == "30Gi"
    assert pod["metadata"]["annotations"]["vramcast.dev/limit-torch"].startswith("per_process_memory_fraction:0.8")


def _described(name: str, namespace: str, memory: str) -> Json:
    """Only the description: no scheduler, no toleration, no share."""
    pod = shared_pod(name, memory)
    return {
        "metadata": {"name": name, "namespace": namespace, "annotations": {"vramcast.dev/gpu-memory": memory}},
        "spec": {"containers": pod["spec"]["containers"]},
    }
