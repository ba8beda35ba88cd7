"""One resource's GPUs as arrays: room, holds, sizes and who presses on them. Every call sweeps these.

One column per node, one row per GPU of a node. `packed` makes "the fullest GPU that still fits" a plain minimum. It
holds a GPU's room in MiB and its index in one integer, `room * 32 + index`. Subtract the need, read the result as
unsigned, and everything that does not fit is larger than everything that does. The minimum brings its index along.

Where the pod would slow its neighbours down, and they it, MiB are added before the minimum is taken: as many as the
slowdown is worth. That changes which GPU is chosen, and never whether one fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from vramcast.hardware.vendors import MAX_GPUS
from vramcast.placement.interference import SLOWDOWN
from vramcast.placement.name_index import Ints

Mibs = npt.NDArray[np.int32]  # 32 bits wide, because these arrays are swept on every call
Packed = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

# More than any GPU has (32 TiB). Packed, it is half of what 32 bits hold, so differences do not overflow.
MAX_MIB = (1 << 25) - 1
_INDEX_BITS = 5
_INDEX_MASK = MAX_GPUS - 1
# The room of a GPU that does not exist: below any real room, even of a GPU that is badly over-full.
_ABSENT_MIB = -(1 << 25)
_LOWEST_ROOM_MIB = -(1 << 24)
_NEGATIVE = np.uint32(1 << 31)
_NEVER = np.uint32((1 << 32) - 1)  # stays above what fits when a penalty's harmless part is taken off
_FIRST_CAPACITY = 64
# Pressures on the board are whole numbers of this fraction, so that a sweep needs no floating point.
_PRESSURE_UNITS = 64
_MOST_UNITS = 1023
_LEAST_PRESSURE = 1e-6  # with less, no crowd slows anything
# The most MiB that a slowdown may be worth: with any room it stays below what does not fit.
_MOST_PENALTY_MIB = (1 << 25) - 1


@dataclass(frozen=True, slots=True)
class Pressing:
    """What a demand would do to its neighbours. Shapes: (nodes,), by the product of each node's GPUs."""

    pressure: Floats
    most_pressure: float  # of any product
    most_slowdown: float = np.inf  # that the pod accepts
    weight: float = 0.0  # MiB that a doubled run is worth, as a share of the GPU's memory
    harmless_slowdown: float = 1.0  # up to here it is worth nothing

    @property
    def limited(self) -> bool:
        return self.most_slowdown < np.inf

    @property
    def harmless_units(self) -> int:
        """The largest crowd that is harmless on every node; less one unit, because the arrays round in fp32."""
        free_units = (self.harmless_slowdown - 1) * _PRESSURE_UNITS / SLOWDOWN
        return max(0, int(free_units / max(self.most_pressure, _LEAST_PRESSURE)) - 1)


@dataclass(frozen=True, slots=True)
class Penalty:
    """What the slowdown of the pod and of its neighbours is worth, packed: `raised`, less what is harmless.

    Of one node's GPUs the same part is harmless. So it need not be taken off before the best of them is chosen.
    """

    raised: Packed  # (gpus, nodes)
    harmless: Packed  # (nodes,)

    def of(self, gpus: Packed, columns: Ints) -> Packed:
        return np.asarray(self.raised[gpus, columns] - self.harmless[columns], dtype=np.uint32)


@dataclass(frozen=True, slots=True)
class Sweep:
    """The answer of one table to one demand, for every node. Shapes: (nodes,), `chosen` (count, nodes)."""

    needs_mib: Mibs
    fits: Bools
    # What would be left on each GPU taken, plus its penalty, packed; meaningless where the demand does not fit.
    chosen: Packed
    penalty: Penalty | None = None
    pressure: Floats | None = None  # of the demand

    def gpus(self, columns: Ints) -> Ints:
        """(count, columns)"""
        return np.asarray(self.chosen[:, columns] & _INDEX_MASK, dtype=np.int64)

    def spare_mib(self, columns: Ints) -> Ints:
        """On the last of the GPUs taken. (columns,)"""
        last = self.chosen[-1][columns]
        if self.penalty is not None:
            last = last - self.penalty.of(last & _INDEX_MASK, columns)
        return np.asarray(last >> _INDEX_BITS, dtype=np.int64)

    def weighed_mib(self, columns: Ints | None = None) -> Packed:
        """The same plus its penalty; of every node if no columns are named. (columns,)"""
        last = self.chosen[-1] if columns is None else self.chosen[-1].take(columns)
        return np.asarray(last >> _INDEX_BITS, dtype=np.uint32)


