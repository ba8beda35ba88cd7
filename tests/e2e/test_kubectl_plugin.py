"""`kubectl vramcast` on a real control plane: through the API server's proxy, with the chart's role."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest
import yaml

from tests.cluster.telemetry_server import serving
from tests.controlplane import (
    PATIENCE_SECONDS,
    Api,
    ControlPlane,
    Process,
    environment_as_in_the_image,
    eventually,
    extender,
    free_port,
    scheduler_config,
)
from tests.controlplane.objects import (
    A100_40GB,
    L40S,
    T4,
    cpu_node,
    pod,
    shared_pod,
    sharing_node,
    whole_gpu_node,
    whole_gpu_pod,
)
from tests.e2e.conftest import RULES, RunningService
from tests.e2e.kubectl_plugin import NAMESPACE, Json, Plugin, install_view, point_view_at, second_install, unpack_plugin
from tests.e2e.observing.exporter import FakeExporter

pytestmark = pytest.mark.e2e

SCHEDULER = "why-scheduler"
MODEL = {"model": "timm/resnet50", "batch-size": "256", "precision": "fp32"}


@dataclass(frozen=True, slots=True)
class Installed:
    plane: ControlPlane
    service: RunningService
    view_port: int
    plugin: Plugin
    exporter: FakeExporter


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """vramcast with its view, telemetry and a scheduler of its own; and the plugin."""
    directory = tmp_path_factory.mktemp("plugin")
    install_view(plane)
    with FakeExporter(plane.api, {"dark": (L40S, 1), "only": (L40S, 1)}, names_pods=True) as exporter:
        port, view_port = free_port(), free_port()
        urls = ",".join(f"{exporter.url}/{node}/metrics" for node in exporter.nodes)
        settings = {
            "port": port, "view_port": view_port, "view_host": "0.0.0.0", "undescribed": "reject",
            "exporter_urls": urls, "telemetry_interval_seconds": 0.2, "min_run_seconds": 0,
            "telemetry_lag_seconds": 0,
        }  # fmt: skip
        (directory / "vramcast.yaml").write_text(yaml.safe_dump(settings))
        command = [sys.executable, "-m", "vramcast", "serve", "--config", str(directory / "vramcast.yaml")]
        environment = {"KUBECONFIG": str(plane.kubeconfig_for("why", RULES)), **environment_as_in_the_image()}
        process = Process("vramcast", command, directory / "vramcast.log", environment)
        running = RunningService(process, f"http://127.0.0.1:{port}")
        running.start()
        scheduler = plane.scheduler(scheduler_config(extender(running.url), name=SCHEDULER))
        plugin = Plugin(unpack_plugin(directory), plane.binaries.kubectl, plane.kubeconfig)
        yield Installed(plane, running, view_port, plugin, exporter)
        scheduler.terminate()
        plane.schedulers.remove(scheduler)
        process.terminate()


@pytest.fixture
def world(installed: Installed) -> Iterator[Installed]:
    """An empty cluster, with the view's endpoint."""
    api = installed.plane.api
    api.clear()
    eventually(lambda: installed.service.get("/state")["nodes_total"] == 0, what="the service to see an empty cluster")
    installed.exporter.unmanaged_mib.clear()
    installed.exporter.needs_mib.clear()
    point_view_at(api, installed.view_port)
    yield installed
    api.clear()


def ours(manifest: Json) -> Json:
    manifest["spec"]["schedulerName"] = SCHEDULER
    return manifest


def bound(api: Api, name: str) -> None:
    eventually(lambda: api.pod(name)["spec"].get("nodeName"), what=f"{name} to be bound")


# --- why


def too_small(world: Installed) -> None:
    world.plane.api.create_nodes([sharing_node("t4", T4, count=2)])


def no_room(world: Installed) -> None:
    world.plane.api.create_nodes([sharing_node("only", L40S, count=1)])
    world.plane.api.create_pod(ours(shared_pod("first", "30Gi")))
    bound(world.plane.api, "first")


