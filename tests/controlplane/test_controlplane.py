"""The control plane starts, schedules, survives restarts, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .api import Api, ApiError
from .eventually import eventually
from .history import PodState
from .objects import cpu_node, pod, shared_pod, sharing_node
from .plane import ControlPlane
from .recorder import Recorder

pytestmark = pytest.mark.e2e

NODE_READER = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "node-reader"},
    "rules": [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]}],
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with ControlPlane() as running:
        running.scheduler()
        yield running


@pytest.fixture
def api(plane: ControlPlane) -> Iterator[Api]:
    yield plane.api
    plane.api.clear()


def phase(api: Api, name: str) -> str:
    return str(api.pod(name)["status"]["phase"])


def test_the_scheduler_places_a_pod_and_kwok_runs_it(api: Api) -> None:
    api.create_nodes([sharing_node("gpu-0")])
    api.create_pod(pod("web"))
    eventually(lambda: phase(api, "web") == "Running")
    assert api.pod("web")["spec"]["nodeName"] == "gpu-0"


def test_the_server_reports_its_version(plane: ControlPlane) -> None:
    assert plane.api.get("/version")["gitVersion"] == "v1.36.3"


def test_a_user_has_exactly_the_rights_of_its_role(plane: ControlPlane) -> None:
    with Api.from_kubeconfig(plane.kubeconfig_for("reader", [NODE_READER])) as reader:
        assert reader.nodes() == []
        with pytest.raises(ApiError, match="cannot list resource") as refused:
            reader.pods()
    assert refused.value.status == 403


def test_annotations_of_a_binding_are_copied_to_the_pod(api: Api) -> None:
    api.create_nodes([sharing_node("gpu-0")])
    api.create_pod(shared_pod("task", scheduler="nobody"))
    api.bind("task", "gpu-0", {"vramcast.dev/gpu-indices": "3"})
    assert api.pod("task")["metadata"]["annotations"]["vramcast.dev/gpu-indices"] == "3"


def test_the_recorder_sees_every_phase_of_a_pod(api: Api) -> None:
    with Recorder(api) as recorder:
        api.create_nodes([cpu_node("n")])
        api.create_pod(pod("task"))
        eventually(lambda: phase(api, "task") == "Running")
        api.finish_pod("task")
        api.delete_pod("task")
        history = recorder.sync()
    lives = [(e.state.node, e.state.phase) for e in history.events if isinstance(e.state, PodState)]
    steps = [(None, "Pending"), ("n", "Pending"), ("n", "Running"), ("n", "Succeeded")]
    assert list(dict.fromkeys(lives)) == steps


def test_the_recorder_and_the_scheduler_survive_a_restart_of_the_api_server(plane: ControlPlane, api: Api) -> None:
    api.create_nodes([cpu_node("n")])
    with Recorder(api) as recorder:
        api.create_pod(pod("before"))
        plane.restart_apiserver()
        api.create_pod(pod("after"))
        # Both, because the scheduler retries a bind that the crash interrupted.
        eventually(lambda: phase(api, "before") == phase(api, "after") == "Running")
        history = recorder.sync()
    assert {event.state.name for event in history.bindings()} == {"before", "after"}


def test_a_recorder_lists_again_after_an_expired_revision(plane: ControlPlane, api: Api) -> None:
    before = api.get("/api/v1/nodes")["metadata"]["resourceVersion"]
    api.create_nodes([cpu_node("n")])
    plane.restart_apiserver()  # its watch cache starts empty, so older revisions get a 410
    with Recorder(api, from_revision=before) as recorder:
        history = recorder.sync()
    assert [event.state.name for event in history.events if event.after_gap] == ["n"]


def test_no_process_outlives_a_test_run_that_is_killed() -> None:
    script = "\n".join((
        "from tests.controlplane import ControlPlane",
        "plane = ControlPlane().start()",
        "plane.scheduler()",
        "print(*(process.pid for process in plane.processes), plane.directory, flush=True)",
        "import signal; signal.pause()",
    ))  # fmt: skip
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        *pids, directory = run.stdout.readline().split()
        assert len(pids) == 4
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        os.kill(run.pid, signal.SIGKILL)
    eventually(lambda: not any(_runs(pid) for pid in pids))
    subprocess.run(["rm", "-r", directory], check=True)


def _runs(pid: str) -> bool:
    """Exists and is no zombie: in a container, init may reap orphans late."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
