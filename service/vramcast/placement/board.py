"""Every node's GPUs as arrays, and the room on each: the half of the ledger that every call sweeps.

One table per resource, one column per node. A column is reused after its node is gone. A node's room is counted from
scratch whenever something on it changes, so it cannot drift.

Column -1 means an unknown node. It selects the last column, which belongs to no node and stays empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, Product, Resource
from vramcast.placement.gpus import NodeGpus, Pool
from vramcast.placement.interference import Load, tolerated
from vramcast.placement.name_index import Ints, NameIndex, Records, Text
from vramcast.placement.pool_table import MAX_MIB, Bools, PoolTable
from vramcast.placement.promises import Promise
from vramcast.placement.reasons import Reason

# Below this size, decoding the names is faster than setting up arrays.
_INDEX_MIN_BYTES = 4096
_NO_UNMANAGED: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One GPU of a sharing node, or all interchangeable devices of a pool where the kubelet picks."""

    pool: Pool
    index: int
    size_mib: int
    room_mib: int
    held_mib: int
    unmanaged_mib: int
    free_devices: int
    promises: tuple[Promise, ...]


@dataclass(frozen=True, slots=True)
class Ranking:
    """What a score is made of."""

    slowdown_weight: float = 0.8  # share of it that is the expected slowdown, 0 to 0.9; the rest is packing
    harmless_slowdown: float = 1.33  # up to this slowdown packing alone decides
    node_weight: float = 0.1  # share of the packing that is the whole node's, 0 to 1; the rest is the GPU's


DEFAULT_RANKING = Ranking()


class Board:
    """All tables, and which column each node has."""

    def __init__(self, ranking: Ranking) -> None:
        self.ranking = ranking
        self.nodes: dict[NodeName, NodeGpus] = {}
        self.tables: dict[Resource, PoolTable] = {}
        self.product_ids: dict[Product, int] = {}
        # Why a node does not offer a resource, for pods that share and for pods that do not. (nodes + 1,)
        self.unoffered_shared = np.full(1, Reason.UNKNOWN_NODE, dtype=np.uint8)
        self.unoffered_whole = np.full(1, Reason.UNKNOWN_NODE, dtype=np.uint8)
        self.width = 0  # columns in use or free again
        self.layout = 0  # counts how often a column got another node or other GPUs
        self._column_of: dict[NodeName, int] = {}
        self._index: NameIndex | None = None
        self._indexed = True  # False: a node came or went since the index was built
        self._free_columns: list[int] = []
        self._unmanaged: dict[NodeName, tuple[int, ...]] = {}

    def put(self, node: NodeGpus) -> int:
        """The node's column. The caller recounts its room."""
        column = self._column_of.get(node.name)
        if column is None:
            column = self._free_columns.pop() if self._free_columns else self.width
            self.width = max(self.width, column + 1)
            self._column_of[node.name] = column
            self._indexed = False
        self.nodes[node.name] = node
        self.layout += 1
        self._note_unoffered(node, column)
        for table in self.tables.values():
            table.grow(1, self.width)
            table.clear(column)
        for pool in node.pools:
            self.product_ids.setdefault(pool.product, len(self.product_ids))
            self._place_pool(pool, column)
        return column

    def drop(self, name: NodeName) -> None:
        column = self._column_of.pop(name)
        self._indexed = False
        del self.nodes[name]
        self._unmanaged.pop(name, None)
        for table in self.tables.values():
            table.clear(column)
        self._free_columns.append(column)
        self.layout += 1

    def set_unmanaged(self, name: NodeName, used_mib: Sequence[int]) -> bool:
        """True if anything changed."""
        used_mib = tuple(min(max(0, used), MAX_MIB) for used in used_mib)
        if used_mib == self._unmanaged.get(name, _NO_UNMANAGED):
            return False
        self._unmanaged[name] = used_mib
        return True

    def column(self, name: NodeName) -> int | None:
        return self._column_of.get(name)

    def columns(self, names: Iterable[str]) -> Ints:
        """-1 for an unknown node."""
        return np.array([self._column_of.get(NodeName(name), -1) for name in names], dtype=np.int64)

    def find(self, raw: Text) -> tuple[Ints, Records] | None:
        """The same for a long JSON array, with the quoted names in place. None: decode it and use `columns`."""
        if len(raw) < _INDEX_MIN_BYTES:
            return None
        if not self._indexed:
            self._index, self._indexed = NameIndex.build(self._column_of), True
        return self._index.find(raw) if self._index is not None else None

    def sharing(self, columns: Ints) -> Bools:
        """Which of these nodes share their GPUs. Pods that get GPUs from the device plugin stay off them."""
        return np.asarray(self.unoffered_whole[columns] == Reason.SHARING, dtype=np.bool_)

    def sizes_mib(self, resource: Resource, count: int) -> dict[Product, int]:
        """Products of which some node has `count` GPUs, and the most memory that each of so many has."""
        table = self.tables.get(resource)
        if table is None:
            return {}
        largest = np.full(len(self.product_ids), -1, dtype=np.int32)
        np.maximum.at(largest, table.product_ids[table.offered], table.sizes_for(count)[table.offered])
        return {product: int(largest[row]) for product, row in self.product_ids.items() if largest[row] >= 0}

    def recount(self, name: NodeName, promises: Iterable[Promise]) -> None:
        """Count one node's room from the promises on it."""
        node = self.nodes.get(name)
        if node is None:
            return
        column, promises = self._column_of[name], tuple(promises)
        resources = {promise.resource for promise in promises}
        unmanaged = self._unmanaged.get(name, _NO_UNMANAGED)
        for pool in node.pools:
            table = self.tables[pool.resource]
            shared = pool.resource == SHARED_GPU
            table.mixed[column] = bool(resources - {SHARED_GPU}) if shared else SHARED_GPU in resources
            if shared:
                _recount_shared(table, pool, column, promises, unmanaged)
            else:
                _recount_kubelet(table, pool, column, promises, unmanaged)

    def device_views(self, name: NodeName, promises: Iterable[Promise]) -> list[DeviceView]:
        """A node's devices with everything that counts on them."""
        node, column = self.nodes[name], self._column_of[name]
        views, promises = [], tuple(promises)
        for pool in node.pools:
            table = self.tables[pool.resource]
            tenants = [p for p in promises if p.resource == pool.resource]
            for index, size_mib in enumerate(pool.memory_mib):
                here = [p for p in tenants if index in _indices_on(pool, p)]
                views.append(
                    DeviceView(
                        pool, index, size_mib, room_mib=max(0, table.room(index, column)),
                        held_mib=int(table.held[index, column]), unmanaged_mib=int(table.unmanaged[index, column]),
                        free_devices=int(table.free_devices[column]), promises=tuple(here),
                    )
                )  # fmt: skip
        return views

    def _note_unoffered(self, node: NodeGpus, column: int) -> None:
        if column + 1 >= len(self.unoffered_shared):
            unknown = np.full(self.width + 1 - len(self.unoffered_shared), Reason.UNKNOWN_NODE, dtype=np.uint8)
            self.unoffered_shared = np.append(self.unoffered_shared, unknown)
            self.unoffered_whole = np.append(self.unoffered_whole, unknown)
        self.unoffered_shared[column] = _why_not_offered(node, wants_shared=True)
        self.unoffered_whole[column] = _why_not_offered(node, wants_shared=False)

    def _place_pool(self, pool: Pool, column: int) -> None:
        table = self.tables.get(pool.resource)
        if table is None:
            table = self.tables[pool.resource] = PoolTable(len(pool.memory_mib))
        table.grow(len(pool.memory_mib), self.width)
        table.clear(column)
        table.set_size(column, pool.memory_mib)
        table.offered[column] = True
        table.sliced[column] = pool.replicas > 1
        table.devices[column] = pool.count * pool.replicas
        table.product_ids[column] = self.product_ids[pool.product]


