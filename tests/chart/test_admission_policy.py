"""Only vramcast writes the annotations that record its promises. The API server enforces it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chart.burst import SCHEDULER
from tests.chart.conftest import NewReplica, await_leader
from tests.chart.helm import Helm, named, offline_helm
from tests.controlplane import Api, ApiError, ControlPlane, eventually
from tests.controlplane.objects import A100_40GB, pod, shared_pod, sharing_node
from vramcast.task.vocabulary import Written

pytestmark = pytest.mark.e2e

KEYS = [key.value for key in Written]
MEMORY, INDICES = Written.RESERVED_MEMORY.value, Written.GPU_INDICES.value


def denied(write: Callable[[], object], *keys: str) -> bool:
    try:
        write()
    except (ApiError, RuntimeError) as error:
        return f"only vramcast may set, change or remove {', '.join(keys)}:" in str(error)
    return False


def bound(api: Api, name: str) -> Callable[[], str | None]:
    return lambda: api.pod(name)["spec"].get("nodeName")


def create(api: Api, annotations: dict[str, str]) -> Callable[[], object]:
    manifest = pod("fake", annotations)
    return lambda: api.request("POST", "/api/v1/namespaces/default/pods", manifest, query={"dryRun": "All"})


def await_policy(api: Api) -> None:
    write = create(api, {MEMORY: "1Mi"})
    eventually(lambda: denied(write, MEMORY), what="the policy to take effect")


def test_nobody_can_edit_the_promise_of_a_bound_pod(
    plane: ControlPlane, api: Api, release: str, new_replica: NewReplica
) -> None:
    replica = new_replica("vramcast-0").start()
    await_leader(replica)
    await_policy(api)
    api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
    api.create_pod(shared_pod("task", "30Gi", scheduler=SCHEDULER))
    assert eventually(bound(api, "task"), what="vramcast's Binding to be admitted") == "gpu"
    written = api.pod("task")["metadata"]["annotations"]
    assert written[MEMORY] == "30Gi"

    annotate = ("annotate", "--overwrite", "pod", "task")
    assert denied(lambda: plane.kubectl(*annotate, f"{MEMORY}=1Mi"), MEMORY)
    assert denied(lambda: plane.kubectl(*annotate, f"{MEMORY}-", f"{INDICES}-"), MEMORY, INDICES)
    for key in KEYS:
        edit = {"metadata": {"annotations": {key: "7"}}}
        assert denied(lambda edit=edit: api.patch_pod("task", edit), key)  # type: ignore[misc]
        assert denied(lambda edit=edit: api.patch_pod_status("task", edit), key)  # type: ignore[misc]
    assert api.pod("task")["metadata"]["annotations"] == written

    plane.kubectl(*annotate, "example.com/note=kept")
    api.finish_pod("task")
    api.delete_pod("task")


def test_nobody_can_fake_a_promise(api: Api, release: str) -> None:
    await_policy(api)
    for key in KEYS:
        assert denied(create(api, {key: "0"}), key)
    create(api, {"share": "true", "gpu-memory": "1Gi"})()

    api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
    api.create_pod(shared_pod("task", "10Gi", scheduler="nobody"))
    assert denied(lambda: api.bind("task", "gpu", {MEMORY: "1Mi", INDICES: "0"}), MEMORY, INDICES)
    api.bind("task", "gpu")


def test_vramcast_requeues_pods_under_the_policy(api: Api, release: str, new_replica: NewReplica) -> None:
    replica = new_replica("vramcast-0").start()
    await_leader(replica)
    await_policy(api)
    api.create_nodes([sharing_node("gpu", A100_40GB, 1)])
    api.create_pod(shared_pod("first", "30Gi", scheduler=SCHEDULER))
    eventually(bound(api, "first"), what="the first pod to be bound")
    api.create_pod(shared_pod("second", "30Gi", scheduler=SCHEDULER))
    eventually(lambda: replica.metric("vramcast_unschedulable_pods") == 1, what="the second pod not to fit")
    api.delete_pod("first")
    eventually(bound(api, "second"), what="the second pod to be bound")
    assert "denied request" not in replica.logs()


def test_the_policy_names_every_annotation_that_vramcast_writes() -> None:
    policy = named(offline_helm().template({}), "ValidatingAdmissionPolicy")["spec"]
    (changed,) = [variable["expression"] for variable in policy["variables"] if variable["name"] == "changed"]
    assert {f"vramcast.dev/{part}" for part in changed.split("]")[0].strip("[").replace("'", "").split(", ")} == {*KEYS}


@pytest.mark.parametrize(
    ("values", "version", "kinds"),
    [
        ({}, "v1.29.9", 0),
        ({}, "v1.30.1-gke.100", 1),
        ({"mode": "extender"}, "v1.36.3", 2),
        ({"mode": "observe"}, "v1.36.3", 0),
        ({"admissionPolicy": {"enabled": False}}, "v1.36.3", 0),
    ],
)
def test_the_policy_is_installed_where_it_can_be_and_makes_sense(
    values: dict[str, object], version: str, kinds: int
) -> None:
    documents = offline_helm().template(values, version)
    assert len([d for d in documents if d["kind"] == "ValidatingAdmissionPolicy"]) == kinds
    assert len([d for d in documents if d["kind"] == "ValidatingAdmissionPolicyBinding"]) == kinds


def test_other_users_can_be_exempt() -> None:
    helm: Helm = offline_helm()
    policy = named(helm.template({"admissionPolicy": {"exemptUsers": ["restorer"]}}), "ValidatingAdmissionPolicy")
    (condition,) = policy["spec"]["matchConditions"]
    assert condition["expression"].endswith("in ['system:serviceaccount:gpu:vramcast','restorer'])")
