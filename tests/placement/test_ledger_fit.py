"""Which nodes a pod fits, rule by rule."""

from __future__ import annotations

from itertools import combinations, product
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.builders import (
    A100,
    T4,
    bound,
    decide,
    demand,
    hold,
    ledger_of,
    reason,
    room,
    sharing_node,
    take,
    whole_node,
)

from vramcast.hardware.vendors import WHOLE_GPU
from vramcast.names import NodeName, PodUid, Resource
from vramcast.placement.gpus import NodeGpus, Pool
from vramcast.placement.ledger import Ledger
from vramcast.placement.reasons import Reason

MIG = Resource("nvidia.com/mig-1g.5gb")
N1 = NodeName("n1")

# ---------------------------------------------------------------------- whole GPUs


def test_a_whole_gpu_fits_by_its_size() -> None:
    ledger = ledger_of(whole_node("n1", 1000))
    assert reason(ledger, demand("a", 1000, resource=WHOLE_GPU), "n1") is Reason.FITS
    assert reason(ledger, demand("a", 1001, resource=WHOLE_GPU), "n1") is Reason.TOO_SMALL


def test_each_node_is_judged_by_the_need_on_its_own_product() -> None:
    ledger = ledger_of(whole_node("big", 1000, product=A100), whole_node("small", 1000, product=T4))
    decision = decide(ledger, demand("a", {A100: 900, T4: 1100}, resource=WHOLE_GPU), "big", "small")
    assert list(decision.reasons) == [Reason.FITS, Reason.TOO_SMALL]


def test_a_product_without_a_forecast_never_fits() -> None:
    ledger = ledger_of(whole_node("n1", 1000, product=T4))
    assert reason(ledger, demand("a", {A100: 1}, resource=WHOLE_GPU), "n1") is Reason.TOO_SMALL


def test_counting_free_whole_gpus_is_left_to_the_scheduler() -> None:
    ledger = ledger_of(whole_node("n1", 1000, count=2))
    ledger.promise(bound("a", "n1", 1000, resource=WHOLE_GPU, count=2))
    assert reason(ledger, demand("b", 1000, resource=WHOLE_GPU), "n1") is Reason.FITS


def test_with_count_devices_the_ledger_counts_free_whole_gpus() -> None:
    ledger = ledger_of(whole_node("n1", 1000, count=2), count_devices=True)
    take(ledger, demand("a", 1000, resource=WHOLE_GPU), "n1")
    assert reason(ledger, demand("b", 1000, resource=WHOLE_GPU), "n1") is Reason.FITS
    assert reason(ledger, demand("b", 1000, 2, WHOLE_GPU), "n1") is Reason.TOO_FEW_GPUS
    take(ledger, demand("b", 1000, resource=WHOLE_GPU), "n1")
    assert reason(ledger, demand("c", 1, resource=WHOLE_GPU), "n1") is Reason.TOO_FEW_GPUS
    ledger.forget(PodUid("a"))
    assert reason(ledger, demand("c", 1, resource=WHOLE_GPU), "n1") is Reason.FITS


def test_more_whole_gpus_than_the_node_has_never_fit() -> None:
    ledger = ledger_of(whole_node("n1", 1000, count=2))
    assert reason(ledger, demand("a", 10, 2, WHOLE_GPU), "n1") is Reason.FITS
    assert reason(ledger, demand("a", 10, 3, WHOLE_GPU), "n1") is Reason.TOO_FEW_GPUS


def test_where_the_kubelet_picks_unmanaged_memory_on_any_gpu_counts() -> None:
    ledger = ledger_of(whole_node("n1", 1000, count=2))
    ledger.set_unmanaged(N1, (0, 300))
    assert reason(ledger, demand("a", 700, resource=WHOLE_GPU), "n1") is Reason.FITS
    assert reason(ledger, demand("a", 701, resource=WHOLE_GPU), "n1") is Reason.UNMANAGED


def test_an_undescribed_pod_fits_a_whole_gpu() -> None:
    ledger = ledger_of(whole_node("n1", 1000))
    assert reason(ledger, demand("a", {}, resource=WHOLE_GPU), "n1") is Reason.FITS


def test_whole_gpus_are_not_held() -> None:
    ledger = ledger_of(whole_node("n1", 1000))
    hold(ledger, demand("a", 1000, resource=WHOLE_GPU), "n1")
    assert not ledger.holds


