"""All nodes' devices under one resource name, as arrays: one column per node, one row per GPU of a node.

A filter call is a sweep over every GPU of the cluster, so the sweep is a few numpy operations and the bookkeeping
keeps the arrays current instead of the sweep computing them.

`packed` is the trick that makes "the fullest GPU that still fits" a plain minimum: a GPU's room in MiB and its
index in one integer, `room * 32 + index`. Room compares like the packed value, and the minimum brings its index
along.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.core.gpu import MAX_GPUS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# A shift, not a division: the arrays are swept on every call.
_INDEX_BITS = 5
_INDEX_MASK = MAX_GPUS - 1
# A GPU that is not there: far below any room, even one that is over-full by many promises.
_ABSENT = -(1 << 60)
_NOWHERE = 1 << 60
_FIRST_CAPACITY = 64
# Over-full by more than this is over-full: keeps the packed integer an int64, whatever others have bound.
_LOWEST_ROOM_MIB = -(1 << 50)


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a table says about one demand, for every node. Shapes: (nodes,), `gpus` (count, nodes)."""

    fits: Bools
    room_mib: Ints  # of the GPU that would be taken; meaningless where it does not fit
    gpus: Ints


class PoolTable:
    """Room, holds and sizes of one resource. Shapes: (gpus, nodes) unless said otherwise."""

    def __init__(self, width: int) -> None:
        self._packed = np.full((width, _FIRST_CAPACITY), _ABSENT, dtype=np.int64)
        self.held = np.zeros((width, _FIRST_CAPACITY), dtype=np.int64)
        self.size = np.full((width, _FIRST_CAPACITY), _ABSENT, dtype=np.int64)
        self.strangers = np.zeros((width, _FIRST_CAPACITY), dtype=np.int64)
        self.tenants = np.zeros((width, _FIRST_CAPACITY), dtype=np.int64)
        self.offered = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.mixed = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.sliced = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.devices = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)
        self.free_devices = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)
        self.largest = np.full(_FIRST_CAPACITY, _ABSENT, dtype=np.int64)  # (nodes,) of `size`
        self.product_ids = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)

    @property
    def width(self) -> int:
        return int(self._packed.shape[0])

    def grow(self, width: int, nodes: int) -> None:
        """Make place for a wider node, or for more nodes."""
        old_width, old_nodes = self._packed.shape
        if width <= old_width and nodes <= old_nodes:
            return
        width, nodes = max(width, old_width), old_nodes if nodes <= old_nodes else max(nodes, 2 * old_nodes)
        fills = {"_packed": _ABSENT, "size": _ABSENT, "largest": _ABSENT}
        for name, old in vars(self).items():
            shape = (width, nodes) if old.ndim == 2 else (nodes,)
            grown = np.full(shape, fills.get(name, 0), dtype=old.dtype)
            grown[tuple(slice(length) for length in old.shape)] = old
            setattr(self, name, grown)

    def clear(self, column: int) -> None:
        self._packed[:, column] = _ABSENT
        self.size[:, column] = _ABSENT
        self.largest[column] = _ABSENT
        for array in (self.held, self.strangers, self.tenants):
            array[:, column] = 0
        for flags in (self.offered, self.mixed, self.sliced):
            flags[column] = False
        self.devices[column] = self.free_devices[column] = 0

    def room(self, gpu: int, column: int) -> int:
        """May be negative: a GPU that others have over-filled."""
        return int(self._packed[gpu, column]) >> _INDEX_BITS

    def set_room(self, gpu: int, column: int, room_mib: int) -> None:
        self._packed[gpu, column] = (max(room_mib, _LOWEST_ROOM_MIB) << _INDEX_BITS) | gpu

    def add_hold(self, gpus: Ints, columns: Ints, needs_mib: Ints) -> None:
        """Each (gpu, column) pair at most once. A negative need takes a hold away."""
        flat = gpus * self._packed.shape[1] + columns
        self._packed.reshape(-1)[flat] -= needs_mib << _INDEX_BITS
        self.held.reshape(-1)[flat] += needs_mib

    def sweep(self, needs_mib: Ints, count: int, nodes: int) -> Sweep:
        """The best fit on every node at once: the `count` fullest GPUs that hold the need. needs_mib: (nodes,)"""
        packed = self._packed[:, :nodes]
        candidates = np.where(packed >= needs_mib << _INDEX_BITS, packed, _NOWHERE)
        if self.width == 1 or count == 1:
            chosen = candidates.min(axis=0)[np.newaxis, :]
        elif count > self.width:
            chosen = np.full((1, nodes), _NOWHERE, dtype=np.int64)
        else:
            chosen = np.sort(candidates, axis=0)[:count]
        fits = (chosen[-1] < _NOWHERE) & ~self.mixed[:nodes]
        return Sweep(fits, chosen[-1] >> _INDEX_BITS, chosen & _INDEX_MASK)

    def fits_with(self, relief_mib: Ints, needs_mib: Ints, count: int) -> Bools:
        """Which nodes would fit if `relief_mib` (gpus, nodes) were given back? For telling the reasons apart."""
        nodes = len(needs_mib)
        room = self._packed[:, :nodes] + (relief_mib[:, :nodes] << _INDEX_BITS)
        return _enough(room >= needs_mib << _INDEX_BITS, count)

    def fits_empty(self, needs_mib: Ints, count: int) -> Bools:
        """Which nodes have GPUs that are large enough at all?"""
        if count == 1:
            return np.asarray(self.largest[: len(needs_mib)] >= needs_mib, dtype=np.bool_)
        return _enough(self.size[:, : len(needs_mib)] >= needs_mib, count)


def _enough(fitting: Bools, count: int) -> Bools:
    """fitting: (gpus, nodes). Where the kubelet picks there is one row, and it stands for all devices."""
    if count == 1 or fitting.shape[0] == 1:
        return np.asarray(fitting.any(axis=0), dtype=np.bool_)
    return np.asarray(fitting.sum(axis=0) >= count, dtype=np.bool_)
