"""Every AdmissionReview gets a well-formed answer or a 4xx: no traceback, no leaked memory."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import random
import sys
from typing import Any

import msgspec
import pytest

from tests.admission.json_patch import patched
from tests.admission.pods import MODEL, new_container, new_pod
from tests.api.admission import new_review, webhook
from tests.api.client import Response
from tests.api.damage import damaged
from tests.fakes import new_fake_service, sharing_node, whole_node
from vramcast.settings import Runtime, System, load_settings

REVIEWS = 5_000
PODS: tuple[Any, ...] = (
    new_pod(),
    new_pod({**MODEL, "gpus": "2", "max-oom-risk": "0.01"}, tolerations=[{"operator": "Exists"}]),
    new_pod({"gpu-memory": "16GB"}),
    new_pod(schedulerName="kai-scheduler"),
    new_pod(schedulerName="volcano", containers=[new_container(resources={"limits": {"volcano.sh/vgpu-number": "1"}})]),
    new_pod(schedulerName="koord-scheduler"),
    new_pod(containers=[new_container(env=[{"name": "PYTORCH_ALLOC_CONF", "value": "expandable_segments:True"}])]),
    new_pod(containers=[new_container(resources={"limits": {"nvidia.com/gpu": "1"}})]),
    new_pod(
        initContainers=[new_container("data", env=[{"name": "A", "value": "b"}])],
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{
                        "matchExpressions": [
                            {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L40S"]}
                        ]
                    }]
                }
            }
        },
    ),
)  # fmt: skip


def workload(pod: Any) -> Any:
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    return {"kind": "Job", "metadata": {"name": "j", "annotations": {}}, "spec": {"template": template}}


def claim(pod: Any) -> Any:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 1}}
    return {"kind": "ResourceClaim", "metadata": pod["metadata"], "spec": {"devices": {"requests": [request]}}}


def good_review(draw: random.Random) -> Any:
    pod = draw.choice(PODS)
    return new_review(draw.choice([pod, pod, pod, workload(pod), claim(pod)]))


def check(response: Response, body: bytes) -> None:
    assert response.status in {200, 400}, (response, body[:500])
    answer = response.json()
    if response.status == 400:
        assert answer["Error"]
        return
    # Broken bytes in a field that is not read do no harm.
    asked = json.loads(body.decode(errors="replace"), strict=False)["request"]
    given = answer["response"]
    assert given["uid"] == asked["uid"]
    assert given["allowed"] is True
    if "patch" in given:
        patched(asked["object"], msgspec.json.decode(base64.b64decode(given["patch"])))


def test_five_thousand_malformed_reviews_all_get_an_answer_and_leak_nothing() -> None:
    everything = {"webhook_caps": ",".join(Runtime), "webhook_resource": True, "webhook_dialects": ",".join(System)}
    settings = load_settings({"webhook_scheduler_name": "s", "log_level": "error", **everything}, {})
    client = webhook(new_fake_service([sharing_node("a", 2), whole_node("w", 2)], settings=settings))

    async def send_all(draw: random.Random, count: int) -> None:
        for _ in range(count):
            body = damaged(good_review(draw), draw)
            check(await client.send("POST", "/admit", body), body)

    def blocks_after(seed: int) -> int:
        asyncio.run(send_all(random.Random(seed), REVIEWS // 2))
        gc.collect()
        return sys.getallocatedblocks()

    # The first half fills the caches of tasks and forecasts.
    warm = blocks_after(1)
    assert blocks_after(2) - warm < REVIEWS // 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"null",
        b"[" * 100_000,
        b'{"apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"u","kind":{}}}',
        b'{"apiVersion":"admission.k8s.io/v1","request":{"kind":{}}}',
        b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":"u","kind":{"kind":"Pod"},"object":{"spec":3}}}',
    ],
)
def test_what_is_no_review_gets_400_and_an_explanation(body: bytes) -> None:
    response = webhook(new_fake_service()).request("POST", "/admit", body)
    assert response.status == 400
    assert response.json()["Error"]


def test_a_review_of_more_than_any_object_gets_413() -> None:
    response = webhook(new_fake_service()).request("POST", "/admit", chunks=[b"x" * (1 << 20)] * 9)
    assert response.status == 413


def test_annotations_of_a_megabyte_are_answered() -> None:
    """The API server checks their size only after the webhooks."""
    pod = new_pod(annotations={"vramcast.dev/profile": "v1:" + "x" * (1 << 20), "example.com/notes": "y" * (1 << 20)})
    client = webhook(new_fake_service([sharing_node("a")]))
    given = client.request("POST", "/admit", msgspec.json.encode(new_review(pod))).json()["response"]
    assert given["allowed"]
    (warning,) = given["warnings"]
    assert "expected at most 65536 characters" in warning