# ---------------------------------------------------------------------- shared GPUs


def test_pods_share_a_gpu_until_it_is_full() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    assert take(ledger, demand("a", 600), "n1").gpu_indices == (0,)
    assert reason(ledger, demand("b", 401), "n1") is Reason.NO_ROOM
    assert take(ledger, demand("b", 400), "n1").gpu_indices == (0,)
    assert room(ledger, "n1") == [0]


def test_the_fullest_gpu_that_still_fits_is_taken() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000, 1000))
    ledger.promise(bound("a", "n1", 300, 1))
    ledger.promise(bound("b", "n1", 800, 2))
    assert take(ledger, demand("c", 500), "n1").gpu_indices == (1,)
    assert take(ledger, demand("d", 500), "n1").gpu_indices == (0,)


def test_k_shared_gpus_must_each_have_room() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000, 1000))
    ledger.promise(bound("a", "n1", 800, 1))
    assert take(ledger, demand("b", 500, 2), "n1").gpu_indices == (0, 2)
    assert reason(ledger, demand("c", 501, 2), "n1") is Reason.NO_ROOM
    assert room(ledger, "n1") == [500, 200, 500]


@pytest.mark.parametrize("widest", [1, 2, 4])
def test_k_shared_gpus_need_k_gpus_on_the_same_node(widest: int) -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("other", *[1000] * widest))
    assert reason(ledger, demand("a", 10, 2), "n1") is Reason.TOO_FEW_GPUS
    assert ledger.assign(demand("a", 10, 2), N1, 0.0) is Reason.TOO_FEW_GPUS
    assert reason(ledger, demand("a", 10, 5), "other") is Reason.TOO_FEW_GPUS


def test_gpus_of_different_sizes_on_one_node_are_judged_separately() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 500))
    assert take(ledger, demand("a", 600), "n1").gpu_indices == (0,)
    assert reason(ledger, demand("b", 600), "n1") is Reason.NO_ROOM
    assert reason(ledger, demand("b", 1001), "n1") is Reason.TOO_SMALL


def test_unmanaged_memory_takes_room_only_on_its_own_gpu() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    ledger.set_unmanaged(N1, (900,))
    assert room(ledger, "n1") == [100, 1000]
    ledger.promise(bound("a", "n1", 1000, 1))
    assert reason(ledger, demand("b", 200), "n1") is Reason.UNMANAGED
    ledger.set_unmanaged(N1, ())
    assert reason(ledger, demand("b", 200), "n1") is Reason.FITS


def test_a_pod_bound_without_an_assignment_counts_on_every_gpu() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    ledger.promise(bound("foreign", "n1", 400))
    assert room(ledger, "n1") == [600, 600]


# ---------------------------------------------------------------------- sharing and not sharing never mix


def test_a_sharing_pod_does_not_fit_a_node_that_does_not_share() -> None:
    ledger = ledger_of(whole_node("n1", 1000), sharing_node("n2", 1000))
    assert reason(ledger, demand("a", 10), "n1") is Reason.NOT_SHARING


def test_a_whole_gpu_pod_does_not_fit_a_node_that_shares() -> None:
    ledger = ledger_of(whole_node("n1", 1000), sharing_node("n2", 1000))
    assert reason(ledger, demand("a", 10, resource=WHOLE_GPU), "n2") is Reason.SHARING
    assert list(ledger.board.sharing(ledger.board.columns(["n1", "n2", "nowhere"]))) == [False, True, False]


def test_a_whole_gpu_pod_on_a_sharing_node_blocks_sharing() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    ledger.promise(bound("foreign", "n1", None, resource=WHOLE_GPU))
    assert reason(ledger, demand("a", 10), "n1") is Reason.MIXED
    ledger.forget(PodUid("foreign"))
    assert reason(ledger, demand("a", 10), "n1") is Reason.FITS


def test_a_sharing_pod_on_a_node_that_stopped_sharing_blocks_whole_gpus() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    take(ledger, demand("a", 10), "n1")
    ledger.put_node(whole_node("n1", 1000))
    assert reason(ledger, demand("b", 10, resource=WHOLE_GPU), "n1") is Reason.MIXED
    ledger.forget(PodUid("a"))
    assert reason(ledger, demand("b", 10, resource=WHOLE_GPU), "n1") is Reason.FITS