def _why_not_offered(node: NodeGpus, *, wants_shared: bool) -> Reason:
    if node.problem:
        return Reason.MEMORY_UNKNOWN
    if not node.pools or node.sharing == wants_shared:
        return Reason.NO_GPU
    return Reason.SHARING if node.sharing else Reason.NOT_SHARING


def _indices_on(pool: Pool, promise: Promise) -> Sequence[int]:
    """A pod that another scheduler bound without naming its GPU may sit on any of them, so it counts on all."""
    indices, count = promise.gpu_indices, len(pool.memory_mib)
    if len(indices) == 1 and indices[0] < count:
        return indices
    return [index for index in indices if index < count] or range(count)


def _recount_shared(
    table: PoolTable, pool: Pool, column: int, promises: Sequence[Promise], unmanaged: Sequence[int]
) -> None:
    free_mib, pressures = list(pool.memory_mib), [0.0] * pool.count
    limited = table.limits > 0 or any(promise.load.most_slowdown < math.inf for promise in promises)
    tenants: list[list[Load]] = [[] for _ in range(pool.count)] if limited else []
    foreign = [*unmanaged[: pool.count], *[0] * (pool.count - len(unmanaged))] if unmanaged else [0] * pool.count
    for index, used_mib in enumerate(unmanaged[: pool.count]):
        free_mib[index] -= used_mib
    for promise in promises:
        need_mib, pressure = promise.need_mib or 0, promise.load.pressure
        for index in _indices_on(pool, promise):
            free_mib[index] -= need_mib
            pressures[index] += pressure
            if limited:
                tenants[index].append(promise.load)
    free_gpus = 0.0
    for free, size in zip(free_mib, pool.memory_mib, strict=True):
        if free > 0:
            free_gpus += free / size
    table.free_gpus[column] = free_gpus
    table.set_shared(column, free_mib, foreign, pressures)
    if limited:
        table.set_tolerated(column, [tolerated(loads) for loads in tenants])


def _recount_kubelet(
    table: PoolTable, pool: Pool, column: int, promises: Iterable[Promise], unmanaged: Sequence[int]
) -> None:
    """The kubelet picks the device, so the next pod must fit on whichever device it might get."""
    size_mib, foreign = pool.memory_mib[0], max(unmanaged, default=0)
    mine = [promise for promise in promises if promise.resource == pool.resource]
    taken = 0
    if pool.replicas > 1:
        # An undescribed tenant of a time-sliced GPU counts at its fair share, for lack of a better number.
        share_mib = size_mib // pool.replicas
        needs = sorted(
            (
                share_mib if p.need_mib is None else p.need_mib
                for p in mine
                for _ in range(min(p.count, pool.replicas - 1))
            ),
            reverse=True,
        )
        # Worst case: the largest tenants all share the GPU that the next pod gets.
        taken = sum(needs[: pool.replicas - 1])
    table.set_unmanaged(0, column, foreign)
    # Nothing tells which of them share a GPU, so a GPU has its part of them all, and no limit can be kept.
    shared = [promise.load.pressure / pool.count for promise in mine] if pool.replicas > 1 else []
    table.set_crowd(column, [sum(shared)])
    table.free_devices[column] = pool.count * pool.replicas - sum(promise.count for promise in mine)
    table.free_gpus[column] = max(0, int(table.free_devices[column])) / pool.replicas
    table.set_room(0, column, size_mib - taken - foreign - int(table.held[0, column]))
