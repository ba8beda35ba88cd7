"""The caching allocator's rules, one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vramcast.forecast.allocator import GRAIN, Block, CachingAllocator
from vramcast.task.quantity import MIB


class Allocator(CachingAllocator):
    """In bytes."""

    def make(self, size_bytes: int) -> Block:
        block = self.malloc(-(-size_bytes // GRAIN), stream=0)
        assert block is not None
        return block

    @property
    def reserved_bytes(self) -> int:
        return GRAIN * self.reserved

    @property
    def active_bytes(self) -> int:
        return GRAIN * self.active


@pytest.mark.parametrize(
    ("size_bytes", "reserved_mib"),
    [(1, 2), (MIB, 2), (MIB + 1, 20), (10 * MIB - 512, 20), (10 * MIB, 10), (11 * MIB, 12), (100 * MIB + 1, 102)],
)
def test_the_first_tensor_decides_the_size_of_a_segment(size_bytes: int, reserved_mib: int) -> None:
    allocator = Allocator()
    allocator.make(size_bytes)
    assert allocator.reserved_bytes == reserved_mib * MIB


def test_freed_blocks_are_reused() -> None:
    allocator = Allocator()
    allocator.free(allocator.make(64 * MIB))
    allocator.make(64 * MIB)
    assert allocator.reserved_bytes == 64 * MIB


def test_free_neighbours_merge() -> None:
    allocator = Allocator()
    allocator.free(allocator.make(64 * MIB))
    halves = [allocator.make(32 * MIB), allocator.make(32 * MIB)]
    for half in halves:
        allocator.free(half)
    allocator.make(64 * MIB)
    assert allocator.reserved_bytes == 64 * MIB


def test_a_fragmented_block_costs_a_new_segment() -> None:
    """After 12 of 64 MiB are taken, the remaining block is too small for 64 MiB."""
    allocator = Allocator()
    allocator.free(allocator.make(64 * MIB))
    allocator.make(12 * MIB)
    allocator.make(64 * MIB)
    assert allocator.reserved_bytes == 128 * MIB


@given(st.lists(st.integers(1, 64 * MIB), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_reserved_is_never_less_than_active_and_freed_memory_is_reusable(sizes: list[int], random: object) -> None:
    allocator = Allocator()
    addresses = [allocator.make(size) for size in sizes]
    assert allocator.reserved_bytes >= allocator.active_bytes >= sum(sizes)
    random.shuffle(addresses)  # type: ignore[attr-defined]
    for address in addresses:
        allocator.free(address)
    assert allocator.active_bytes == 0
    reserved = allocator.reserved_bytes
    for size in sorted(sizes, reverse=True)[:1]:
        allocator.make(size)
    assert allocator.reserved_bytes == reserved
