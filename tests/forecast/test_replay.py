"""The fast replay equals the plain one: on figures recorded before the optimization, and on random events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.forecast.networks import mlp, synthetic_cnn, traced_cnn
from tests.forecast.reference_allocator import CachingAllocator as PlainAllocator
from vramcast.forecast.allocator import GRAIN, Block, CachingAllocator
from vramcast.forecast.features import describe
from vramcast.forecast.physics import clear_caches
from vramcast.forecast.replay import NO_WORKSPACE, Workspaces, record
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.train.records import describe_network, make_task

# Network, batches, optimizer states; reserved and peak active bytes; reserved with workspaces everywhere, in the
# backward pass, and twice there.
BEFORE = [
    (mlp(2048, 5, 1000), [100, 100, 96, 100], 0, 220200960, 203325952, 220200960, 220200960, 220200960),
    (mlp(2048, 5, 1000), [100, 100, 96, 100], 2, 513802240, 478876160, 513802240, 513802240, 513802240),
    (mlp(2048, 5, 1000), [33, 33, 4, 33], 0, 213909504, 201959424, 213909504, 213909504, 213909504),
    (mlp(2048, 5, 1000), [33, 33, 4, 33], 2, 507510784, 478058496, 507510784, 507510784, 507510784),
    (synthetic_cnn(), [100, 100, 96, 100], 0, 85983232, 70738432, 109051904, 100663296, 113246208),
    (synthetic_cnn(), [100, 100, 96, 100], 2, 85983232, 70791680, 109051904, 100663296, 113246208),
    (synthetic_cnn(), [33, 33, 4, 33], 0, 46137344, 34784768, 46137344, 46137344, 67108864),
    (synthetic_cnn(), [33, 33, 4, 33], 2, 46137344, 34838016, 46137344, 46137344, 67108864),
    (synthetic_cnn(24, 96, 9), [100, 100, 96, 100], 0, 1868562432, 1797787136, 2030043136, 2046820352, 2222981120),
    (synthetic_cnn(24, 96, 9), [100, 100, 96, 100], 2, 1868562432, 1798159872, 2030043136, 2046820352, 2222981120),
    (synthetic_cnn(24, 96, 9), [33, 33, 4, 33], 0, 652214272, 608387584, 710934528, 710934528, 769654784),
    (synthetic_cnn(24, 96, 9), [33, 33, 4, 33], 2, 654311424, 608760320, 713031680, 713031680, 771751936),
]


@pytest.mark.parametrize(
    ("profile", "batches", "states", "reserved", "active", "everywhere", "backward", "twice"), BEFORE
)
def test_figures_equal_those_of_the_plain_replay(
    profile: dict[str, Any], batches: list[int], states: int, reserved: int, active: int, everywhere: int,
    backward: int, twice: int,
) -> None:  # fmt: skip
    program = record(describe_network(profile), states).program(batches, 2)
    bare = program.run(NO_WORKSPACE)
    assert (bare.reserved_bytes, bare.peak_active_bytes) == (reserved, active)
    for workspaces, expected in (
        (Workspaces(1, forward=True), everywhere),
        (Workspaces(1), backward),
        (Workspaces(2), twice),
    ):
        assert program.run(workspaces).reserved_bytes == expected


SIZES = st.one_of(
    st.integers(1, 3 * MIB), st.integers(1, 40 * MIB), st.sampled_from([MIB, MIB + 1, 10 * MIB, 20 * MIB])
)


@given(st.lists(st.tuples(st.sampled_from(["hold", "hold", "touch", "free"]), SIZES), max_size=80))
def test_any_events_give_the_state_of_the_plain_allocator(events: list[tuple[str, int]]) -> None:
    fast, plain, peak = CachingAllocator(), PlainAllocator(), 0
    held: list[tuple[Block | None, int]] = []
    for action, size in events:
        if action == "free":
            if not held:
                continue
            quick, slow = held.pop(size % len(held))
        else:
            quick, slow = fast.malloc(-(-size // GRAIN), stream=0), plain.malloc(size)
            peak = max(peak, GRAIN * fast.active)
        if action == "hold":
            held.append((quick, slow))
        else:
            assert quick is not None
            fast.free(quick)
            plain.free(slow)
        assert (GRAIN * fast.reserved, GRAIN * fast.active) == (plain.reserved_bytes, plain.active_bytes)
        assert peak == plain.peak_active_bytes


@pytest.mark.parametrize("profile", [mlp(), synthetic_cnn(), traced_cnn()])
def test_caches_do_not_change_the_features(profile: dict[str, Any]) -> None:
    network = describe_network(profile)
    for batch in (32, 48):
        task = make_task(network, batch, "adam", "fp32")
        for product in (Product("NVIDIA-A100-SXM4-40GB"), Product("NVIDIA-GeForce-RTX-3060")):
            warm = describe(network, task, product)
            clear_caches()
            cold = describe(network, task, product)
            assert np.array_equal(warm.facts, cold.facts)
            assert np.array_equal(warm.tokens, cold.tokens)
            assert warm.prior.parts == cold.prior.parts
