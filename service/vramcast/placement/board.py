"""Every node's GPUs as arrays, and the room on each: the half of the ledger that every call sweeps.

One table per resource, one column per node, one row per GPU of a node. A column is reused after its node is gone.
A node's room is counted from scratch whenever something on it changes, so it cannot drift.

`packed` makes "the fullest GPU that still fits" a plain minimum. It holds a GPU's room in MiB and its index in one
integer, `room * 32 + index`. Subtract the need, read the result as unsigned, and everything that does not fit is
larger than everything that does. The minimum brings its index along.

Column -1 means an unknown node. It selects the last column, which belongs to no node and stays empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.hardware.vendors import MAX_GPUS, SHARED_GPU
from vramcast.names import NodeName, Product, Resource
from vramcast.placement.gpus import NodeGpus, Pool
from vramcast.placement.name_index import Ints, NameIndex, Records, Text
from vramcast.placement.promises import Promise
from vramcast.placement.reasons import Reason

Mibs = npt.NDArray[np.int32]  # 32 bits wide, because these arrays are swept on every call
Packed = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

# More than any GPU has (32 TiB). Packed, it is half of what 32 bits hold, so differences do not overflow.
MAX_MIB = (1 << 25) - 1
_INDEX_BITS = 5
_INDEX_MASK = MAX_GPUS - 1
# The room of a GPU that does not exist: below any real room, even of a GPU that is badly over-full.
_ABSENT_MIB = -(1 << 25)
_LOWEST_ROOM_MIB = -(1 << 24)
_NEGATIVE = np.uint32(1 << 31)
_FIRST_CAPACITY = 64
# Below this size, decoding the names is faster than setting up arrays.
_INDEX_MIN_BYTES = 4096
_NO_UNMANAGED: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """The answer of one table to one demand, for every node. Shapes: (nodes,), `spare` (count, nodes)."""

    needs_mib: Mibs
    fits: Bools
    spare: Packed  # what would be left on each GPU taken, packed; meaningless where the demand does not fit

    def gpus(self, columns: Ints) -> Ints:
        """(count, columns)"""
        return np.asarray(self.spare[:, columns] & _INDEX_MASK, dtype=np.int64)

    def spare_mib(self, columns: Ints) -> Ints:
        """On the emptiest of the GPUs taken. (columns,)"""
        return np.asarray(self.spare[-1][columns] >> _INDEX_BITS, dtype=np.int64)

    def spare_shares(self, size_mib: Mibs) -> npt.NDArray[np.float32]:
        """The same for every node, as a share of these sizes. (nodes,)"""
        sizes = np.maximum(size_mib[: len(self.fits)], 1)
        return np.asarray(np.divide(self.spare[-1] >> _INDEX_BITS, sizes, dtype=np.float32))


class PoolTable:
    """Room, holds and sizes of one resource. Shapes: (gpus, nodes) unless noted."""

    def __init__(self, width: int) -> None:
        self._packed: Mibs = np.full((width, _FIRST_CAPACITY), _ABSENT_MIB << _INDEX_BITS, dtype=np.int32)
        self.held: Mibs = np.zeros((width, _FIRST_CAPACITY), dtype=np.int32)
        self.size: Mibs = np.full((width, _FIRST_CAPACITY), _ABSENT_MIB, dtype=np.int32)
        self.unmanaged: Mibs = np.zeros((width, _FIRST_CAPACITY), dtype=np.int32)
        self.tenants = np.zeros((width, _FIRST_CAPACITY), dtype=np.int32)
        self.offered = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.mixed = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.sliced = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.devices = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)
        self.free_devices = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)
        self.largest: Mibs = np.full(_FIRST_CAPACITY, _ABSENT_MIB, dtype=np.int32)  # (nodes,) of `size`
        self.product_ids = np.zeros(_FIRST_CAPACITY, dtype=np.int32)  # (nodes,)
        # Sums over the whole table. They are usually 0, and then explaining a rejection can skip the arrays.
        self.held_mib = 0
        self.unmanaged_mib = 0

    @property
    def width(self) -> int:
        return int(self._packed.shape[0])

    def grow(self, width: int, nodes: int) -> None:
        """Make room for a node with more GPUs, or for more nodes plus the empty last column."""
        old_width, old_nodes = self._packed.shape
        if width <= old_width and nodes < old_nodes:
            return
        width, nodes = max(width, old_width), old_nodes if nodes < old_nodes else max(nodes + 1, 2 * old_nodes)
        fills = {"_packed": _ABSENT_MIB << _INDEX_BITS, "size": _ABSENT_MIB, "largest": _ABSENT_MIB}
        arrays = [(name, value) for name, value in vars(self).items() if isinstance(value, np.ndarray)]
        for name, old in arrays:
            shape = (width, nodes) if old.ndim == 2 else (nodes,)
            grown = np.full(shape, fills.get(name, 0), dtype=old.dtype)
            grown[tuple(slice(length) for length in old.shape)] = old
            setattr(self, name, grown)

    def clear(self, column: int) -> None:
        self.held_mib -= int(self.held[:, column].sum())
        self.unmanaged_mib -= int(self.unmanaged[:, column].sum())
        self._packed[:, column] = _ABSENT_MIB << _INDEX_BITS
        self.size[:, column] = _ABSENT_MIB
        self.largest[column] = _ABSENT_MIB
        for array in (self.held, self.unmanaged, self.tenants):
            array[:, column] = 0
        for flags in (self.offered, self.mixed, self.sliced):
            flags[column] = False
        self.devices[column] = self.free_devices[column] = 0

    def set_size(self, column: int, memory_mib: Sequence[int]) -> None:
        sizes = [min(size_mib, MAX_MIB) for size_mib in memory_mib]
        self.size[: len(sizes), column] = sizes
        self.largest[column] = max(sizes)

    def room(self, gpu: int, column: int) -> int:
        """Negative for a GPU that other schedulers have over-filled."""
        return int(self._packed[gpu, column]) >> _INDEX_BITS

    def best_rooms(self, count: int) -> Mibs:
        """The most that `count` GPUs of a node have left on each of them. (nodes,)"""
        return np.asarray(np.sort(self._packed, axis=0)[-min(count, self.width)] >> _INDEX_BITS, dtype=np.int32)

    def set_room(self, gpu: int, column: int, room_mib: int) -> None:
        self._packed[gpu, column] = (min(max(room_mib, _LOWEST_ROOM_MIB), MAX_MIB) << _INDEX_BITS) | gpu

    def add_hold(self, gpus: Ints, columns: Ints, needs_mib: Mibs) -> None:
        """Each (gpu, column) pair at most once. A negative need removes a hold."""
        flat = gpus * self._packed.shape[1] + columns
        self._packed.reshape(-1)[flat] -= needs_mib << _INDEX_BITS
        self.held.reshape(-1)[flat] += needs_mib
        self.held_mib += int(needs_mib.sum(dtype=np.int64))

    def set_unmanaged(self, gpu: int, column: int, used_mib: int) -> None:
        self.unmanaged_mib += used_mib - int(self.unmanaged[gpu, column])
        self.unmanaged[gpu, column] = used_mib

    def sweep(self, needs_mib: Mibs, count: int) -> Sweep:
        """The best fit on every node: its `count` fullest GPUs that hold the need. needs_mib: (nodes,)"""
        nodes = len(needs_mib)
        spare = (self._packed[:, :nodes] - (needs_mib << _INDEX_BITS)).view(np.uint32)
        if self.width == 1 or count == 1:
            spare = spare.min(axis=0)[np.newaxis, :]
        elif count > self.width:
            spare = np.full((1, nodes), _NEGATIVE)
        else:
            spare = np.sort(spare, axis=0)[:count]
        fits = (spare[-1] < _NEGATIVE) & self.offered[:nodes]
        fits &= ~self.mixed[:nodes]
        return Sweep(needs_mib, fits, spare)

    def overpromised(self) -> int:
        """How many GPUs have more promised than they have. Holds and unmanaged memory are no promises."""
        room = (self._packed >> _INDEX_BITS) + self.held + self.unmanaged
        return int(np.count_nonzero((room < 0) & (self.size > 0)))

    def sizes_for(self, count: int) -> Mibs:
        """The most that each of `count` GPUs of a node has; below 0 where there are fewer. (nodes,)"""
        if self.width == 1:
            return np.asarray(np.where(self.devices >= count, self.size[0], _ABSENT_MIB), dtype=np.int32)
        return np.sort(self.size, axis=0)[-count] if count <= self.width else np.full_like(self.largest, _ABSENT_MIB)

    def fits_with(self, relief_mib: Mibs, needs_mib: Mibs, count: int) -> Bools:
        """Which nodes would fit if `relief_mib` (gpus, nodes) were free? Used to tell reasons apart."""
        nodes = len(needs_mib)
        room = self._packed[:, :nodes] + (relief_mib[:, :nodes] << _INDEX_BITS)
        return _enough(room >= needs_mib << _INDEX_BITS, count)

    def fits_empty(self, needs_mib: Mibs, count: int) -> Bools:
        """Which nodes have large enough GPUs at all?"""
        if count == 1:
            return np.asarray(self.largest[: len(needs_mib)] >= needs_mib, dtype=np.bool_)
        return _enough(self.size[:, : len(needs_mib)] >= needs_mib, count)


def _enough(fitting: Bools, count: int) -> Bools:
    """fitting: (gpus, nodes). Where the kubelet picks, one row stands for all devices."""
    if count == 1 or fitting.shape[0] == 1:
        return np.asarray(fitting.any(axis=0), dtype=np.bool_)
    return np.asarray(fitting.sum(axis=0) >= count, dtype=np.bool_)


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


class Board:
    """All tables, and which column each node has."""

    def __init__(self) -> None:
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
        largest = np.full(len(self.product_ids), _ABSENT_MIB, dtype=np.int32)
        np.maximum.at(largest, table.product_ids[table.offered], table.sizes_for(count)[table.offered])
        return {product: int(largest[row]) for product, row in self.product_ids.items() if largest[row] >= 0}

    def recount(self, name: NodeName, promises: Iterable[Promise]) -> None:
        """Count one node's room from the promises on it."""
        node = self.nodes.get(name)
        if node is None:
            return
        column, promises = self._column_of[name], tuple(promises)
        unmanaged = self._unmanaged.get(name, _NO_UNMANAGED)
        for pool in node.pools:
            table = self.tables[pool.resource]
            shared = pool.resource == SHARED_GPU
            table.mixed[column] = any((p.resource == SHARED_GPU) != shared for p in promises)
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
    return [index for index in promise.gpu_indices if index < pool.count] or range(pool.count)


def _recount_shared(
    table: PoolTable, pool: Pool, column: int, promises: Iterable[Promise], unmanaged: Sequence[int]
) -> None:
    promised = [0] * pool.count
    tenants = [0] * pool.count
    for promise in promises:
        for index in _indices_on(pool, promise):
            promised[index] += promise.need_mib or 0
            tenants[index] += 1
    for index, size_mib in enumerate(pool.memory_mib):
        foreign = unmanaged[index] if index < len(unmanaged) else 0
        table.set_unmanaged(index, column, foreign)
        table.tenants[index, column] = tenants[index]
        table.set_room(index, column, size_mib - promised[index] - foreign - int(table.held[index, column]))


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
    table.tenants[0, column] = min(len(mine), pool.replicas - 1)
    table.free_devices[column] = pool.count * pool.replicas - sum(promise.count for promise in mine)
    table.set_room(0, column, size_mib - taken - foreign - int(table.held[0, column]))