class PoolTable:
    """Room, holds and sizes of one resource. Shapes: (gpus, nodes) unless noted."""

    def __init__(self, width: int) -> None:
        self._packed: Mibs = np.full((width, _FIRST_CAPACITY), _ABSENT_MIB << _INDEX_BITS, dtype=np.int32)
        self.held: Mibs = np.zeros((width, _FIRST_CAPACITY), dtype=np.int32)
        self.size: Mibs = np.full((width, _FIRST_CAPACITY), _ABSENT_MIB, dtype=np.int32)
        self.unmanaged: Mibs = np.zeros((width, _FIRST_CAPACITY), dtype=np.int32)
        # The tenants' pressures, in whole units, and the pressure that each of them tolerates from a newcomer.
        self._crowd: Packed = np.zeros((width, _FIRST_CAPACITY), dtype=np.uint32)
        self._tolerated: Floats = np.full((width, _FIRST_CAPACITY), np.inf, dtype=np.float32)
        self._ceiling: Packed = np.full(_FIRST_CAPACITY, _NEGATIVE)  # a row of one number, with which numpy is slow
        self.offered = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.mixed = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.sliced = np.zeros(_FIRST_CAPACITY, dtype=np.bool_)  # (nodes,)
        self.devices = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)
        self.free_devices = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # (nodes,)
        self.largest: Mibs = np.full(_FIRST_CAPACITY, _ABSENT_MIB, dtype=np.int32)  # (nodes,) of `size`
        self._worth: Floats = np.zeros(_FIRST_CAPACITY, dtype=np.float32)  # (nodes,) the same, 0 where there is none
        self.per_mib: Floats = np.zeros(_FIRST_CAPACITY, dtype=np.float32)  # (nodes,) a MiB as a share of the largest
        # (nodes,) what is free of promises and unmanaged memory, in GPUs. Holds do not count: they come and go.
        self.free_gpus: Floats = np.zeros(_FIRST_CAPACITY, dtype=np.float32)
        self.product_ids = np.zeros(_FIRST_CAPACITY, dtype=np.intp)  # (nodes,) as numpy wants an index
        # Sums over the whole table. They are usually 0, and then explaining a rejection can skip the arrays.
        self.held_mib = 0
        self.unmanaged_mib = 0
        self._most_crowd = 0  # units on the GPU with the most
        self.limits = 0  # GPUs with a tenant that limits its slowdown

    @property
    def width(self) -> int:
        return int(self._packed.shape[0])

    def grow(self, width: int, nodes: int) -> None:
        """Make room for a node with more GPUs, or for more nodes plus the empty last column."""
        old_width, old_nodes = self._packed.shape
        if width <= old_width and nodes < old_nodes:
            return
        width, nodes = max(width, old_width), old_nodes if nodes < old_nodes else max(nodes + 1, 2 * old_nodes)
        fills = {"_packed": _ABSENT_MIB << _INDEX_BITS, "size": _ABSENT_MIB, "largest": _ABSENT_MIB,
                 "_tolerated": np.inf, "_ceiling": _NEGATIVE}  # fmt: skip
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
        self.largest[column], self._worth[column], self.per_mib[column] = _ABSENT_MIB, 0, 0
        self.set_crowd(column, [0.0] * self.width)
        self.set_tolerated(column, [math.inf] * self.width)
        for array in (self.held, self.unmanaged):
            array[:, column] = 0
        for flags in (self.offered, self.mixed, self.sliced):
            flags[column] = False
        self.devices[column] = self.free_devices[column] = 0
        self.free_gpus[column] = 0

    def set_size(self, column: int, memory_mib: Sequence[int]) -> None:
        sizes = [min(size_mib, MAX_MIB) for size_mib in memory_mib]
        self.size[: len(sizes), column] = sizes
        self.largest[column] = self._worth[column] = max(sizes)
        self.per_mib[column] = 1 / max(*sizes, 1)

    def room(self, gpu: int, column: int) -> int:
        """Negative for a GPU that other schedulers have over-filled."""
        return int(self._packed[gpu, column]) >> _INDEX_BITS

    def best_rooms(self, count: int) -> Mibs:
        """The most that `count` GPUs of a node have left on each of them. (nodes,)"""
        return np.asarray(np.sort(self._packed, axis=0)[-min(count, self.width)] >> _INDEX_BITS, dtype=np.int32)

    def set_room(self, gpu: int, column: int, room_mib: int) -> None:
        self._packed[gpu, column] = (min(max(room_mib, _LOWEST_ROOM_MIB), MAX_MIB) << _INDEX_BITS) | gpu

    def set_shared(
        self, column: int, free_mib: Sequence[int], unmanaged_mib: Sequence[int], pressures: Sequence[float]
    ) -> None:
        """Every GPU of a node that shares them. `free_mib`: beside promises and unmanaged memory; holds come off it.

        Plain numbers, because a node has too few GPUs for arrays to pay.
        """
        count = len(free_mib)
        if (self.unmanaged_mib or any(unmanaged_mib)) and self.unmanaged[:count, column].tolist() != unmanaged_mib:
            for gpu, used_mib in enumerate(unmanaged_mib):
                self.set_unmanaged(gpu, column, used_mib)
        self.set_crowd(column, pressures)
        rooms_mib = free_mib
        if self.held_mib:
            rooms_mib = [free - held for free, held in zip(free_mib, self.held[:count, column].tolist(), strict=True)]
        if min(rooms_mib) < _LOWEST_ROOM_MIB or max(rooms_mib) > MAX_MIB:
            rooms_mib = [min(max(room_mib, _LOWEST_ROOM_MIB), MAX_MIB) for room_mib in rooms_mib]
        self._packed[:count, column] = [(room_mib << _INDEX_BITS) | gpu for gpu, room_mib in enumerate(rooms_mib)]

    def add_hold(self, gpus: Ints, columns: Ints, needs_mib: Mibs) -> None:
        """Each (gpu, column) pair at most once. A negative need removes a hold."""
        flat = gpus * self._packed.shape[1] + columns
        self._packed.reshape(-1)[flat] -= needs_mib << _INDEX_BITS
        self.held.reshape(-1)[flat] += needs_mib
        self.held_mib += int(needs_mib.sum(dtype=np.int64))

    def set_unmanaged(self, gpu: int, column: int, used_mib: int) -> None:
        self.unmanaged_mib += used_mib - int(self.unmanaged[gpu, column])
        self.unmanaged[gpu, column] = used_mib

    def set_crowd(self, column: int, pressures: Sequence[float]) -> None:
        """The sum of the tenants' pressures on each GPU of a node."""
        units = [_units(pressure) if pressure else 0 for pressure in pressures]
        most = max(units)
        if not most and not self._most_crowd:
            return
        before = max(self._crowd[: len(units), column].tolist())
        self._crowd[: len(units), column] = units
        if most >= self._most_crowd:
            self._most_crowd = most
        elif before == self._most_crowd:
            self._most_crowd = int(self._crowd.max())

    def set_tolerated(self, column: int, pressures: Sequence[float]) -> None:
        """The pressure that the tenants of each GPU of a node accept from a newcomer."""
        before = self._tolerated[: len(pressures), column].tolist()
        self.limits += _limited(pressures) - _limited(before)
        self._tolerated[: len(pressures), column] = pressures

    def pressures(self, gpus: Ints, columns: Ints) -> Floats:
        """The sum of the tenants' pressures on these GPUs."""
        return np.asarray(self._crowd[gpus, columns] / np.float32(_PRESSURE_UNITS), dtype=np.float32)

    def sweep(self, needs_mib: Mibs, count: int, pressing: Pressing | None = None) -> Sweep:
        """The best fit on every node: the `count` GPUs that hold the need and are best. needs_mib: (nodes,)"""
        nodes = len(needs_mib)
        spare = (self._packed[:, :nodes] - (needs_mib << _INDEX_BITS)).view(np.uint32)
        penalty = None
        if pressing is not None:
            # Where all slowdown is harmless, or no GPU has room, there is nothing to weigh.
            if pressing.weight and self._most_crowd > pressing.harmless_units and spare.min() < _NEGATIVE:
                penalty = self._penalty(pressing)
                # So that what does not fit cannot wrap around.
                np.minimum(spare, self._ceiling[:nodes], out=spare)
                spare += penalty.raised
            if self.limits or pressing.limited:
                spare[self._too_slow(pressing)] = _NEVER
        if self.width == 1 or count == 1:
            chosen = spare.min(axis=0)[np.newaxis, :]
        elif count > self.width:
            chosen = np.full((1, nodes), _NEVER)
        else:
            chosen = np.sort(spare, axis=0)[:count]
        if penalty is not None:
            chosen -= penalty.harmless
        fits = (chosen[-1] < _NEGATIVE) & self.offered[:nodes]
        fits &= ~self.mixed[:nodes]
        return Sweep(needs_mib, fits, chosen, penalty, pressing.pressure if pressing is not None else None)

    def _penalty(self, pressing: Pressing) -> Penalty:
        nodes = len(pressing.pressure)
        per_unit = self._worth[:nodes] * pressing.pressure
        per_unit *= np.float32(pressing.weight * 2 * SLOWDOWN / _PRESSURE_UNITS)
        np.minimum(per_unit, np.float32(_MOST_PENALTY_MIB // _MOST_UNITS), out=per_unit)
        unit_mib = per_unit.astype(np.uint32)
        unit_mib <<= _INDEX_BITS
        harmless = _harmless_units(pressing.pressure, pressing.harmless_slowdown)
        raised = np.maximum(self._crowd[:, :nodes], harmless)
        raised *= unit_mib
        harmless *= unit_mib
        return Penalty(raised, harmless)

    def _too_slow(self, pressing: Pressing) -> Bools:
        """GPUs where the pod, or one of its neighbours, would be slowed more than it accepts. (gpus, nodes)"""
        nodes = len(pressing.pressure)
        slow = self._tolerated[:, :nodes] < pressing.pressure
        if pressing.limited:
            added = (SLOWDOWN / _PRESSURE_UNITS) * pressing.pressure * self._crowd[:, :nodes]
            slow |= added > pressing.most_slowdown - 1.0
        return slow

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


def _harmless_units(pressure: Floats, harmless_slowdown: float) -> Packed:
    """The crowd, in units, beside which tasks with these pressures are slowed no more than that."""
    if harmless_slowdown <= 1:
        return np.zeros(len(pressure), dtype=np.uint32)
    free_units = np.float32((harmless_slowdown - 1) * _PRESSURE_UNITS / SLOWDOWN)
    # With less pressure than this nothing is worth anything.
    return np.asarray(free_units / np.maximum(pressure, free_units / np.float32(_MOST_UNITS))).astype(np.uint32)


def _units(pressure: float) -> int:
    return min(round(_PRESSURE_UNITS * pressure), _MOST_UNITS)


def _limited(tolerated: Iterable[float]) -> int:
    return sum([pressure < math.inf for pressure in tolerated])


def _enough(fitting: Bools, count: int) -> Bools:
    """fitting: (gpus, nodes). Where the kubelet picks, one row stands for all devices."""
    if count == 1 or fitting.shape[0] == 1:
        return np.asarray(fitting.any(axis=0), dtype=np.bool_)
    return np.asarray(fitting.sum(axis=0) >= count, dtype=np.bool_)