# ---------------------------------------------------------------------- MIG


def mig_node(name: str, size_mib: int, count: int) -> NodeGpus:
    return NodeGpus(NodeName(name), False, (Pool(MIG, A100, (size_mib,), count),))


def test_a_mig_slice_is_a_gpu_of_its_own_size() -> None:
    ledger = ledger_of(mig_node("mig", 4864, 7), whole_node("n1", 40000))
    assert reason(ledger, demand("a", 4864, resource=MIG), "mig") is Reason.FITS
    assert reason(ledger, demand("a", 4865, resource=MIG), "mig") is Reason.TOO_SMALL
    assert reason(ledger, demand("a", 10, resource=MIG), "n1") is Reason.NO_GPU
    assert reason(ledger, demand("a", 10, resource=WHOLE_GPU), "mig") is Reason.NO_GPU


def test_with_count_devices_the_ledger_counts_mig_slices() -> None:
    ledger = ledger_of(mig_node("mig", 4864, 2), count_devices=True)
    take(ledger, demand("a", 4864, 2, MIG), "mig")
    assert reason(ledger, demand("b", 10, resource=MIG), "mig") is Reason.TOO_FEW_GPUS


def test_a_resource_that_no_node_offers_fits_nowhere() -> None:
    ledger = ledger_of(whole_node("n1", 1000))
    assert reason(ledger, demand("a", 10, resource=MIG), "n1") is Reason.NO_GPU
    assert reason(ledger, demand("a", 10, resource=MIG), "nowhere") is Reason.UNKNOWN_NODE
    assert reason(Ledger(), demand("a", 10), "nowhere") is Reason.UNKNOWN_NODE


# ---------------------------------------------------------------------- time-slicing: any choice of the kubelet fits


def test_a_time_sliced_pod_must_fit_next_to_the_largest_tenants() -> None:
    ledger = ledger_of(whole_node("n1", 1000, count=2, replicas=3))
    for uid, need in (("a", 100), ("b", 300), ("c", 200)):
        take(ledger, demand(uid, need, resource=WHOLE_GPU), "n1")
    assert reason(ledger, demand("d", 500, resource=WHOLE_GPU), "n1") is Reason.FITS  # next to 300 + 200
    assert reason(ledger, demand("d", 501, resource=WHOLE_GPU), "n1") is Reason.NO_ROOM


def test_an_undescribed_pod_on_a_time_sliced_gpu_counts_for_its_share() -> None:
    ledger = ledger_of(whole_node("n1", 1000, replicas=4))
    ledger.promise(bound("a", "n1", None, resource=WHOLE_GPU))
    assert room(ledger, "n1", WHOLE_GPU) == [750]


def test_all_replicas_of_a_pod_must_fit_on_one_gpu() -> None:
    ledger = ledger_of(whole_node("n1", 1000, count=2, replicas=2))
    assert reason(ledger, demand("a", 500, 2, WHOLE_GPU), "n1") is Reason.FITS
    assert reason(ledger, demand("a", 501, 2, WHOLE_GPU), "n1") is Reason.TOO_SMALL


def test_filter_holds_room_on_time_sliced_gpus() -> None:
    ledger = ledger_of(whole_node("n1", 1000, replicas=4))
    hold(ledger, demand("a", 600, resource=WHOLE_GPU), "n1")
    assert reason(ledger, demand("b", 600, resource=WHOLE_GPU), "n1") is Reason.HELD
    assert reason(ledger, demand("b", 400, resource=WHOLE_GPU), "n1") is Reason.FITS


def test_thousands_of_devices_count_only_up_to_the_replicas_and_never_fit() -> None:
    ledger = ledger_of(whole_node("n1", 1000, replicas=4))
    ledger.promise(bound("a", "n1", 100, resource=WHOLE_GPU, count=4096))
    assert room(ledger, "n1", WHOLE_GPU) == [700]
    assert reason(ledger, demand("b", {T4: 1}, 4096, WHOLE_GPU), "n1") is Reason.TOO_FEW_GPUS


def worst_gpu(needs: list[int], gpus: int, replicas: int) -> int:
    """Brute force: the fullest GPU over every way the kubelet can hand out the replicas."""
    worst = 0
    for choice in product(range(gpus), repeat=len(needs)):
        loads = [[need for need, gpu in zip(needs, choice, strict=True) if gpu == g] for g in range(gpus)]
        if all(len(load) <= replicas for load in loads):
            worst = max(worst, *(sum(load) for load in loads))
    return worst


