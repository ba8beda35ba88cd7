"""One-line builders for nodes, pods and demands, so that a test shows only what its rule needs."""

from __future__ import annotations

from collections.abc import Mapping

from vramcast.forecast.forecast import Forecast, Source
from vramcast.hardware.vendors import SHARED_GPU, WHOLE_GPU
from vramcast.names import NodeName, PodUid, Product, Resource
from vramcast.placement.gpus import NodeGpus, Pool
from vramcast.placement.ledger import Decision, Ledger
from vramcast.placement.promises import Demand, Promise, State
from vramcast.placement.reasons import Reason
from vramcast.task.pod import Ask
from vramcast.task.quantity import MIB
from vramcast.task.task import Task

A100 = Product("NVIDIA-A100-SXM4-40GB")
T4 = Product("Tesla-T4")


class GivenForecaster:
    """A fake: on every product the need is the task's `gpu-memory`."""

    def forecast(self, task: Task, product: Product) -> Forecast:
        size_bytes = (task.gpu_memory_mib or 0) * MIB
        return Forecast(product, size_bytes, size_bytes, 0.01, Source.GIVEN, "fake")


def sharing_node(name: str, *sizes_mib: int, product: Product = A100) -> NodeGpus:
    return NodeGpus(NodeName(name), True, (Pool(SHARED_GPU, product, sizes_mib, len(sizes_mib)),))


def whole_node(name: str, size_mib: int, count: int = 1, replicas: int = 1, product: Product = A100) -> NodeGpus:
    return NodeGpus(NodeName(name), False, (Pool(WHOLE_GPU, product, (size_mib,), count, replicas),))


def demand(uid: str, need_mib: int | Mapping[Product, int], count: int = 1, resource: Resource = SHARED_GPU) -> Demand:
    needs = {A100: need_mib, T4: need_mib} if isinstance(need_mib, int) else need_mib
    return Demand(PodUid(uid), f"ml/{uid}", Ask(resource, count), needs)


def bound(
    uid: str,
    node: str,
    need_mib: int | None,
    *gpu_indices: int,
    resource: Resource = SHARED_GPU,
    count: int = 1,
    made_at: float = 0.0,
) -> Promise:
    return Promise(
        PodUid(uid), f"ml/{uid}", NodeName(node), resource, count, need_mib, gpu_indices, State.BOUND, made_at
    )


def ledger_of(*nodes: NodeGpus, count_devices: bool = False) -> Ledger:
    ledger = Ledger(hold_ttl_seconds=30, count_devices=count_devices)
    for node in nodes:
        ledger.put_node(node)
    return ledger


def decide(ledger: Ledger, wanted: Demand, *nodes: str) -> Decision:
    return ledger.decide(wanted, ledger.board.columns(nodes))


def reason(ledger: Ledger, wanted: Demand, node: str) -> Reason:
    return Reason(int(decide(ledger, wanted, node).reasons[0]))


def hold(ledger: Ledger, wanted: Demand, *nodes: str, now: float = 0.0) -> None:
    ledger.hold(decide(ledger, wanted, *nodes), now)


def take(ledger: Ledger, wanted: Demand, node: str, now: float = 0.0) -> Promise:
    promise = ledger.assign(wanted, NodeName(node), now)
    assert isinstance(promise, Promise), promise
    return promise


def room(ledger: Ledger, node: str, resource: Resource = SHARED_GPU) -> list[int]:
    """The room left on each GPU; negative if the GPU is over-full."""
    pool = ledger.nodes[NodeName(node)].pool(resource)
    assert pool is not None
    column = int(ledger.board.columns([node])[0])
    return [ledger.board.tables[resource].room(index, column) for index in range(len(pool.memory_mib))]