def held(world: Installed) -> None:
    """Another pod has been filtered, and its Binding does not come."""
    world.plane.api.create_nodes([sharing_node("only", L40S, count=1)])
    other = shared_pod("other", "30Gi", scheduler="nobody")
    other["metadata"]["uid"] = world.plane.api.create_pod(other)["metadata"]["uid"]
    eventually(lambda: world.service.get("/state")["nodes_total"] == 1, what="the service to see the node")
    body = {"Pod": other, "Nodes": None, "NodeNames": ["only"]}
    answer = httpx.post(f"{world.service.url}/filter", json=body, timeout=PATIENCE_SECONDS).json()
    assert answer["NodeNames"] == ["only"], answer


def unmanaged(world: Installed) -> None:
    world.exporter.unmanaged_mib[("dark", 0)] = 30_000
    world.plane.api.create_nodes([sharing_node("dark", L40S, count=1)])
    eventually(lambda: world.service.get("/cluster")["totals"]["unmanaged_mib"], what="telemetry")


def mixed(world: Installed) -> None:
    """A node that shares, on which another scheduler has bound a pod with a whole GPU."""
    node = sharing_node("both", L40S, count=1)
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts["nvidia.com/gpu"] = "1"
    world.plane.api.create_nodes([node])
    world.plane.api.create_pod(whole_gpu_pod("whole", scheduler="nobody"))
    world.plane.api.bind("whole", "both")


def not_sharing(world: Installed) -> None:
    world.plane.api.create_nodes([whole_gpu_node("whole", L40S)])


def sharing(world: Installed) -> None:
    world.plane.api.create_nodes([sharing_node("shared", L40S)])


def too_few(world: Installed) -> None:
    world.plane.api.create_nodes([sharing_node("one", L40S, count=1)])


def no_gpu(world: Installed) -> None:
    world.plane.api.create_nodes([cpu_node("cpu")])


def memory_unknown(world: Installed) -> None:
    node = sharing_node("odd", replace(L40S, product="Acme-1"))
    del node["metadata"]["labels"]["nvidia.com/gpu.memory"]
    world.plane.api.create_nodes([node])


def slow_neighbour(world: Installed) -> None:
    world.plane.api.create_nodes([sharing_node("only", A100_40GB, count=1)])
    world.plane.api.create_pod(ours(shared_pod("first", None, annotations={**MODEL, "batch-size": "32"})))
    bound(world.plane.api, "first")


def tainted(world: Installed) -> None:
    taint = {"key": "vramcast.dev/gpu-sharing", "value": "true", "effect": "NoSchedule"}
    world.plane.api.create_nodes([sharing_node("only", L40S, count=1, spec={"taints": [taint]})])


