"""Pods played again on GPUs that they share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vramcast.recommend.packing import Occupancy, PackedPod, as_it_was, packed

HOUR = 3600.0


def pod(
    start: float, end: float, memory: float = 1.0, compute: float = 0.0, gpus: int = 1, gpu: str = "g"
) -> PackedPod:
    places = tuple(("node", f"{gpu}{number}") for number in range(gpus))
    return PackedPod("A100", start * HOUR, end * HOUR, gpus, memory, compute, places)


def test_pods_that_fit_together_share_a_gpu() -> None:
    plan = packed([pod(0, 4, 0.3), pod(1, 3, 0.3), pod(1, 2, 0.4), pod(2, 4, 0.4)])
    assert (plan.most, plan.gpu_hours) == (1, 4.0)


def test_a_busy_gpu_is_full_whatever_its_memory() -> None:
    assert packed([pod(0, 1, 0.1, 0.6), pod(0, 1, 0.1, 0.6)]).most == 2
    assert packed([pod(0, 1, 0.1, 0.5), pod(0, 1, 0.1, 0.5)]).most == 1


def test_a_running_pod_is_never_moved() -> None:
    # Two GPUs until the end, although one would hold what is left.
    plan = packed([pod(0, 1, 0.6), pod(0, 9, 0.4), pod(0, 9, 0.5), pod(0, 1, 0.5)])
    assert plan.changes == [(0.0, 2), (1 * HOUR, 2), (9 * HOUR, 0)]


def test_a_pod_goes_to_the_fullest_gpu_with_room() -> None:
    # On the emptier one it would leave no room for the last.
    plan = packed([pod(0, 9, 0.6), pod(0, 9, 0.5), pod(1, 9, 0.4), pod(2, 9, 0.5)])
    assert plan.most == 2


def test_a_pod_that_cannot_share_and_one_on_several_gpus_take_whole_gpus() -> None:
    assert packed([pod(0, 1, 1.0), pod(0, 1, 0.1)]).most == 2
    assert packed([pod(0, 1, 0.5, gpus=2), pod(0, 1, 0.5, gpus=2), pod(0, 1, 0.1)]).most == 3


def test_products_do_not_mix() -> None:
    other = PackedPod("T4", 0.0, HOUR, 1, 0.1, 0.1)
    assert packed([pod(0, 1, 0.1), other]).most == 2


def test_as_it_was_counts_gpus_and_not_pods() -> None:
    was = as_it_was([pod(0, 2, gpu="a"), pod(1, 3, gpu="a"), pod(1, 2, gpu="b", gpus=2)])
    assert (was.most, was.busiest_at, was.gpu_hours) == (3, HOUR, 5.0)


def test_nothing_takes_nothing() -> None:
    assert (Occupancy().most, Occupancy().busiest_at, packed([]).gpu_hours) == (0, None, 0.0)


pods = st.builds(
    lambda start, length, memory, compute: pod(start, start + length, memory / 20, compute / 20),
    st.integers(0, 30), st.integers(1, 10), st.integers(1, 20), st.integers(0, 20),
)  # fmt: skip


@given(st.lists(pods, max_size=40))
def test_packing_needs_at_least_what_the_pods_add_up_to_and_at_most_a_gpu_each(found: list[PackedPod]) -> None:
    plan = packed(found)
    for at, count in plan.changes:
        here = [one for one in found if one.start <= at < one.end]
        assert count <= len(here)
        assert count >= sum(one.memory for one in here) - 1e-6
        assert count >= sum(one.compute for one in here) - 1e-6
    assert not plan.changes or plan.changes[-1][1] == 0