_POD = st.tuples(st.integers(1, 60), st.integers(1, 2))


@given(st.integers(1, 2), st.integers(2, 3), st.lists(_POD, max_size=6), st.integers(60, 160))
def test_no_choice_of_the_kubelet_overfills_a_time_sliced_gpu(
    gpus: int, replicas: int, pods: list[tuple[int, int]], size_mib: int
) -> None:
    ledger = ledger_of(whole_node("n1", size_mib, gpus, replicas), count_devices=True)
    placed: list[int] = []
    for n, (need, count) in enumerate(pods):
        wanted = demand(f"p{n}", need, count, WHOLE_GPU)
        fits = reason(ledger, wanted, "n1") is Reason.FITS
        if fits:
            take(ledger, wanted, "n1")
            placed += [need] * count
            assert worst_gpu(placed, gpus, replicas) <= size_mib
        elif count == 1 and len(placed) < gpus * replicas:
            # For one replica the rule is exact: some choice of the kubelet would overfill a GPU with a refused pod.
            assert worst_gpu([*placed, need], gpus, replicas) > size_mib


def test_the_brute_force_tries_every_choice() -> None:
    assert worst_gpu([3, 4, 5], gpus=2, replicas=2) == 9 == max(map(sum, combinations([3, 4, 5], 2)))
    assert comb(4, 2) == 6  # four replicas on two GPUs with two each: six ways


# ---------------------------------------------------------------------- nodes that change under their pods


def test_a_node_that_shrank_below_its_promises_is_over_full_and_fits_nothing() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    take(ledger, demand("a", 900), "n1")
    ledger.put_node(sharing_node("n1", 500))
    assert room(ledger, "n1") == [-400]
    assert reason(ledger, demand("b", 1), "n1") is Reason.NO_ROOM


def test_an_over_full_gpu_does_not_affect_its_neighbour() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    ledger.promise(bound("a", "n1", 5000, 0))
    assert take(ledger, demand("b", 1000), "n1").gpu_indices == (1,)


def test_a_promise_on_a_removed_gpu_counts_on_the_remaining_ones() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    ledger.promise(bound("a", "n1", 300, 1))
    ledger.put_node(sharing_node("n1", 1000))
    assert room(ledger, "n1") == [700]


def test_a_node_recreated_with_smaller_or_fewer_gpus_is_judged_by_the_new_ones() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    ledger.drop_node(N1)
    ledger.put_node(sharing_node("n1", 500))
    assert reason(ledger, demand("a", 501), "n1") is Reason.TOO_SMALL
    assert reason(ledger, demand("a", 10, 2), "n1") is Reason.TOO_FEW_GPUS


def test_a_deleted_node_is_unknown_and_has_its_promises_again_once_recreated() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    take(ledger, demand("a", 900), "n1")
    ledger.drop_node(N1)
    assert reason(ledger, demand("b", 1), "n1") is Reason.UNKNOWN_NODE
    ledger.put_node(sharing_node("n1", 1000))
    assert room(ledger, "n1") == [100]


def test_a_pod_that_ends_while_its_node_is_gone_leaves_no_promise() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    take(ledger, demand("a", 900), "n1")
    ledger.drop_node(N1)
    ledger.forget(PodUid("a"))
    ledger.put_node(sharing_node("n1", 1000))
    assert room(ledger, "n1") == [1000]


def test_a_reused_column_carries_nothing_over_from_the_previous_node() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000), sharing_node("n2", 700))
    take(ledger, demand("a", 900), "n1")
    ledger.set_unmanaged(N1, (50, 50))
    hold(ledger, demand("b", 500), "n1", "n2")
    ledger.drop_node(N1)
    ledger.put_node(sharing_node("n3", 800))
    assert room(ledger, "n3") == [800]
    assert room(ledger, "n2") == [200]
    assert reason(ledger, demand("c", 801), "n3") is Reason.TOO_SMALL


def test_a_node_change_drops_the_holds_on_that_node_only() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    hold(ledger, demand("a", 600), "n1", "n2")
    ledger.put_node(sharing_node("n1", 2000))
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([2000], [400])
    ledger.release_hold(PodUid("a"))
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([2000], [1000])


