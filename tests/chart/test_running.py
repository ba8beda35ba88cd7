"""The rendered configuration drives the real kube-scheduler, with the rights that the chart grants."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chart.burst import run_burst
from tests.chart.conftest import NAMESPACE, QUICK, NewReplica, await_leader
from tests.chart.helm import CHART, Helm
from tests.chart.replica import Replica
from tests.controlplane import PATIENCE_SECONDS, Api, ApiError, eventually
from tests.controlplane.objects import A100_40GB, whole_gpu_node

pytestmark = pytest.mark.e2e


def nothing_was_forbidden(*replicas: Replica) -> None:
    for replica in replicas:
        refused = [line for line in replica.logs().splitlines() if "forbidden" in line.lower()]
        assert not refused, refused[:3]


def play_kubelet(api: Api, name: str) -> str:
    """Waits until the pod is bound, then ends it as its container would. Returns its node."""

    def node() -> str | None:
        try:
            found: str | None = api.pod(name, NAMESPACE)["spec"].get("nodeName")
        except ApiError:
            return None
        return found

    bound = eventually(node, what=f"{name} to be bound")
    assert bound is not None
    api.finish_pod(name, namespace=NAMESPACE)
    return bound


def test_helm_test_schedules_the_charts_pod_on_a_gpu(
    api: Api, helm: Helm, release: str, new_replica: NewReplica
) -> None:
    api.create_nodes([whole_gpu_node("a100", A100_40GB)])
    replica = new_replica("vramcast-0").start()
    with ThreadPoolExecutor(1) as pool:
        node = pool.submit(play_kubelet, api, "vramcast-test")
        output = helm.run("test", release, f"--namespace={NAMESPACE}", "--timeout=600s")
        assert node.result(PATIENCE_SECONDS) == "a100"
    assert "Phase:          Succeeded" in output
    nothing_was_forbidden(replica)


def test_an_upgrade_and_a_rollback_in_a_burst_lose_no_promise(
    api: Api, helm: Helm, release: str, new_replica: NewReplica
) -> None:
    running = [new_replica(f"vramcast-old-{n}").start() for n in range(2)]
    await_leader(*running)
    started: list[Replica] = list(running)

    def roll_out(revision: str) -> None:
        """As the Deployment does with maxSurge 1 and maxUnavailable 0: a new pod is ready before an old one stops."""
        for number, old in enumerate(list(running)):
            fresh = new_replica(f"vramcast-{revision}-{number}").start()
            old.stop()
            running[:] = [replica for replica in running if replica is not old] + [fresh]
            started.append(fresh)

    def upgrade_and_roll_back() -> None:
        values = {**QUICK, "settings": {"hold_wait_seconds": 0.05}}
        helm.run("upgrade", release, str(CHART), f"--namespace={NAMESPACE}", values=values)
        roll_out("new")
        helm.run("rollback", release, f"--namespace={NAMESPACE}")
        roll_out("again")

    run_burst(api, seed=11, halfway=upgrade_and_roll_back, pods=200)
    nothing_was_forbidden(*started)
