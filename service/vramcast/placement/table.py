"""All nodes' devices under one resource name, as arrays: one column per node, one row per GPU of a node.

A filter call is a sweep over every GPU of the cluster, so the sweep is a few numpy operations and the bookkeeping
keeps the arrays current instead of the sweep computing them.

`packed` is the trick that makes "the fullest GPU that still fits" a plain minimum: a GPU's room in MiB and its
index in one integer, `room * 32 + index`. Less the need, what is negative does not fit; read as an unsigned number it
is larger than all that does; and the minimum brings its index along.

The column after the last node's is nobody's, and stays empty: a node that is not known has the column -1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.hardware.vendors import MAX_GPUS

Ints = npt.NDArray[np.int64]
Mibs = npt.NDArray[np.int32]  # memory, 32 bits wide because the arrays are swept on every call
Packed = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]

_INDEX_BITS = 5
_INDEX_MASK = MAX_GPUS - 1
# More than any GPU has (32 TiB), and packed still half of what 32 bits hold: differences do not overflow.
MOST_MIB = (1 << 25) - 1
# A GPU that is not there: below any room, even one that is over-full by many promises.
_ABSENT_MIB = -(1 << 25)
# Over-full by more than this is over-full.
_LOWEST_ROOM_MIB = -(1 << 24)
_NEGATIVE = np.uint32(1 << 31)
_FIRST_CAPACITY = 64


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a table says about one demand, for every node. Shapes: (nodes,), `spare` (count, nodes)."""

    needs_mib: Mibs
    fits: Bools
    spare: Packed  # what would be left on each of the GPUs that would be taken, packed; no sense where it does not fit

    def gpus(self, columns: Ints) -> Ints:
        """(count, columns)"""
        return np.asarray(self.spare[:, columns] & _INDEX_MASK, dtype=np.int64)

    def spare_mib(self, columns: Ints) -> Ints:
        """On the emptiest of the GPUs that would be taken. (columns,)"""
        return np.asarray(self.spare[-1][columns] >> _INDEX_BITS, dtype=np.int64)

    def spare_shares(self, size_mib: Mibs) -> npt.NDArray[np.float32]:
        """The same as shares of these sizes, for every node; no sense where it does not fit. (nodes,)"""
        sizes = np.maximum(size_mib[: len(self.fits)], 1)
        return np.asarray(np.divide(self.spare[-1] >> _INDEX_BITS, sizes, dtype=np.float32))


class PoolTable:
    """Room, holds and sizes of one resource. Shapes: (gpus, nodes) unless said otherwise."""

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
        # The sums of these two: mostly there is nothing, and then nothing need be looked through.
        self.held_mib = 0
        self.unmanaged_mib = 0

    @property
    def width(self) -> int:
        return int(self._packed.shape[0])

    def grow(self, width: int, nodes: int) -> None:
        """Make place for a wider node, or for more nodes and the one that is nobody's."""
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
        sizes = [min(size_mib, MOST_MIB) for size_mib in memory_mib]
        self.size[: len(sizes), column] = sizes
        self.largest[column] = max(sizes)

    def room(self, gpu: int, column: int) -> int:
        """May be negative: a GPU that others have over-filled."""
        return int(self._packed[gpu, column]) >> _INDEX_BITS

    def set_room(self, gpu: int, column: int, room_mib: int) -> None:
        self._packed[gpu, column] = (min(max(room_mib, _LOWEST_ROOM_MIB), MOST_MIB) << _INDEX_BITS) | gpu

    def add_hold(self, gpus: Ints, columns: Ints, needs_mib: Mibs) -> None:
        """Each (gpu, column) pair at most once. A negative need takes a hold away."""
        flat = gpus * self._packed.shape[1] + columns
        self._packed.reshape(-1)[flat] -= needs_mib << _INDEX_BITS
        self.held.reshape(-1)[flat] += needs_mib
        self.held_mib += int(needs_mib.sum(dtype=np.int64))

    def set_unmanaged(self, gpu: int, column: int, used_mib: int) -> None:
        self.unmanaged_mib += used_mib - int(self.unmanaged[gpu, column])
        self.unmanaged[gpu, column] = used_mib

    def sweep(self, needs_mib: Mibs, count: int) -> Sweep:
        """The best fit on every node at once: the `count` fullest GPUs that hold the need. needs_mib: (nodes,)"""
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

    def fits_with(self, relief_mib: Mibs, needs_mib: Mibs, count: int) -> Bools:
        """Which nodes would fit if `relief_mib` (gpus, nodes) were given back? For telling the reasons apart."""
        nodes = len(needs_mib)
        room = self._packed[:, :nodes] + (relief_mib[:, :nodes] << _INDEX_BITS)
        return _enough(room >= needs_mib << _INDEX_BITS, count)

    def fits_empty(self, needs_mib: Mibs, count: int) -> Bools:
        """Which nodes have GPUs that are large enough at all?"""
        if count == 1:
            return np.asarray(self.largest[: len(needs_mib)] >= needs_mib, dtype=np.bool_)
        return _enough(self.size[:, : len(needs_mib)] >= needs_mib, count)


def _enough(fitting: Bools, count: int) -> Bools:
    """fitting: (gpus, nodes). Where the kubelet picks there is one row, and it stands for all devices."""
    if count == 1 or fitting.shape[0] == 1:
        return np.asarray(fitting.any(axis=0), dtype=np.bool_)
    return np.asarray(fitting.sum(axis=0) >= count, dtype=np.bool_)
