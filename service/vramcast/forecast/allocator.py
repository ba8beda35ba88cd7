"""PyTorch's caching allocator: `nvidia-smi` shows what it reserved, which is more than what the tensors take.

The rules that decide the peak:
- sizes round up to 512 B;
- up to 1 MiB is cut from 2 MiB segments, below 10 MiB from 20 MiB segments, and larger blocks get their own segment,
  rounded up to 2 MiB;
- the best-fitting cached block is taken and split, and free neighbours merge;
- segments are never returned while the GPU has room.

A forecast replays a few thousand events, so they run in one loop without calls, in units of 512 B. A block is a list
that sorts by size, then by address, so the sorted list of free blocks holds the blocks themselves. (Blocks encoded as
one number, with neighbours in dictionaries, were slower.)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Any

MIB = 1 << 20
GRAIN = 512
SMALL_LIMIT = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT_FROM = 10 * MIB
_SEGMENT_GRAIN = 2 * MIB
# Segments are far apart and addresses grow, so a lower address means an older segment.
_SEGMENT_GAP = 1 << 40
_SMALL_GRAINS = SMALL_LIMIT // GRAIN

_Block = list[Any]  # size, address, previous block, next block, is it free


class CachingAllocator:
    """`reserved_bytes` only grows, as on a GPU with free memory."""

    __slots__ = (
        "_free_large", "_free_small", "_held", "_made", "_next", "active_bytes", "peak_active_bytes",
        "reserved_bytes",
    )  # fmt: skip

    def __init__(self) -> None:
        self._free_small: list[_Block] = []
        self._free_large: list[_Block] = []
        self._held: dict[int, _Block] = {}
        self._next = 0
        self._made = 0
        self.reserved_bytes = 0
        self.active_bytes = 0
        self.peak_active_bytes = 0

    def malloc(self, size_bytes: int) -> int:
        """Returns a tensor number for `free`."""
        self._made += 1
        self.replay([-(-max(1, size_bytes) // GRAIN)], [self._made])
        return self._made

    def free(self, tensor: int) -> None:
        self.replay([0], [tensor])

    def replay(self, sizes: Sequence[int], tensors: Sequence[int]) -> None:  # noqa: PLR0912, PLR0915  # no calls
        """One event per entry: a positive size (in grains) allocates, 0 frees, a negative one allocates and frees."""
        free_small, free_large, held = self._free_small, self._free_large, self._held
        active, peak, address = self.active_bytes // GRAIN, self.peak_active_bytes // GRAIN, self._next
        for size, tensor in zip(sizes, tensors, strict=True):
            if size > 0:
                small = size <= _SMALL_GRAINS
                free = free_small if small else free_large
                at = bisect_left(free, [size])
                if at < len(free):
                    block = free.pop(at)
                else:
                    block = [self._reserve(size), address, None, None, False]
                    address += _SEGMENT_GAP
                rest = block[0] - size
                if rest if small else rest > _SMALL_GRAINS:
                    after = block[3]
                    tail = block[3] = [rest, block[1] + size, block, after, True]
                    if after is not None:
                        after[2] = tail
                    block[0] = size
                    insort(free, tail)
                    active += size
                else:
                    active += size + rest
                block[4] = False
                held[tensor] = block
                if active > peak:  # noqa: PLR1730  # a call would be a tenth of the event
                    peak = active
            elif not size:
                block = held.pop(tensor)
                active -= block[0]
                free = free_small if block[0] <= _SMALL_GRAINS else free_large
                after = block[3]
                if after is not None and after[4]:
                    del free[bisect_left(free, after)]
                    block[0] += after[0]
                    beyond = block[3] = after[3]
                    if beyond is not None:
                        beyond[2] = block
                before = block[2]
                if before is not None and before[4]:
                    del free[bisect_left(free, before)]
                    before[0] += block[0]
                    beyond = before[3] = block[3]
                    if beyond is not None:
                        beyond[2] = before
                    block = before
                block[4] = True
                insort(free, block)
            else:
                # A temporary tensor leaves the blocks unchanged, unless it needs a new segment.
                small = -size <= _SMALL_GRAINS
                free = free_small if small else free_large
                if not free or free[-1][0] < -size:
                    insort(free, [self._reserve(-size), address, None, None, True])
                    address += _SEGMENT_GAP
                whole = free[bisect_left(free, [-size])][0]
                rest = whole + size
                peak = max(peak, active + (-size if (rest if small else rest > _SMALL_GRAINS) else whole))
        self.active_bytes, self.peak_active_bytes, self._next = active * GRAIN, peak * GRAIN, address

    def _reserve(self, grains: int) -> int:
        """Reserves a segment for a block of this size. Returns the segment's size in grains."""
        size = grains * GRAIN
        if size <= SMALL_LIMIT:
            segment = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT_FROM:
            segment = _LARGE_SEGMENT
        else:
            segment = -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
        self.reserved_bytes += segment
        return segment // GRAIN
