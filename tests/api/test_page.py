"""The page's files and the requests behind it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.api.client import Client
from tests.fakes import new_fake_service, pod_manifest, shared_pod, sharing_node, whole_node
from tests.forecast.test_recorded import TEXT
from vramcast.api import page
from vramcast.api.http import Surface, new_http_app
from vramcast.cluster.readers import PodReader
from vramcast.placement.changes import NodeSeen
from vramcast.settings import load_settings
from vramcast.task.pod import Pod
from vramcast.task.vocabulary import Optimizer, Precision

FILES = Path(page.__file__).parent / "page_files"
SUMMARY = {"share": "true", "architecture": "cnn", "parameters": "25M", "activations": "60M", "batch-size": "512"}
EVIL = "<img src=x onerror=alert(1)>\x07"


@pytest.fixture
def client() -> Client:
    settings = load_settings({"hold_wait_seconds": 0}, {})
    return Client(new_fake_service([sharing_node("a", 2), whole_node("w")], settings=settings))


def watch(client: Client, manifest: Any) -> None:
    change = PodReader().seen(msgspec.convert(manifest, Pod))
    assert change is not None
    client.service.apply([change])


def place(client: Client, pod: Any, node: str) -> None:
    client.feasible(pod, [node])
    assert client.place(pod, node) == ""


def advice(client: Client, name: str) -> list[str]:
    answer = client.request("GET", f"/pods/default/{name}")
    assert answer.status == 200, answer
    return [each["text"] for each in answer.json()["advice"]]


def test_the_page_is_small_and_names_no_other_host() -> None:
    assert sum(path.stat().st_size for path in FILES.iterdir()) < 200_000
    for path in FILES.iterdir():
        addresses = set(re.findall(r"https?://[^\s\"'<>]+", path.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name


def test_the_page_has_no_inline_script_or_style_and_says_so(client: Client) -> None:
    text = (FILES / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", text)
    messages: list[Any] = []

    async def ask() -> None:
        async def send(message: Any) -> None:
            messages.append(message)

        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        await client.app(scope, None, send)  # type: ignore[arg-type] # nothing is received

    asyncio.run(ask())
    policy = dict(messages[0]["headers"])[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_every_file_that_the_page_names_is_served(client: Client) -> None:
    served = {path.name for path in FILES.iterdir()} - {"index.html"}
    texts = [path.read_text() for path in FILES.iterdir()]
    named = {name for text in texts for name in re.findall(r"[\"'/]([a-z]+\.(?:js|css|svg))", text)}
    assert named == served
    for name in served:
        assert client.request("GET", f"/page/{name}").status == 200
    for name in ("index.html", "nothing.js", "..%2fpage.py"):
        assert client.request("GET", f"/page/{name}").status == 404


def test_the_page_can_be_turned_off_and_is_never_on_the_probes_port() -> None:
    off = Client(new_fake_service(settings=load_settings({"page": False}, {})))
    assert off.request("GET", "/").status == 404
    probes = Client(new_fake_service())
    probes.app = new_http_app(probes.service, Surface.PROBES)
    assert probes.request("GET", "/").status == 404
    assert probes.request("GET", "/cluster").status == 404


def test_without_javascript_a_table_shows_the_gpus_and_escapes_names(client: Client) -> None:
    client.service.apply([NodeSeen(sharing_node(EVIL, 1))])
    watch(client, shared_pod(EVIL))
    text = client.request("GET", "/table").body.decode()
    assert text.count("<tr>") == 1 + 2 + 8 + 1
    assert "<img" not in text
    assert "\x07" not in text
    assert "default/&lt;img" in text


def test_the_form_offers_words_of_the_vocabulary() -> None:
    text = (FILES / "forecast.js").read_text()
    for name, words in (("PRECISIONS", Precision), ("OPTIMIZERS", Optimizer)):
        offered = re.search(rf"const {name} = \[(.*?)\]", text)
        assert offered
        assert set(re.findall(r'"([^"]+)"', offered[1])) <= set(words)


def test_bars_add_up_and_windows_and_filters_choose_nodes(client: Client) -> None:
    place(client, shared_pod("tenant", "10Gi"), "a")
    shown = client.request("GET", "/cluster?q=tenant").json()
    (node,) = shown["nodes"]
    (first, second) = node["pools"][0]["gpus"]
    assert first["promised_mib"] == 10 * 1024
    assert [holder["pod"] for holder in first["holders"]] == ["default/tenant"]
    assert first["room_mib"] == first["size_mib"] - first["promised_mib"]
    assert second["holders"] == []
    assert shown["totals"]["promised_mib"] == 10 * 1024
    assert shown["totals"]["gpus"] == 2 + 8
    window = client.request("GET", "/cluster?offset=1&limit=1").json()
    assert (window["matching"], [node["name"] for node in window["nodes"]]) == (2, ["w"])
    assert client.request("GET", "/cluster?show=busy").json()["matching"] == 1
    assert client.request("GET", "/cluster?product=none").json()["nodes"] == []


@pytest.mark.parametrize("path", ["/cluster?limit=1000", "/cluster?offset=-1", "/pods?state=odd", "/cluster?show=x"])
def test_a_query_outside_its_limits_gets_400_and_names_the_field(client: Client, path: str) -> None:
    answer = client.request("GET", path)
    assert answer.status == 400
    assert path.split("?")[1].split("=", maxsplit=1)[0] in answer.json()["Error"]


def test_a_waiting_pod_shows_its_reasons_and_which_end_would_help(client: Client) -> None:
    for number in (0, 1):
        place(client, shared_pod(f"tenant-{number}", "30Gi"), "a")
    watch(client, shared_pod("late", "20Gi"))
    (pod,) = client.request("GET", "/pods?state=waiting").json()["pods"]
    assert pod["pod"] == "default/late"
    assert pod["reasons"][0]["reason"] == "no_room"
    found = advice(client, "late")
    assert "It fits when default/tenant-0 ends." in found
    assert any("would hold it" in text for text in found)


def test_a_smaller_batch_that_is_advised_does_fit(client: Client) -> None:
    watch(client, pod_manifest("big", SUMMARY))
    batch = next(match[1] for text in advice(client, "big") if (match := re.search(r"batch-size (\d+)", text)))
    assert 0 < int(batch) < 512
    assert client.feasible(pod_manifest("smaller", SUMMARY | {"batch-size": batch}), ["a"]) == ["a"]
    assert client.feasible(pod_manifest("larger", SUMMARY | {"batch-size": str(int(batch) + 8)}), ["a"]) == []


def test_a_pod_that_fits_nowhere_learns_which_gpu_would_hold_it(client: Client) -> None:
    watch(client, shared_pod("huge", "60Gi"))
    assert any(text.startswith("No GPU here is large enough. An ") for text in advice(client, "huge"))
    watch(client, shared_pod("vast", "900Gi"))
    assert any(text.startswith("No known GPU has") for text in advice(client, "vast"))


def test_a_whole_gpu_pod_is_told_that_it_could_share(client: Client) -> None:
    watch(client, pod_manifest("whole", {"gpu-memory": "10Gi"}, {"nvidia.com/gpu": "9"}))
    watch(client, pod_manifest("slice", {"gpu-memory": "10Gi"}, {"nvidia.com/mig-1g.5gb": "1"}))
    assert "It fits on a GPU that it shares with other pods." in advice(client, "slice")
    assert "It fits on a GPU that it shares with other pods." not in advice(client, "whole")


def test_a_mistake_in_the_annotations_is_the_advice(client: Client) -> None:
    watch(client, shared_pod("typo", "lots"))
    shown = client.request("GET", "/pods/default/typo").json()
    assert shown["advice"][0]["kind"] == "annotation"
    assert "gpu-memory" in shown["error"]


def test_an_unknown_pod_is_404(client: Client) -> None:
    answer = client.request("GET", "/pods/no/such")
    assert answer.status == 404
    assert "no/such" in answer.json()["Error"]


def test_models_are_found_by_typing(client: Client) -> None:
    shown = client.request("GET", "/models?q=resnet50").json()
    assert shown["models"][0]["model"].endswith("/resnet50")
    assert 0 < shown["matching"] <= shown["known"]


def test_a_recordings_step_is_a_curve_with_its_peak_and_phases(client: Client) -> None:
    annotations = {"share": "true", "profile": TEXT, "batch-size": "4", "sequence-length": "1024"}
    pod = msgspec.json.encode(pod_manifest("p", annotations))
    step = client.request("POST", "/step", pod).json()["step"]
    assert {"step", "forward", "backward", "update"} == {phase["phase"] for phase in step["phases"]}
    assert len(step["events"]) <= 400
    assert "weights" in step["by_role_bytes"]
    sums = [sum(values) for values in zip(*step["by_role_bytes"].values(), strict=True)]
    forecast = client.request("POST", "/forecast", pod).json()["forecasts"][0]
    recorded = [part["size_bytes"] for part in forecast["parts"] if "; peak: " in part["because"]]
    assert max(sums) == sum(recorded)
    assert client.request("POST", "/step", msgspec.json.encode(shared_pod("q"))).json() == {"step": None}


def test_ten_thousand_pods_come_in_windows(client: Client) -> None:
    for number in range(10_000):
        watch(client, shared_pod(f"p{number}", "300Gi"))
    shown = client.request("GET", "/pods?state=waiting&offset=9990&limit=40")
    assert shown.json()["matching"] == 10_000
    assert len(shown.json()["pods"]) == 10
    assert len(shown.body) < 20_000