LARGE = shared_pod("late", "30Gi")
# situation, the waiting pod, and three parts of what is printed: the reason, a node's line, what would have to change
CASES: list[tuple[Callable[[Installed], None], Json, str, str, str]] = [
    (too_small, LARGE, "GPU too small for 30.0 GiB (1 node)", "t4 no 2 14.6 GiB 15.4 GiB GPU too small",
     "- No GPU on these nodes is large enough, even when empty."),
    (no_room, LARGE, "GPU memory promised to other pods, 30.0 GiB needed", "only no 1 14.4 GiB 15.6 GiB GPU",
     "- It fits when default/first ends. (30.0 GiB on only)"),
    (held, LARGE, "GPU memory held for pods that are being placed", "only no 1", "- Normal for a moment."),
    (unmanaged, LARGE, "GPU memory taken by processes outside of Kubernetes", "dark no 1", "`nvidia-smi` on the node"),
    (mixed, LARGE, "GPUs in use both by sharing and by non-sharing pods", "both no 1", "drain it"),
    (not_sharing, LARGE, "node does not share its GPUs", "whole no 0 - - node does not share", "gpu-sharing=true"),
    (sharing, whole_gpu_pod("late", annotations={"gpu-memory": "30Gi"}), "node shares its GPUs, pods that ask for",
     "shared no 0", '- It fits on a GPU that it shares with other pods. (vramcast.dev/share: "true")'),
    (too_few, shared_pod("late", "10Gi", gpus=4), "too few such GPUs on the node, 4 needed", "one no 1",
     "- No single node has that many GPUs"),
    (no_gpu, LARGE, "node has no such GPU (1 node)", "cpu no 0", "- Normal for CPU nodes."),
    (memory_unknown, LARGE, "GPU memory of the node not known", "odd no", "Set the node annotation"),
    (too_small, shared_pod("late", "30Gigs"), "Its description is invalid.", "",
     "- Correct the annotation. (vramcast.dev/gpu-memory: '30Gigs'"),
    (not_sharing, whole_gpu_pod("late"), "pod asks for a GPU and does not describe its task", "", "Describe the task"),
    (slow_neighbour, shared_pod("late", None, annotations={**MODEL, "batch-size": "32", "max-slowdown": "1.01"}),
     "tasks on the GPU would slow each other down more than", "only no 1", "- It fits when default/first ends."),
    (tainted, LARGE, "vramcast would let it on 1 node of 1", "only yes 1", "its own rules keep the pod off"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("situation", "waiting", "reason", "node", "change"), CASES, ids=[f"{case[0].__name__}" for case in CASES]
)
def test_why_tells_the_reason_the_nodes_and_what_would_have_to_change(
    world: Installed, situation: Callable[[Installed], None], waiting: Json, reason: str, node: str, change: str
) -> None:
    situation(world)
    world.plane.api.create_pod(ours(json.loads(json.dumps(waiting))))

    def told() -> bool:
        printed = world.plugin.out("why", "late")
        assert printed.output.startswith("Pod default/late waits. "), printed.output
        assert reason in printed.output.splitlines()[0], printed.output
        assert f"Scheduler {SCHEDULER}: " in printed.output, printed.output
        assert "has not tried it yet" not in printed.output
        assert not node or printed.row(node.split(maxsplit=1)[0]).startswith(node), printed.output
        assert change in printed.output.partition("What would have to change:")[2], printed.output
        return True

    # Its nodes, telemetry and the scheduler's first attempt come with the watch.
    eventually(told, what=f"why to tell {reason!r}")


def test_why_of_a_pod_that_runs_tells_where_and_one_that_needs_no_gpu_is_left_alone(world: Installed) -> None:
    api = world.plane.api
    api.create_nodes([sharing_node("only", L40S, count=1)])
    api.create_pod(ours(shared_pod("first", "30Gi")))
    api.create_pod(pod("plain", scheduler="nobody"))
    bound(api, "first")

    def told() -> bool:
        assert "does not wait: it runs on only, GPU 0." in world.plugin.out("why", "pod/first").output
        return True

    eventually(told, what="why to tell where the pod runs")
    plain = world.plugin.out("why", "plain").output
    assert plain.startswith("vramcast has nothing to do with pod default/plain")
    assert "Scheduler nobody: has not tried it yet: does it run?" in plain


def test_why_as_json_has_what_the_service_and_the_scheduler_say(world: Installed) -> None:
    too_small(world)
    world.plane.api.create_pod(ours(shared_pod("late", "30Gi")))

    def told() -> Json:
        content: Json = json.loads(world.plugin.out("why", "late", "-n", "default", "-o", "json").output)
        assert content["scheduler"]["message"]
        return content

    content = eventually(told, what="the scheduler's message")
    assert content["known"]["pod"]["reasons"][0]["reason"] == "too_small"
    assert content["explanation"]["nodes"][0]["gpus"][0]["short_mib"] > 0
    wide = world.plugin.out("why", "late", "-o", "wide").output
    assert len([line for line in wide.splitlines() if line.startswith("t4 ")]) == 2


def test_a_pod_that_does_not_exist_gets_the_nearest_names(world: Installed) -> None:
    world.plane.api.create_pod(ours(shared_pod("resnet50-x1", "30Gi")))
    world.plane.api.create_pod(ours(shared_pod("lonely", "30Gi", namespace=NAMESPACE)))
    eventually(lambda: world.service.get("/pods?state=waiting")["matching"] == 2, what="the service to see both pods")
    trouble = world.plugin.trouble
    assert "there is no pod resnet50 in namespace default; did you mean resnet50-x1?" in trouble("why", "resnet50")
    assert "did you mean resnet50-x1?" in trouble("why", "resnet5O-x1")
    assert f"there is {NAMESPACE}/lonely: name its namespace with -n" in trouble("why", "lonely")
    assert "there is no pod zzz in namespace default" in trouble("why", "zzz")


# --- the other commands


def test_top_runs_accuracy_and_forecast_show_what_was_promised_and_measured(world: Installed, tmp_path: Path) -> None:
    api = world.plane.api
    world.exporter.needs_mib["first"] = 5_000
    api.create_nodes([whole_gpu_node("only", L40S, count=1)])
    described = {"parameters": "25.6M", "activations": "11.1M", "batch-size": "64"}
    api.create_pod(ours(whole_gpu_pod("first", annotations=described)))
    bound(api, "first")

    def used() -> bool:
        row = world.plugin.out("top").row("only")
        assert row.startswith("only 0 NVIDIA-L40S 44.4 GiB"), row
        assert row.endswith("default/first"), row
        assert "4.9 GiB" in row, row
        return True

    eventually(used, what="telemetry to show what the pod uses")
    content = json.loads(world.plugin.out("top", "only", "-o", "json").output)
    assert content["nodes"][0]["pools"][0]["gpus"][0]["used_mib"] in (4_000, 5_000)
    api.finish_pod("first")

    def ended() -> str:
        row = world.plugin.out("runs").row("default/first")
        assert "succeeded" in row, row
        return row

    assert "4.9 GiB" in eventually(ended, what="the run to be measured")
    assert "default/first" in world.plugin.out("runs", "-A", "-o", "wide").output
    assert world.plugin.out("runs", "-n", "kube-system").output.startswith("No run has ended in namespace kube-system")
    accuracy = world.plugin.out("accuracy").output
    assert "COVERED" in accuracy
    assert "NVIDIA-L40S" in accuracy
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(whole_gpu_pod("new", annotations=described)))
    forecast = world.plugin.out("forecast", "-f", str(tmp_path / "pod.yaml"))
    assert forecast.row("NVIDIA-L40S").endswith("0.05 yes")


