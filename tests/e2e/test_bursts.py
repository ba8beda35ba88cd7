"""Hundreds of pods at once, with things breaking on the way. The judge is the API server's own history."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.controlplane import Api, ControlPlane, History, Recorder
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node
from tests.controlplane.rest import await_rest
from tests.e2e.conftest import SCHEDULER, RunningService

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NODES, GPUS, PODS, BATCH = 20, 8, 400, 25
# What the driver keeps on this product (core/products.py), written again so that the judge does not ask the accused.
RESERVE_BYTES = 450 << 20


def run_burst(api: Api, recorder: Recorder, seed: int, halfway: Callable[[], None] = lambda: None) -> History:
    """Create pods of random needs in batches, delete a third of them on the way, break something half way."""
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
    return await_rest(recorder, RESERVE_BYTES, timeout_seconds=120)


def check(history: History) -> None:
    history.assert_sound()
    # A third of them is gone, and what remains nearly fills the GPUs: the burst was worth its name.
    assert len(history.bindings()) > PODS // 2


@pytest.fixture
def full_cluster(api: Api) -> Api:
    api.create_nodes([sharing_node(f"node-{number:02d}", A100_40GB, GPUS) for number in range(NODES)])
    return api


def test_a_burst_never_overfills_a_gpu_and_leaves_nobody_behind(full_cluster: Api) -> None:
    with Recorder(full_cluster) as recorder:
        check(run_burst(full_cluster, recorder, seed=1))


def test_the_service_killed_in_a_burst(full_cluster: Api, service: RunningService) -> None:
    def kill() -> None:
        service.kill()
        service.start()

    with Recorder(full_cluster) as recorder:
        check(run_burst(full_cluster, recorder, seed=2, halfway=kill))


def test_the_api_server_restarted_in_a_burst(full_cluster: Api, plane: ControlPlane) -> None:
    with Recorder(full_cluster) as recorder:
        check(run_burst(full_cluster, recorder, seed=3, halfway=plane.restart_apiserver))