def test_a_node_with_unknown_memory_gets_that_reason() -> None:
    ledger = ledger_of(NodeGpus(N1, problem="no label"))
    assert reason(ledger, demand("a", 1), "n1") is Reason.MEMORY_UNKNOWN
    assert reason(ledger, demand("a", 1, resource=WHOLE_GPU), "n1") is Reason.MEMORY_UNKNOWN


def test_the_ledger_stays_correct_while_its_arrays_grow() -> None:
    ledger = ledger_of(*(sharing_node(f"n{n}", 1000) for n in range(60)))
    take(ledger, demand("a", 900), "n59")
    hold(ledger, demand("h", 500), "n1", "n2")
    for n in range(60, 300):
        ledger.put_node(sharing_node(f"n{n}", *[2000] * (1 + n % 8)))
    assert room(ledger, "n59") == [100]
    assert room(ledger, "n1") == [500]
    ledger.release_hold(PodUid("h"))
    assert room(ledger, "n1") == [1000]
    assert room(ledger, "n299") == [2000] * 4


def test_an_absurdly_large_promise_affects_only_its_own_gpu() -> None:
    ledger = ledger_of(sharing_node("n1", 1000, 1000))
    for n in range(5):
        ledger.promise(bound(f"p{n}", "n1", 10**18, 0))
    assert take(ledger, demand("b", 1000), "n1").gpu_indices == (1,)
    for n in range(5):
        ledger.forget(PodUid(f"p{n}"))
    assert room(ledger, "n1") == [1000, 0]


# ---------------------------------------------------------------------- more room never turns a fit into a no-fit

_NEEDS = st.integers(1, 1200)
_TENANTS = st.lists(st.tuples(_NEEDS, st.integers(0, 2)), max_size=4)


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=3),
    extra=st.integers(0, 500),
    tenants=_TENANTS,
    unmanaged=st.lists(st.integers(0, 300), max_size=3),
    need=_NEEDS,
    count=st.integers(1, 3),
)
def test_larger_gpus_fewer_tenants_and_less_unmanaged_memory_never_turn_a_fit_into_a_no_fit(
    sizes: list[int], extra: int, tenants: list[tuple[int, int]], unmanaged: list[int], need: int, count: int
) -> None:
    ledger = ledger_of(sharing_node("n1", *sizes))
    ledger.set_unmanaged(N1, tuple(unmanaged))
    for n, (tenant_need, index) in enumerate(tenants):
        ledger.promise(bound(f"t{n}", "n1", tenant_need, index))
    wanted = demand("new", need, count)
    steps = [reason(ledger, wanted, "n1") is Reason.FITS]
    ledger.put_node(sharing_node("n1", *(size + extra for size in sizes)))
    steps.append(reason(ledger, wanted, "n1") is Reason.FITS)
    ledger.set_unmanaged(N1, tuple(used // 2 for used in unmanaged))
    steps.append(reason(ledger, wanted, "n1") is Reason.FITS)
    for n in range(len(tenants)):
        ledger.forget(PodUid(f"t{n}"))
        steps.append(reason(ledger, wanted, "n1") is Reason.FITS)
    assert steps == sorted(steps)


@given(st.integers(1, 1000), st.integers(1, 4), st.lists(_NEEDS, max_size=6), _NEEDS, st.integers(0, 500))
def test_a_larger_time_sliced_gpu_never_turns_a_fit_into_a_no_fit(
    size: int, replicas: int, tenants: list[int], need: int, extra: int
) -> None:
    small, large = (ledger_of(whole_node("n1", s, 2, replicas)) for s in (size, size + extra))
    for ledger in (small, large):
        for n, tenant in enumerate(tenants):
            ledger.promise(bound(f"t{n}", "n1", tenant, resource=WHOLE_GPU))
    wanted = demand("new", need, resource=WHOLE_GPU)
    fits_small, fits_large = (reason(ledger, wanted, "n1") is Reason.FITS for ledger in (small, large))
    assert fits_large or not fits_small


def test_the_state_of_a_promise_does_not_change_its_room() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    attempt = take(ledger, demand("a", 600), "n1")
    for change in (ledger.leave_unconfirmed, ledger.confirm):
        change(attempt, 1.0)
        assert room(ledger, "n1") == [400]
