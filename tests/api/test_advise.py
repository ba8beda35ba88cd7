"""POST /advise, manifests of workloads for every request, and the Event of a pod that fits no GPU."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from tests.api.client import Client
from tests.cli.kinds import KINDS
from tests.fakes import new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from vramcast.cli.annotate import AnnotateOptions, parse_settings, run_annotate
from vramcast.controllers.advising import EVENT, Adviser
from vramcast.settings import load_settings

RESNET = ("model=timm/resnet50", "batch-size=1024")


@pytest.fixture
def client() -> Client:
    settings = load_settings({"hold_wait_seconds": 0}, {})
    return Client(new_fake_service([sharing_node("a", 2), whole_node("w")], settings=settings))


@pytest.fixture
def described(tmp_path: Path) -> Any:
    def describe(kind: str) -> bytes:
        file = tmp_path / "task.yaml"
        file.write_text(KINDS[kind][0])
        options = AnnotateOptions(parse_settings(RESNET))
        run_annotate([file], options, in_place=True, check=None, diff=False)
        return file.read_bytes()

    return describe


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_workload_is_forecast_explained_and_advised(kind: str, client: Client, described: Any) -> None:
    manifest = described(kind)
    forecast = client.request("POST", "/forecast?gpu=l40s", manifest)
    assert forecast.status == 200, forecast
    assert forecast.json()["forecasts"][0]["product"] == "NVIDIA-L40S"
    explained = client.request("POST", "/explain", manifest).json()
    assert {node["node"]: node["reason"] for node in explained["nodes"]}["w"] == "too_small"
    advised = client.request("POST", "/advise?gpu=T4&keep=precision", manifest).json()
    (advice,) = advised["advice"]
    assert not advice["fits"]
    first = advice["proposals"][0]
    assert first["need_mib"] <= first["room_mib"]
    assert "vramcast.dev/precision" not in first["annotations"]


def test_what_is_advised_fits_when_it_is_asked_again(client: Client, described: Any) -> None:
    manifest = yaml.safe_load(described("Job"))
    advised = client.request("POST", "/advise?gpu=T4", msgspec.json.encode(manifest)).json()
    for proposal in advised["advice"][0]["proposals"]:
        annotations = manifest["spec"]["template"]["metadata"]["annotations"] | proposal["annotations"]
        again = pod_manifest("p", limits={"nvidia.com/gpu": "1"})
        again["metadata"]["annotations"] = annotations
        path = f"/forecast?gpu={proposal['product']}"
        (forecast,) = client.request("POST", path, msgspec.json.encode(again)).json()["forecasts"]
        assert forecast["holds_it"]
        assert forecast["need_mib"] == proposal["need_mib"]


def test_without_a_gpu_the_clusters_own_are_advised(client: Client, described: Any) -> None:
    advised = client.request("POST", "/advise", described("Job")).json()
    assert [each["product"] for each in advised["advice"]] == ["NVIDIA-A100-SXM4-40GB"]


TWO = """
kind: PyTorchJob
metadata: {name: both}
spec:
  pytorchReplicaSpecs:
    Master: &m
      template:
        metadata: {annotations: {vramcast.dev/gpu-memory: 1Gi}}
        spec: {containers: [{name: a}]}
    Worker:
      template:
        metadata: {annotations: {vramcast.dev/gpu-memory: 2Gi}}
        spec: {containers: [{name: a}]}
""".replace("&m", "")


def test_of_several_templates_one_has_to_be_chosen(client: Client) -> None:
    refused = client.request("POST", "/forecast?gpu=T4", TWO.encode())
    assert refused.status == 400
    assert "choose one with ?template=ROLE, of Master, Worker" in refused.json()["Error"]
    chosen = client.request("POST", "/forecast?gpu=T4&template=worker", TWO.encode()).json()
    assert chosen["forecasts"][0]["need_mib"] == 2048


def test_annotations_on_the_job_are_told_where_they_belong(client: Client) -> None:
    text = KINDS["Job"][0].replace("  name: task\n", "  name: task\n  annotations: {vramcast.dev/gpu-memory: 16Gi}\n")
    refused = client.request("POST", "/advise", text.encode())
    assert refused.status == 400
    assert "move them to spec.template.metadata.annotations" in refused.json()["Error"]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/advise?gpu=L4OS", "did you mean L40S"),
        ("/advise?gpu=a100", "may be one of"),
        ("/forecast?gpu=nope", "no known product has this name"),
        ("/advise?keep=batch", "keep 'batch': no annotation has this name"),
    ],
)
def test_a_mistake_in_the_query_says_what_to_do(client: Client, path: str, words: str) -> None:
    answer = client.request("POST", path, msgspec.json.encode(shared_pod("p")))
    assert answer.status == 400
    assert words in answer.json()["Error"]


def test_a_pod_that_asks_for_no_gpu_is_forecast(client: Client) -> None:
    pod = pod_manifest("p", {"gpu-memory": "4Gi"})
    assert client.request("POST", "/forecast", msgspec.json.encode(pod)).status == 200


# --- the Event


def advised(client: Client) -> list[str]:
    return [event.message for event in client.cluster.events if event.reason == EVENT]


def test_a_pod_that_fits_no_gpu_gets_one_event_with_median_risk_and_help(client: Client) -> None:
    adviser = Adviser(client.service)
    too_large = pod_manifest("big", {"share": "true", "model": "timm/resnet50", "batch-size": "2048"})
    assert client.feasible(too_large, ["a", "w"]) == []
    assert advised(client) == [], "filter does no such work"
    for _ in range(3):
        asyncio.run(adviser.advise_one())
    (message,) = advised(client)
    assert "on A100-40GB, which has room for 39.6 GiB at risk 0.05 (median " in message
    assert "It fits with batch-size " in message
    assert "set vramcast.dev/gpu-memory" in message
    assert len(message) <= 1000


def test_a_pod_that_waits_for_room_gets_none(client: Client) -> None:
    for number in range(2):
        pod = shared_pod(f"tenant-{number}", "30Gi")
        client.feasible(pod, ["a"])
        client.place(pod, "a")
    assert client.feasible(shared_pod("late", "20Gi"), ["a"]) == []
    asyncio.run(Adviser(client.service).advise_one())
    assert advised(client) == []


def test_a_number_that_no_gpu_has_is_told_to_be_the_users_own(client: Client) -> None:
    assert client.feasible(shared_pod("own", "65Gi"), ["a"]) == []
    asyncio.run(Adviser(client.service).advise_one())
    (message,) = advised(client)
    assert message == ("needs 65.0 GiB on A100-40GB, which has room for 39.6 GiB, as vramcast.dev/gpu-memory says.")
