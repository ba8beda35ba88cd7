"""The admission webhook: what it answers, to whom it tells the forecast, and what it leaves alone."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.admission.pods import MODEL, SCHEDULER, new_container, new_pod
from tests.api.admission import admit, new_review, review, webhook
from tests.controlplane.eventually import PATIENCE_SECONDS
from tests.fakes import new_fake_service, shared_pod, sharing_node, whole_node
from vramcast.errors import NotLeading
from vramcast.service import RightOfWay, Service
from vramcast.settings import load_settings
from vramcast.task.vocabulary import PREFIX

WHOLE = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
GIVEN = {"gpu-memory": "30Gi"}
LARGEST = "the largest that it may use is A100-SXM4-80GB with 79.4 GiB"
JOB = {"ownerReferences": [{"kind": "Job", "name": "j", "controller": True}]}


def new_service(**settings: Any) -> Service:
    nodes = [
        sharing_node("a", 2),
        sharing_node("b", 8, 81920, "NVIDIA-A100-SXM4-80GB"),
        whole_node("w", 4, 46068, "NVIDIA-L40S"),
    ]
    return new_fake_service(nodes, settings=load_settings({"webhook_scheduler_name": SCHEDULER, **settings}, {}))


def of(kind: str, task: dict[str, str], metadata: dict[str, Any] | None = None, **spec: Any) -> Any:
    """A workload whose template is a described pod."""
    pod = new_pod(task, **spec)
    template = {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}
    job = {"template": template}
    return {
        "kind": kind,
        "metadata": {"name": "train", "namespace": "team", **(metadata or {})},
        "spec": {"jobTemplate": {"spec": job}} if kind == "CronJob" else job,
    }


def test_a_described_pod_is_filled_in_and_its_forecast_is_told() -> None:
    admitted = admit(new_service(), new_pod())
    assert admitted.allowed
    assert admitted.object["spec"]["schedulerName"] == SCHEDULER
    assert admitted.object["metadata"]["annotations"][PREFIX + "share"] == "true"
    (line,) = admitted.warnings
    assert line.startswith("vramcast: needs ")
    assert line.endswith(" at risk 0.05; fits A100-SXM4-40GB, A100-SXM4-80GB")


def test_admitting_twice_is_admitting_once() -> None:
    service = new_service()
    once = admit(service, new_pod()).object
    assert admit(service, once).object == once


@pytest.mark.parametrize(
    ("task", "spec", "line"),
    [
        (GIVEN, {}, "vramcast: needs 30.0 GiB; fits A100-SXM4-40GB, A100-SXM4-80GB"),
        (GIVEN, {"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}},
         "vramcast: needs 30.0 GiB; fits A100-SXM4-80GB"),
        ({**GIVEN, "gpus": "4"}, {}, "vramcast: needs 30.0 GiB on each of 4 GPUs; fits A100-SXM4-80GB"),
        ({**GIVEN, "gpus": "2"}, {},
         "vramcast: needs 30.0 GiB on each of 2 GPUs; fits A100-SXM4-40GB, A100-SXM4-80GB"),
        ({**GIVEN, "gpus": "9"}, {},
         "vramcast: no node of this cluster shares 9 GPUs (label vramcast.dev/gpu-sharing), so the pod will wait"),
        ({"gpu-memory": "200Gi"}, {},
         f"vramcast: needs 200.0 GiB; fits no GPU of this cluster; {LARGEST}"),
        (GIVEN, {"containers": [new_container(**WHOLE)]}, "vramcast: needs 30.0 GiB; fits L40S"),
        (GIVEN, {"containers": [new_container(resources={"limits": {"nvidia.com/mig-1g.5gb": "1"}})]},
         "vramcast: no node of this cluster has 1 nvidia.com/mig-1g.5gb, so the pod will wait"),
    ],
)  # fmt: skip
def test_the_forecast_is_one_line(task: dict[str, str], spec: dict[str, Any], line: str) -> None:
    assert admit(new_service(), new_pod(task, **spec)).warnings == [line]


def test_the_bound_differs_by_product_and_risk() -> None:
    task = {"parameters": "25.6M", "activations": "21.5M", "batch-size": "64", "max-oom-risk": "0.01"}
    (line,) = admit(new_service(), new_pod(task)).warnings
    assert " at risk 0.01; fits " in line


def test_a_mistake_comes_back_with_its_correction() -> None:
    pod = new_pod({"model": "timm/resnet50", "batch-sise": "64"})
    admitted = admit(new_service(), pod)
    assert admitted.allowed
    assert admitted.object == pod
    (line,) = admitted.warnings
    assert line.startswith("vramcast: vramcast.dev/batch-sise: '64' is not valid: no annotation has this name; ")
    assert line.endswith("did you mean vramcast.dev/batch-size?")


def test_a_model_that_nobody_knows_is_a_mistake() -> None:
    (line,) = admit(new_service(), new_pod({**MODEL, "model": "timm/resnet5O"})).warnings
    assert "did you mean timm/resnet50" in line


def test_every_mistake_is_told_within_the_length_that_clients_show() -> None:
    wrong = {f"wrong-{number}": "x" * 300_000 for number in range(20)}
    admitted = admit(new_service(), new_pod(wrong))
    assert len(admitted.warnings) == 8
    assert admitted.warnings[-1] == "vramcast: and 13 more mistakes"
    assert all(len(line) <= 256 for line in admitted.warnings)
    refused = admit(new_service(webhook_validate="deny"), new_pod(wrong))
    assert len(refused.message) < 8 * 512


@pytest.mark.parametrize("raw", [new_pod({"modle": "x"}), of("Job", {"modle": "x"})])
def test_mistakes_are_refused_where_the_cluster_wants_that(raw: Any) -> None:
    service = new_service(webhook_validate="deny")
    admitted = admit(service, raw)
    assert not admitted.allowed
    assert "did you mean vramcast.dev/model?" in admitted.message
    assert admit(service, new_pod()).allowed


@pytest.mark.parametrize("kind", ["Job", "CronJob", "Deployment"])
def test_whoever_applies_a_workload_is_told_about_its_pods(kind: str) -> None:
    service = new_service()
    workload = of(kind, GIVEN)
    admitted = admit(service, workload)
    assert admitted.object == workload
    assert admitted.warnings == ["vramcast: needs 30.0 GiB; fits A100-SXM4-40GB, A100-SXM4-80GB"]
    (mistake,) = admit(service, of(kind, {**GIVEN, "share": "yes"})).warnings
    assert 'expected "true" or "false"' in mistake


def test_annotations_of_the_job_itself_have_no_effect_and_the_client_is_told() -> None:
    job = of("Job", {}, {"annotations": {PREFIX + "model": "x", PREFIX + "batch-size": "8"}})
    (line,) = admit(new_service(), job).warnings
    assert line.startswith("vramcast: metadata.annotations: vramcast.dev/model, vramcast.dev/batch-size without effect")
    assert line.endswith("move to spec.template.metadata.annotations")


def test_what_a_controller_makes_of_a_workload_is_told_to_nobody() -> None:
    pod = new_pod()
    pod["metadata"] |= JOB
    admitted = admit(new_service(), pod)
    assert admitted.object["spec"]["schedulerName"] == SCHEDULER
    assert admitted.warnings == []
    pod["metadata"]["annotations"] = {PREFIX + "modle": "x"}
    assert len(admit(new_service(), pod).warnings) == 1


def test_the_forecast_need_not_be_told() -> None:
    service = new_service(webhook_tell_forecast=False)
    assert admit(service, new_pod()).warnings == []
    assert admit(service, of("Job", MODEL)).warnings == []


def test_a_namespace_may_opt_out_of_sharing() -> None:
    pod = new_pod()
    admitted = admit(new_service(), pod, "/admit/unshared")
    assert admitted.object == pod
    (line,) = admitted.warnings
    assert "the pod asks for no GPU" in line


def test_nothing_is_kept_of_a_review() -> None:
    service = new_service()
    before = service.state.revision
    admit(service, new_pod(), dryRun=True)
    assert service.state.revision == before
    assert not service.state.pods
    assert not service.state.ledger.holds
    assert not list(service.state.ledger.promises())


class Standby:
    fenced, leading = True, False

    async def await_lead(self) -> None:
        raise NotLeading("another replica leads")

    def check(self) -> None:
        raise NotLeading("another replica leads")


def test_a_replica_that_does_not_lead_answers_too() -> None:
    service = replace(new_service(), leadership=Standby())
    assert admit(service, new_pod()).object["spec"]["schedulerName"] == SCHEDULER


def test_before_the_cluster_is_known_pods_are_filled_in_without_a_forecast() -> None:
    service = new_fake_service(synced=False, settings=load_settings({"webhook_scheduler_name": SCHEDULER}, {}))
    admitted = admit(service, new_pod())
    assert admitted.object["spec"]["schedulerName"] == SCHEDULER
    assert admitted.warnings == []


def test_a_forecast_that_takes_too_long_costs_only_itself() -> None:
    service = new_service(webhook_forecast_seconds=0.01)
    stuck = threading.Event()

    async def offload(*_: Any) -> None:
        await asyncio.get_running_loop().run_in_executor(None, stuck.wait, PATIENCE_SECONDS)

    slow = replace(service, workers=replace(service.workers, admission=offload))

    async def run() -> Any:
        admitted = await review(webhook(slow), new_pod())
        stuck.set()
        return admitted

    admitted = asyncio.run(run())
    assert admitted.object["spec"]["schedulerName"] == SCHEDULER
    assert admitted.warnings == ["vramcast: the forecast was not ready in time; what rests on it was not filled in"]


def test_a_call_of_the_scheduler_goes_first() -> None:
    service = new_service()

    async def run() -> None:
        waiting = replace(service, right_of_way=RightOfWay(PATIENCE_SECONDS))
        admission = webhook(waiting)
        order: list[str] = []

        async def scheduler() -> None:
            body = msgspec.json.encode({"Pod": shared_pod("p"), "Nodes": None, "NodeNames": ["a"]})
            with waiting.right_of_way.arriving():
                for _ in range(len(body)):
                    await asyncio.sleep(0)
                order.append("filter")

        async def api_server() -> None:
            await review(admission, new_pod())
            order.append("admit")

        await asyncio.gather(scheduler(), api_server())
        assert order == ["filter", "admit"]

    asyncio.run(run())


@pytest.mark.parametrize("more", [{"operation": "DELETE", "object": None}, {"subResource": "ephemeralcontainers"}])
def test_what_creates_no_pod_is_let_through(more: dict[str, Any]) -> None:
    client = webhook(new_service())
    body = new_review(new_pod())
    body["request"] |= more
    response = client.request("POST", "/admit", msgspec.json.encode(body))
    assert response.json()["response"] == {"uid": body["request"]["uid"], "allowed": True}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/admit", 405), ("POST", "/filter", 404), ("GET", "/metrics", 404), ("GET", "/docs", 404)],
)
def test_the_port_of_the_webhook_serves_nothing_else(method: str, path: str, status: int) -> None:
    assert webhook(new_service()).request(method, path).status == status


def test_answers_are_counted() -> None:
    service = new_service(webhook_validate="deny")
    for raw in (new_pod(), new_pod({}), new_pod({"modle": "x"})):
        admit(service, raw)
    text = service.metrics.render().decode()
    for decision in ("changed", "unchanged", "refused"):
        assert f'vramcast_admissions_total{{decision="{decision}"}} 1.0' in text
    assert "vramcast_invalid_admissions_total 1.0" in text
    assert 'vramcast_request_duration_seconds_count{verb="admit"} 3.0' in text


def test_a_claim_that_describes_a_task_gets_its_memory() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    annotations = {PREFIX + "gpu-memory": "10Gi"}
    claim = {
        "kind": "ResourceClaim",
        "metadata": {"name": "c", "namespace": "team", "annotations": annotations},
        "spec": {"devices": {"requests": [request]}},
    }
    admitted = admit(new_service(webhook_dialects="dra"), claim)
    (filled,) = admitted.object["spec"]["devices"]["requests"]
    assert filled["exactly"]["capacity"] == {"requests": {"memory": "10240Mi"}}
    assert admitted.object["metadata"]["annotations"][PREFIX + "injected"] == "memory:gpu"
    assert admit(new_service(), claim).object == claim


def test_a_pod_of_another_scheduler_gets_the_number_that_it_reads() -> None:
    pod = new_pod(GIVEN, schedulerName="kai-scheduler")
    admitted = admit(new_service(webhook_dialects="kai"), pod)
    assert admitted.object["metadata"]["annotations"]["gpu-memory"] == "30720"
    assert admitted.warnings == ["vramcast: needs 30.0 GiB; fits L40S"]
    assert admit(new_service(webhook_dialects="kai", webhook_validate="deny"), admitted.object).allowed


def test_a_quota_counts_the_memory_of_a_pod() -> None:
    admitted = admit(new_service(webhook_resource=True), new_pod(GIVEN))
    assert admitted.object["spec"]["containers"][0]["resources"]["limits"] == {"vramcast.dev/gpu-memory": "30720Mi"}
