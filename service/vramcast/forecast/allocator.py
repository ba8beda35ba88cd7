"""PyTorch's caching allocator: `nvidia-smi` shows what it reserved, which is more than what the tensors take.

The rules, in the order in which a request meets them:
- sizes round up to 512 B; each stream has a pool for requests up to 1 MiB and one for larger ones;
- the best-fitting free block of the pool is taken, the lowest address among equals, and split if enough is left;
- otherwise a segment is reserved: 2 MiB for small requests, 20 MiB below 10 MiB, else rounded up to 2 MiB;
- if the device has no room for it, all segments without a used block go back to the device and the request is tried
  once more; then it has failed, which is the run's out-of-memory error;
- a freed block merges with its free neighbours. Its segment stays reserved.

With `expandable_segments` each pool has one segment that grows by pages of 2 MiB (20 MiB for large requests). A free
block at its end counts as endless, so it is the last choice. Pages without a used byte are what goes back.

`allocator.c` does the same and is some forty times as fast; this is what runs where it could not be compiled.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from enum import IntEnum

from vramcast.task.quantity import MIB

GRAIN = 512
_SMALL_LIMIT = MIB // GRAIN
_SMALL_SEGMENT = 2 * _SMALL_LIMIT
_LARGE_SEGMENT = 20 * _SMALL_LIMIT
_OWN_SEGMENT_FROM = 10 * _SMALL_LIMIT
_SEGMENT_GRAIN = 2 * _SMALL_LIMIT
_ENDLESS = 1 << 50


class _State(IntEnum):
    USED = 0
    FREE = 1
    UNMAPPED = 2


class Block:
    """Sizes and addresses in grains."""

    __slots__ = ("address", "after", "before", "pool", "size", "state")

    def __init__(self, size: int, address: int, pool: BlockPool, state: _State) -> None:
        self.size, self.address, self.pool, self.state = size, address, pool, state
        self.before: Block | None = None
        self.after: Block | None = None


class BlockPool:
    __slots__ = ("first", "free", "page", "small")

    def __init__(self, small: bool) -> None:
        self.small = small
        self.page = _SMALL_SEGMENT if small else _LARGE_SEGMENT
        self.free: list[tuple[int, int, Block]] = []  # by size, then by address
        self.first: Block | None = None  # of the expandable segment

    def put(self, block: Block) -> None:
        block.state = _State.FREE
        insort(self.free, (block.size, block.address, block))

    def take(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]

    def blocks(self) -> Iterator[Block]:
        block = self.first
        while block is not None:
            yield block
            block = block.after


class CachingAllocator:
    """With a capacity, streams and expandable segments. Sizes in grains."""

    def __init__(self, capacity: int = 0, expandable: bool = False) -> None:
        self._capacity, self._expandable = capacity, expandable
        self._pools: dict[tuple[int, bool], BlockPool] = {}
        self._next_address = 0
        self.active = self.reserved = self.retries = 0

    def malloc(self, size: int, stream: int) -> Block | None:
        """None: out of memory."""
        small = size <= _SMALL_LIMIT
        pool = self._pools.get((stream, small))
        if pool is None:
            pool = self._pools[stream, small] = BlockPool(small)
        block = self._best_fit(pool, size) or self._grow(pool, size)
        if block is None:
            self._release_cached()
            block = self._grow(pool, size)
            if block is None:
                return None
        rest = block.size - size
        if rest > (0 if small or self._expandable else _SMALL_LIMIT):
            pool.put(_cut(block, size))
        block.state = _State.USED
        self.active += block.size
        return block

    def free(self, block: Block) -> None:
        self.active -= block.size
        if block.after is not None and block.after.state is _State.FREE:
            block.pool.take(block.after)
            _join(block, block.after)
        if block.before is not None and block.before.state is _State.FREE:
            block.pool.take(block.before)
            block = _join(block.before, block)
        block.pool.put(block)

    def _best_fit(self, pool: BlockPool, size: int) -> Block | None:
        free = pool.free
        at = bisect_left(free, (size,))
        if at == len(free):
            return None
        if self._expandable:
            while at + 1 < len(free) and _room(free[at + 1][2]) < _room(free[at][2]):
                at += 1
        return free.pop(at)[2]

    def _grow(self, pool: BlockPool, size: int) -> Block | None:
        if self._expandable:
            return self._expand(pool, size)
        if pool.small:
            segment = _SMALL_SEGMENT
        else:
            segment = _LARGE_SEGMENT if size < _OWN_SEGMENT_FROM else _up(size, _SEGMENT_GRAIN)
        if not self._fits(segment):
            return None
        block = Block(segment, self._next_address, pool, _State.USED)
        self._next_address += segment
        self.reserved += segment
        return block

    def _fits(self, more: int) -> bool:
        return not self._capacity or self.reserved + more <= self._capacity

    def _expand(self, pool: BlockPool, size: int) -> Block | None:
        """Maps pages behind the lowest free or unmapped block that is followed by enough of such blocks."""
        run = _expandable_run(pool, size)
        wanted = size
        missing = 0
        for block in run:
            if block.state is _State.UNMAPPED:
                missing += _up(min(block.size, wanted), pool.page)
            wanted -= block.size
        if not self._fits(missing):
            return None
        self.reserved += missing
        joined: Block | None = None
        for block in run:
            have = joined.size if joined is not None else 0
            if block.state is _State.FREE:
                pool.take(block)
            elif (mapped := _up(min(block.size, size - have), pool.page)) < block.size:
                _cut(block, mapped)
            block.state = _State.USED
            joined = block if joined is None else _join(joined, block)
        return joined

    def _release_cached(self) -> None:
        self.retries += 1
        for pool in self._pools.values():
            if self._expandable:
                for block in [block for block in pool.blocks() if block.state is _State.FREE]:
                    self._release_pages(block)
            else:
                kept = [entry for entry in pool.free if entry[2].before is not None or entry[2].after is not None]
                self.reserved -= sum(entry[0] for entry in pool.free) - sum(entry[0] for entry in kept)
                pool.free = kept

    def _release_pages(self, block: Block) -> None:
        pool, end = block.pool, block.address + block.size
        first, last = _up(block.address, pool.page), end // pool.page * pool.page
        if last <= first:
            return
        pool.take(block)
        middle = block
        if first > block.address:
            middle = _cut(block, first - block.address)
            pool.put(block)
        if last < end:
            pool.put(_cut(middle, last - first))
        middle.state = _State.UNMAPPED
        self.reserved -= last - first
        if middle.after is not None and middle.after.state is _State.UNMAPPED:
            _join(middle, middle.after)
        if middle.before is not None and middle.before.state is _State.UNMAPPED:
            _join(middle.before, middle)


def _expandable_run(pool: BlockPool, size: int) -> list[Block]:
    if pool.first is None:
        pool.first = Block(_ENDLESS, 0, pool, _State.UNMAPPED)
    for hole in pool.blocks():
        if hole.state is not _State.UNMAPPED:
            continue
        block: Block | None = hole
        if hole.before is not None and hole.before.state is _State.FREE:
            block = hole.before
        run, room = [], 0
        while block is not None and block.state is not _State.USED and room < size:
            run.append(block)
            room += block.size
            block = block.after
        if room >= size:
            return run
    raise AssertionError("the last block of an expandable segment is endless")


def _room(block: Block) -> int:
    """What the block has, with the address space behind it."""
    after = block.after
    return block.size + (after.size if after is not None and after.state is _State.UNMAPPED else 0)


def _cut(block: Block, size: int) -> Block:
    """Cuts the block after `size`. Returns the rest, which is in no list."""
    rest = Block(block.size - size, block.address + size, block.pool, block.state)
    rest.before, rest.after = block, block.after
    if rest.after is not None:
        rest.after.before = rest
    block.size, block.after = size, rest
    return rest


def _join(left: Block, right: Block) -> Block:
    left.size += right.size
    left.after = right.after
    if left.after is not None:
        left.after.before = left
    return left


def _up(value: int, grain: int) -> int:
    return -(-value // grain) * grain
