"""Hundreds of pods at once, with failures along the way, checked against the API server's own history."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.controlplane import Api, ControlPlane, History, Recorder
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node
from tests.controlplane.rest import await_rest
from tests.e2e.conftest import SCHEDULER, RunningService

pytestmark = pytest.mark.e2e

NODES, GPUS, PODS, BATCH = 20, 8, 400, 25
# The driver's reserve on this product (hardware/products.py), repeated so that the check does not use the tested code.
RESERVE_BYTES = 450 << 20


def run_burst(api: Api, recorder: Recorder, seed: int, halfway: Callable[[], None] = lambda: None) -> History:
    """Create pods with random needs in batches, delete a third of them along the way, break something half way."""
    draw = random.Random(seed)
    names: list[str] = []
    for start in range(0, PODS, BATCH):
        batch = [
            shared_pod(f"pod-{number}", f"{draw.randint(8192, 38912)}Mi", scheduler=SCHEDULER)
            for number in range(start, start + BATCH)
        ]
        api.create_pods(batch)
        names += [manifest["metadata"]["name"] for manifest in batch]
        for _ in range(BATCH // 3):
            api.delete_pod(names.pop(draw.randrange(len(names))))
        if start == PODS // 2:
            halfway()
    return await_rest(recorder, RESERVE_BYTES)


def check(history: History) -> None:
    history.assert_sound()
    # A third of the pods is deleted and the rest nearly fills the GPUs. With fewer bindings the burst proves little.
    assert len(history.bindings()) > PODS // 2


@pytest.fixture
def full_cluster(api: Api) -> Api:
    api.create_nodes([sharing_node(f"node-{number:02d}", A100_40GB, GPUS) for number in range(NODES)])
    return api


def test_a_burst_never_overfills_a_gpu_and_leaves_no_pod_pending_that_fits(full_cluster: Api) -> None:
    with Recorder(full_cluster) as recorder:
        check(run_burst(full_cluster, recorder, seed=1))


def test_a_burst_survives_a_killed_service(full_cluster: Api, service: RunningService) -> None:
    def kill() -> None:
        service.kill()
        service.start()

    with Recorder(full_cluster) as recorder:
        check(run_burst(full_cluster, recorder, seed=2, halfway=kill))


def test_a_burst_survives_a_restart_of_the_api_server(full_cluster: Api, plane: ControlPlane) -> None:
    with Recorder(full_cluster) as recorder:
        check(run_burst(full_cluster, recorder, seed=3, halfway=plane.restart_apiserver))
