"""The admission webhook of a release on the real API server: who is called, what is filled in, and what fails open."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.burst import SCHEDULER
from tests.chart.conftest import NAMESPACE, QUICK, await_leader, uninstall
from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica
from tests.chart.webhook import OtherWebhook, failed_open, fires, kubectl, point_service_at
from tests.controlplane import ApiError, ControlPlane, eventually
from tests.controlplane.objects import A100, A100_40GB, sharing_node
from tests.docs.pages import REPOSITORY, blocks
from tests.serve.identities import make_identity

pytestmark = pytest.mark.e2e

TEAM, UNSHARED, OTHER = "team", "whole-gpus", "elsewhere"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/vramcast-webhook"
TAINT = {"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}


@dataclass(frozen=True, slots=True)
class Stage:
    plane: ControlPlane
    replica: Replica

    @property
    def asked(self) -> float:
        return self.replica.metric("vramcast_admissions_total")


@pytest.fixture(scope="module")
def stage(plane: ControlPlane, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    plane.api.clear()
    values = {**QUICK, "webhook": {"enabled": True}}
    helm.run("install", "vramcast", str(CHART), f"--namespace={NAMESPACE}", values=values)
    managed = {"vramcast.dev/managed": "true"}
    for name, labels in ((TEAM, managed), (UNSHARED, {**managed, "vramcast.dev/share": "false"}), (OTHER, {})):
        plane.api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    plane.api.create_nodes([
        sharing_node("small", A100_40GB, 1, taints=[TAINT]),
        sharing_node("large", A100, 2, taints=[TAINT]),
    ])  # fmt: skip
    directory = tmp_path_factory.mktemp("webhook")
    replica = Replica(plane, NAMESPACE, "vramcast", "vramcast-0", directory / "vramcast-0").start()
    point_service_at(plane.api, replica.webhook_port)
    stage = Stage(plane, replica)
    await_leader(replica)
    await_webhook(stage)
    yield stage
    replica.kill()
    uninstall(plane, helm)
    plane.api.clear()


def await_webhook(stage: Stage) -> None:
    """The API server learns of configurations and endpoints through watches of its own."""
    eventually(lambda: "schedulerName" in injected(stage, described("probe")), what="the webhook to be called")


def described(name: str, namespace: str = TEAM, **annotations: str) -> Any:
    given = {f"vramcast.dev/{key}": value for key, value in (annotations or {"gpu-memory": "10Gi"}).items()}
    containers = [{"name": "train", "image": "trainer"}]
    metadata = {"name": name, "namespace": namespace, "annotations": given}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def try_out(stage: Stage, pod: Any) -> Any:
    """The pod as the API server would store it."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods"
    return stage.plane.api.request("POST", path, pod, query={"dryRun": "All"})


def injected(stage: Stage, pod: Any) -> str:
    words: str = try_out(stage, pod)["metadata"]["annotations"].get("vramcast.dev/injected", "")
    return words


def readme_job() -> str:
    """The first Job of the README that has no scheduler: all that a user writes."""
    (job,) = [block for block in blocks(REPOSITORY / "README.md", "yaml") if "kind: Job" in block]
    return job