def test_forecast_passes_on_what_is_wrong_with_the_manifest(world: Installed, tmp_path: Path) -> None:
    assert "no.yaml: No such file" in world.plugin.trouble("forecast", "-f", str(tmp_path / "no.yaml"))
    wrong = yaml.safe_dump(shared_pod("typo", "30Gigs"))
    assert "vramcast.dev/gpu-memory: '30Gigs'" in world.plugin.trouble("forecast", "-f", "-", manifest=wrong)


# --- what goes wrong


def test_a_user_without_the_right_is_told_which_and_the_command_that_is_printed_grants_it(world: Installed) -> None:
    plane = world.plane
    reader = replace(world.plugin, kubeconfig=plane.kubeconfig_for("reader"))
    refused = reader.trouble("top")
    user = "system:serviceaccount:default:reader"
    assert f"{user} lacks the right to get services/proxy vramcast-view:view in namespace {NAMESPACE}" in refused
    command = shlex.split(refused.splitlines()[-1])
    assert command[:4] == ["kubectl", "create", "rolebinding", "vramcast-viewer-reader"]
    plane.kubectl(*command[1:])
    eventually(lambda: reader.run("top").code == 0, what="the right to take effect")
    assert reader.run("forecast", "-f", "-", manifest=yaml.safe_dump(shared_pod("a", "1Gi"))).code == 0
    # The role is for this Service, and for nothing else.
    allowed = subprocess.run(
        [plane.binaries.kubectl, f"--kubeconfig={reader.kubeconfig}", "auth", "can-i", "--list", f"-n={NAMESPACE}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    rights = [line for line in allowed.splitlines() if "selfsubject" not in line and "[/" not in line][1:]
    assert [" ".join(line.split()) for line in rights] == [
        "services/proxy [] [http:vramcast-view:view] [get create]",
        "services/proxy [] [vramcast-view:view] [get create]",
    ]
    # The pods of others are seen by what vramcast knows, and not by the user's own eyes.
    plane.api.create_pod(ours(shared_pod("late", "30Gi")))
    eventually(lambda: world.service.get("/pods")["pods"], what="the service to see the pod")
    assert 'Scheduler: not shown: pods "late" is forbidden' in reader.out("why", "late").output


def test_no_verb_can_be_reached_through_the_view(world: Installed) -> None:
    proxy = f"/api/v1/namespaces/{NAMESPACE}/services/vramcast-view:view/proxy"
    for verb in ("filter", "prioritize", "bind", "preempt", "admit"):
        with pytest.raises(RuntimeError, match=r"404|NotFound|could not find"):
            world.plane.kubectl("create", "--raw", f"{proxy}/{verb}", "-f", "-", input_text="{}")


def test_a_service_that_is_away_is_named_with_the_next_step(world: Installed) -> None:
    api = world.plane.api
    point_view_at(api)
    assert "no endpoints available for service" in world.plugin.trouble("top")
    point_view_at(api, free_port())
    refused = world.plugin.trouble("top")
    assert f"vramcast does not answer behind the Service {NAMESPACE}/vramcast-view" in refused
    assert f"kubectl get pods --namespace {NAMESPACE}" in refused
    assert "there is no Service nowhere/else-view" in world.plugin.trouble("top", "--service", "nowhere/else-view")
    assert "--service 'odd': expected NAMESPACE/NAME" in world.plugin.trouble("top", "--service", "odd")


def test_with_two_installs_the_user_chooses(world: Installed) -> None:
    with second_install(world.plane.api):
        assert f"choose one with --service: default/other-view, {NAMESPACE}/vramcast-view" in world.plugin.trouble(
            "top"
        )
        assert world.plugin.out("top", "--service", f"{NAMESPACE}/vramcast-view").output


def test_an_install_without_a_view_is_told_from_no_install(world: Installed) -> None:
    api, services = world.plane.api, f"/api/v1/namespaces/{NAMESPACE}/services"
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    api.request("DELETE", f"{services}/vramcast-view")
    try:
        assert "vramcast is not installed in this cluster" in world.plugin.trouble("top")
        labels = {"app.kubernetes.io/part-of": "vramcast", "app.kubernetes.io/instance": "gpu"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        api.request("POST", deployments, {"metadata": {"name": "gpu-vramcast", "labels": labels}, "spec": spec})
        told = world.plugin.trouble("top")
        assert "helm upgrade gpu helm/vramcast --namespace default --reuse-values --set view.enabled=true" in told
        api.request("DELETE", f"{deployments}/gpu-vramcast")
    finally:
        install_view(world.plane)


def test_the_plugin_asks_until_the_leader_answers_and_says_if_none_does(world: Installed) -> None:
    standby = json.dumps({"status": {"leading": False, "version": "0.1.0"}}).encode()
    with serving(lambda *_: (200, standby), "application/json", host="0.0.0.0") as url:
        port = int(url.rpartition(":")[2])
        point_view_at(world.plane.api, port, world.view_port)
        assert world.plugin.out("accuracy").output.startswith("Model ")
        point_view_at(world.plane.api, port)
        assert f"no replica of vramcast in namespace {NAMESPACE} leads" in world.plugin.trouble("accuracy")


@pytest.mark.parametrize(
    "answer",
    [(404, b'{"Error": "there is no /cluster; see /docs"}'), (200, b'{"status": {"version": "0.0.9"}}')],
    ids=["has no such request", "answers otherwise"],
)
def test_a_service_of_another_version_is_named_with_both_versions(world: Installed, answer: tuple[int, bytes]) -> None:
    with serving(lambda *_: answer, "application/json", host="0.0.0.0") as url:
        point_view_at(world.plane.api, int(url.rpartition(":")[2]))
        told = world.plugin.trouble("top")
    assert "does not give what this plugin (0.1.0) asks for" in told
    assert "Upgrade the older of the two." in told


def test_trouble_of_kubectl_itself_is_passed_on(world: Installed, tmp_path: Path) -> None:
    assert "nowhere" in world.plugin.trouble("top", "--context", "nowhere")
    assert "no kubectl on PATH" in world.plugin.trouble("top", path=f"{world.plugin.directory}:{_only(tmp_path)}")
    config = yaml.safe_load(world.plugin.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{free_port()}"
    away = tmp_path / "away.kubeconfig"
    away.write_text(yaml.safe_dump(config))
    assert "connection refused" in world.plugin.trouble("top", "--kubeconfig", str(away))
    config["clusters"][0]["cluster"]["server"] = world.plane.url
    config["users"][0]["user"]["token"] = "nonsense"
    away.write_text(yaml.safe_dump(config))
    assert "does not accept your login" in world.plugin.trouble("top", "--kubeconfig", str(away))


def _only(directory: Path) -> Path:
    """A PATH with Python and env, and nothing else."""
    (directory / "python3").symlink_to(sys.executable)
    (directory / "env").symlink_to("/usr/bin/env")
    return directory
