"""A burst of pods, with a disturbance halfway."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.controlplane import Api, History, Recorder
from tests.controlplane.objects import A100_40GB, shared_pod, sharing_node
from tests.controlplane.rest import await_rest

SCHEDULER = "vramcast-scheduler"
GPUS, BATCH = 8, 25
PODS_A_NODE = 20
# What the driver reserves on this product. Repeated here so that the check does not depend on the code under test.
RESERVE_BYTES = 450 << 20


def run_burst(api: Api, seed: int, halfway: Callable[[], None], pods: int = 100) -> History:
    """Creates pods of random needs and deletes a fifth of them. Returns the history until all that fit are placed."""
    draw = random.Random(seed)
    api.create_nodes([sharing_node(f"node-{number:02d}", A100_40GB, GPUS) for number in range(pods // PODS_A_NODE)])
    with Recorder(api) as recorder:
        names: list[str] = []
        for start in range(0, pods, BATCH):
            batch = [
                shared_pod(f"pod-{number}", f"{draw.randint(6144, 30720)}Mi", scheduler=SCHEDULER)
                for number in range(start, start + BATCH)
            ]
            api.create_pods(batch)
            names += [manifest["metadata"]["name"] for manifest in batch]
            for _ in range(BATCH // 5):
                api.delete_pod(names.pop(draw.randrange(len(names))))
            if start == pods // 2 // BATCH * BATCH:
                halfway()
        history = await_rest(recorder, RESERVE_BYTES)
    history.assert_sound()
    assert len(history.bindings()) > pods // 2
    return history