def pod_of(job: Any) -> Any:
    """What the Job controller makes of a Job; it does not run here."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"],
             "controller": True, "blockOwnerDeletion": True}  # fmt: skip
    template = job["spec"]["template"]
    metadata = {**template["metadata"], "generateName": f"{job['metadata']['name']}-", "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


def test_the_job_of_the_readme_needs_no_more_than_its_description(stage: Stage) -> None:
    api = stage.plane.api
    given = yaml.safe_load(readme_job())["spec"]["template"]
    assert {key.removeprefix("vramcast.dev/") for key in given["metadata"]["annotations"]} == {"model", "batch-size"}
    assert set(given["spec"]) == {"restartPolicy", "containers"}

    told = kubectl(stage.plane, "apply", f"--namespace={TEAM}", "--filename=-", manifest=readme_job())
    (line,) = told.warnings
    assert line.startswith("vramcast: needs ")
    assert line.endswith(" at risk 0.05; fits A100-SXM4-40GB, A100-SXM4-80GB")

    job = api.get(f"/apis/batch/v1/namespaces/{TEAM}/jobs/resnet50")
    assert job["spec"]["template"]["metadata"]["annotations"] == given["metadata"]["annotations"], "left as it was"
    made = api.request("POST", f"/api/v1/namespaces/{TEAM}/pods", pod_of(job))
    assert made["spec"]["schedulerName"] == SCHEDULER
    name = made["metadata"]["name"]
    eventually(lambda: api.pod(name, TEAM)["spec"].get("nodeName"), what="the pod to be bound")
    pod = api.pod(name, TEAM)
    annotations = pod["metadata"]["annotations"]
    assert annotations["vramcast.dev/gpu-indices"] == "0"
    assert annotations["vramcast.dev/reserved-memory"]
    assert annotations["vramcast.dev/injected"].startswith("share,schedulerName,toleration,NVIDIA_VISIBLE_DEVICES")
    (variable,) = [v for v in pod["spec"]["containers"][0]["env"] if v["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.annotations['vramcast.dev/gpu-indices']"


def test_mistakes_reach_the_client_of_kubectl_apply(stage: Stage) -> None:
    pod = described("typo", **{"model": "timm/resnet50", "batch-sise": "64"})
    told = kubectl(stage.plane, "apply", "--filename=-", manifest=json.dumps(pod))
    (line,) = told.warnings
    assert "did you mean vramcast.dev/batch-size?" in line
    assert stage.plane.api.pod("typo", TEAM)["spec"]["schedulerName"] == "default-scheduler"

    job = yaml.safe_load(readme_job())
    job["metadata"] |= {"name": "misplaced", "annotations": job["spec"]["template"]["metadata"].pop("annotations")}
    told = kubectl(stage.plane, "apply", f"--namespace={TEAM}", "--filename=-", manifest=json.dumps(job))
    (line,) = told.warnings
    assert line.endswith("without effect there: move to spec.template.metadata.annotations")


@pytest.mark.parametrize("kind", ["Deployment", "CronJob", "StatefulSet", "DaemonSet"])
def test_other_workloads_are_looked_at_too(stage: Stage, kind: str) -> None:
    labels = {"app": "train"}
    pod = described("train")
    template = {"metadata": {"annotations": pod["metadata"]["annotations"], "labels": labels}, "spec": pod["spec"]}
    spec: Any = {"template": template, "selector": {"matchLabels": labels}}
    if kind == "StatefulSet":
        spec["serviceName"] = "train"
    if kind == "CronJob":
        template["spec"]["restartPolicy"] = "Never"
        spec = {"schedule": "0 0 * * *", "jobTemplate": {"spec": {"template": template}}}
    group = "batch/v1" if kind == "CronJob" else "apps/v1"
    workload = {"apiVersion": group, "kind": kind, "metadata": {"name": "train", "namespace": TEAM}, "spec": spec}
    told = kubectl(stage.plane, "apply", "--dry-run=server", "--filename=-", manifest=json.dumps(workload))
    assert told.warnings == ["vramcast: needs 10.0 GiB; fits A100-SXM4-40GB, A100-SXM4-80GB"]


def test_nobody_else_pays(stage: Stage) -> None:
    before = stage.asked
    try_out(stage, described("p", OTHER))
    undescribed = described("p", TEAM)
    del undescribed["metadata"]["annotations"]
    try_out(stage, undescribed)
    opted_out = described("p", TEAM)
    opted_out["metadata"]["labels"] = {"vramcast.dev/managed": "false"}
    try_out(stage, opted_out)
    assert stage.asked == before
    try_out(stage, described("p", TEAM))
    assert stage.asked == before + 1


def test_a_namespace_may_opt_out_of_sharing_by_its_label(stage: Stage) -> None:
    pod = described("p", UNSHARED)
    assert injected(stage, pod) == ""
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    assert injected(stage, pod) == "schedulerName"


@pytest.mark.parametrize("how", [[], ["--server-side"]])
def test_applying_again_changes_nothing(stage: Stage, how: list[str]) -> None:
    name = "again-server-side" if how else "again"
    pod = described(name)

    def apply() -> Any:
        kubectl(stage.plane, "apply", *how, "--filename=-", manifest=json.dumps(pod))
        found = stage.plane.api.pod(name, TEAM)
        return found["spec"]["schedulerName"], found["spec"]["tolerations"], found["spec"]["containers"]

    first = apply()
    assert first[0] == SCHEDULER
    assert apply() == first
    eventually(lambda: stage.plane.api.pod(name, TEAM)["spec"].get("nodeName"), what="the pod to be bound")
    assert apply() == first


def test_a_pod_that_the_webhook_has_seen_can_be_debugged(stage: Stage) -> None:
    """An ephemeral container is no new pod, and gets nothing."""
    stage.plane.api.create_pod(described("debugged"))
    debugger = {"name": "debugger", "image": "shell", "targetContainerName": "train"}
    path = f"/api/v1/namespaces/{TEAM}/pods/debugged/ephemeralcontainers"
    before = stage.asked
    patched = stage.plane.api.patch(path, {"spec": {"ephemeralContainers": [debugger]}})
    assert "env" not in patched["spec"]["ephemeralContainers"][0]
    assert stage.asked == before


def test_annotations_of_a_megabyte_are_refused_by_the_api_server_as_before(stage: Stage) -> None:
    pod = described("p", notes="x" * (1 << 20))
    with pytest.raises(ApiError, match=r"metadata\.annotations: Too long"):
        try_out(stage, pod)


def test_a_container_that_another_webhook_adds_later_sees_only_its_gpus(stage: Stage, tmp_path: Path) -> None:
    """The API server asks vramcast again if a webhook after it has changed the pod."""
    configurations = CONFIGURATION.rpartition("/")[0]
    with OtherWebhook(tmp_path) as other:
        webhook = {
            "name": "sidecar.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": {"url": other.url, "caBundle": other.ca_bundle},
            "namespaceSelector": {"matchLabels": {"vramcast.dev/managed": "true"}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }
        # By name, after vramcast's.
        stage.plane.api.request("POST", configurations, {"metadata": {"name": "zz-sidecar"}, "webhooks": [webhook]})
        try:
            pod = eventually(lambda: with_sidecar(stage), what="the other webhook to be called")
        finally:
            stage.plane.api.request("DELETE", f"{configurations}/zz-sidecar")
            eventually(lambda: not with_sidecar(stage), what="the other webhook to be gone")
    for container in pod["spec"]["containers"]:
        assert "NVIDIA_VISIBLE_DEVICES" in [variable["name"] for variable in container["env"]]


def with_sidecar(stage: Stage) -> Any:
    pod = try_out(stage, described("p"))
    return pod if len(pod["spec"]["containers"]) > 1 else None


@contextmanager
def paused(stage: Stage, _: Path) -> Iterator[None]:
    stage.replica.service.pause()
    yield
    stage.replica.service.resume()


@contextmanager
def trusting_another_ca(stage: Stage, directory: Path) -> Iterator[None]:
    other = base64.b64encode(make_identity(directory, "another-ca").cert.read_bytes()).decode()
    before = stage.plane.api.get(CONFIGURATION)["webhooks"]
    wrong = [{**one, "clientConfig": {**one["clientConfig"], "caBundle": other}} for one in before]
    stage.plane.api.patch(CONFIGURATION, {"webhooks": wrong})
    yield
    stage.plane.api.patch(CONFIGURATION, {"webhooks": before})
    await_webhook(stage)


@contextmanager
def killed(stage: Stage, _: Path) -> Iterator[None]:
    stage.replica.service.kill()
    yield
    stage.replica.service.start()
    eventually(stage.replica.ready, what="vramcast to be back")


@pytest.mark.parametrize("fault", [paused, trusting_another_ca, killed])
def test_without_an_answer_pods_are_created_as_before_and_an_alert_says_so(
    stage: Stage, fault: Callable[[Stage, Path], AbstractContextManager[None]], tmp_path: Path
) -> None:
    before = failed_open(stage.plane)
    with fault(stage, tmp_path):
        eventually(lambda: injected(stage, described("p")) == "", what="a pod that nobody fills in")
        made = stage.plane.api.create_pod(described(f"without-{fault.__name__.replace('_', '-')}"))
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert "tolerations" not in made["spec"] or "vramcast" not in str(made["spec"]["tolerations"])
    after = failed_open(stage.plane)
    series = 'apiserver_admission_webhook_fail_open_count{name="pods.vramcast.dev",type="admit"}'
    assert after[series] >= before.get(series, 0) + 2
    assert fires("VramcastWebhookFailing", before, after, tmp_path)
    eventually(lambda: "schedulerName" in injected(stage, described("p")), what="the webhook to answer again")
