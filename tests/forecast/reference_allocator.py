"""A plain implementation of the allocator, to compare the fast replay with."""

from __future__ import annotations

from bisect import bisect_left, insort

MIB = 1 << 20
_GRAIN = 512
SMALL_LIMIT = MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_OWN_SEGMENT_FROM = 10 * MIB
_SEGMENT_GRAIN = 2 * MIB
# Segments are far apart, so that blocks of two segments are never neighbours.
_SEGMENT_GAP = 1 << 44


class CachingAllocator:
    """Blocks are identified by address. `reserved_bytes` only grows, as on a GPU with free memory."""

    def __init__(self) -> None:
        self._free_small: list[tuple[int, int]] = []
        self._free_large: list[tuple[int, int]] = []
        self._blocks: dict[int, list[int]] = {}
        self._next = 0
        self.reserved_bytes = 0
        self.active_bytes = 0
        self.peak_active_bytes = 0

    def malloc(self, size_bytes: int) -> int:
        size = -(-size_bytes // _GRAIN) * _GRAIN if size_bytes > 0 else _GRAIN
        small = size <= SMALL_LIMIT
        free = self._free_small if small else self._free_large
        at = bisect_left(free, (size, -1))
        if at < len(free):
            block_size, address = free.pop(at)
            block = self._blocks[address]
        else:
            block_size = _segment_bytes(size, small)
            self.reserved_bytes += block_size
            address = self._next
            self._next += _SEGMENT_GAP
            block = self._blocks[address] = [block_size, -1, -1, small, 0]
        rest = block_size - size
        if rest >= _GRAIN if small else rest > SMALL_LIMIT:
            self._split(address, block, size, rest, free)
        block[4] = 1
        self.active_bytes += block[0]
        self.peak_active_bytes = max(self.peak_active_bytes, self.active_bytes)
        return address

    def _split(self, address: int, block: list[int], size: int, rest: int, free: list[tuple[int, int]]) -> None:
        tail, after = address + size, block[2]
        self._blocks[tail] = [rest, address, after, block[3], 0]
        if after >= 0:
            self._blocks[after][1] = tail
        block[0], block[2] = size, tail
        insort(free, (rest, tail))

    def free(self, address: int) -> None:
        blocks = self._blocks
        block = blocks[address]
        free = self._free_small if block[3] else self._free_large
        self.active_bytes -= block[0]
        block[4] = 0
        after = block[2]
        if after >= 0 and not blocks[after][4]:
            self._absorb(address, after, free)
        before = block[1]
        if before >= 0 and not blocks[before][4]:
            free.pop(bisect_left(free, (blocks[before][0], before)))
            self._join(before, address)
            address = before
        insort(free, (blocks[address][0], address))

    def _absorb(self, address: int, after: int, free: list[tuple[int, int]]) -> None:
        free.pop(bisect_left(free, (self._blocks[after][0], after)))
        self._join(address, after)

    def _join(self, left: int, right: int) -> None:
        blocks = self._blocks
        gone = blocks.pop(right)
        kept = blocks[left]
        kept[0] += gone[0]
        kept[2] = gone[2]
        if gone[2] >= 0:
            blocks[gone[2]][1] = left


def _segment_bytes(size: int, small: bool) -> int:
    if small:
        return _SMALL_SEGMENT
    if size < _OWN_SEGMENT_FROM:
        return _LARGE_SEGMENT
    return -(-size // _SEGMENT_GRAIN) * _SEGMENT_GRAIN
