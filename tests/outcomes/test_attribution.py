"""Whose memory is it? One moment on one node."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import gfd_labels, sharing_node, whole_node

from vramcast.names import NodeName, PodUid
from vramcast.outcomes.attribution import Division, divide
from vramcast.outcomes.readings import Device, PodValues, Reading
from vramcast.outcomes.tenancy import Tenant
from vramcast.placement.gpus import NodeGpus, read_node

AT = 1000.0
SHARING = sharing_node("a", gpus=2)
WHOLE = whole_node("a", gpus=2)
SLICED = read_node(
    NodeName("a"),
    {**gfd_labels("NVIDIA-A100-SXM4-40GB", 1, 40960), "nvidia.com/gpu.replicas": "4"},
    {},
    {"nvidia.com/gpu": "4"},
)


def tenant(name: str, promised_mib: int | None = 10_000, *indices: int, until: float | None = None) -> Tenant:
    return Tenant(PodUid(name), f"ns/{name}", NodeName("a"), bool(indices), 1, indices, promised_mib, 0.0, until)


def used(mib: float, gpu: int = 0, pod: str = "", mig: str = "") -> Reading:
    return Reading(NodeName("a"), Device(gpu, mig), f"ns/{pod}" if pod else "", AT, mib)


def split(
    node: NodeGpus,
    readings: list[Reading],
    *tenants: Tenant,
    before: Mapping[int, int] | None = None,
    values: PodValues = PodValues.AUTO,
) -> Division:
    return divide(node, readings, tenants, AT, {Device(gpu): mib for gpu, mib in (before or {}).items()}, values)


# --- shared GPUs


def test_on_a_gpu_without_our_pods_everything_is_unmanaged() -> None:
    assert split(SHARING, [used(10_240), used(0, 1)]).unmanaged_mib == (10_240, 0)


def test_alone_on_a_gpu_what_is_used_is_the_pods() -> None:
    found = split(SHARING, [used(8_000)], tenant("p", 10_000, 0))
    assert found.observed_mib == {"p": 8_000}
    assert found.unmanaged_mib == (0, 0)


def test_what_was_there_before_the_pod_stays_unmanaged() -> None:
    found = split(SHARING, [used(12_000)], tenant("p", 10_000, 0), before={0: 5_000})
    assert found.observed_mib == {"p": 7_000}
    assert found.unmanaged_mib == (5_000, 0)


def test_a_pod_that_outgrew_its_promise_counts_at_what_it_uses() -> None:
    found = split(SHARING, [used(13_000)], tenant("p", 10_000, 0))
    assert found.observed_mib == {"p": 13_000}
    assert found.unmanaged_mib == (3_000, 0)


def test_of_two_pods_without_names_nothing_can_be_told_apart() -> None:
    found = split(SHARING, [used(15_000)], tenant("p", 10_000, 0), tenant("q", 4_000, 0))
    assert found.observed_mib == {}
    assert found.unclear == {"p", "q"}
    assert found.unmanaged_mib == (1_000, 0)


def test_values_of_pods_are_taken_as_they_are() -> None:
    readings = [used(15_000), used(9_000, pod="p"), used(4_500, pod="q")]
    found = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 4_000, 0))
    assert found.observed_mib == {"p": 9_000, "q": 4_500}
    # 1,500 belong to nobody, and q took 500 more than it was promised.
    assert found.unmanaged_mib == (2_000, 0)


def test_the_same_value_for_every_pod_is_the_gpus() -> None:
    """As exporters before 4.5.3-4.8.2 have it."""
    readings = [used(13_000, pod="p"), used(13_000, pod="q")]
    found = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 4_000, 0))
    assert found.observed_mib == {}
    assert found.unclear == {"p", "q"}
    assert found.unmanaged_mib == (0, 0)


def test_equal_values_are_the_pods_own_where_the_setting_says_so() -> None:
    readings = [used(9_000, pod="p"), used(9_000, pod="q")]
    found = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 10_000, 0), values=PodValues.POD)
    assert found.observed_mib == {"p": 9_000, "q": 9_000}


def test_one_name_beside_another_value_for_the_gpu_is_the_pods_own() -> None:
    found = split(SHARING, [used(12_000), used(9_000, pod="p")], tenant("p", 10_000, 0), before={0: 3_000})
    assert found.observed_mib == {"p": 9_000}
    assert found.unmanaged_mib == (3_000, 0)


@pytest.mark.parametrize("readings", [[used(9_000), used(9_000, pod="p")], [used(9_040), used(9_000, pod="p")]])
def test_who_is_not_named_where_nothing_is_left_over_uses_nothing_yet(readings: list[Reading]) -> None:
    found = split(SHARING, readings, tenant("p", 10_000, 0), tenant("pulls", 10_000, 0), values=PodValues.POD)
    assert found.observed_mib == {"p": 9_000, "pulls": 0}
    assert found.unclear == set()


def test_who_is_not_named_where_much_is_left_over_is_unclear() -> None:
    readings = [used(12_000), used(9_000, pod="p")]
    found = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 10_000, 0))
    assert found.observed_mib == {"p": 9_000}
    assert found.unclear == {"q"}
    assert found.unmanaged_mib == (0, 0)


def test_pods_on_an_empty_gpu_use_nothing_yet() -> None:
    found = split(SHARING, [used(5_010)], tenant("p", 10_000, 0), tenant("q", 4_000, 0), before={0: 5_000})
    assert found.observed_mib == {"p": 0, "q": 0}
    assert found.unmanaged_mib == (5_000, 0)


def test_a_name_that_is_none_of_ours_is_no_name() -> None:
    """The exporter's own pod, where Prometheus wrote that over the task's."""
    found = split(SHARING, [used(8_000, pod="dcgm-exporter-x")], tenant("p", 10_000, 0))
    assert found.observed_mib == {"p": 8_000}
    assert found.unmanaged_mib == (0, 0)


def test_the_last_traces_of_a_pod_that_ended_are_not_unmanaged() -> None:
    found = split(SHARING, [used(9_000)], tenant("gone", 10_000, 0, until=AT - 5))
    assert found.unmanaged_mib == (0, 0)


def test_beside_such_traces_the_next_pod_is_neither_seen_nor_unclear() -> None:
    found = split(SHARING, [used(9_000)], tenant("gone", 10_000, 0, until=AT - 5), tenant("next", 10_000, 0))
    assert found.observed_mib == {}
    assert found.unclear == set()


def test_of_a_pod_on_several_gpus_the_fullest_counts() -> None:
    found = split(SHARING, [used(5_000, 0), used(7_000, 1)], tenant("p", 10_000, 0, 1))
    assert found.observed_mib == {"p": 7_000}
    assert found.devices == {"p": Device(1)}


# --- GPUs that the device plugin hands out


def test_a_whole_gpu_of_a_pod_holds_no_unmanaged_that_matter() -> None:
    found = split(WHOLE, [used(8_000, 0, pod="p"), used(0, 1)], tenant("p"))
    assert found.observed_mib == {"p": 8_000}
    assert max(found.unmanaged_mib) == 0


def test_unmanaged_memory_on_a_free_whole_gpu_counts() -> None:
    found = split(WHOLE, [used(8_000, 0, pod="p"), used(10_240, 1)], tenant("p"))
    assert max(found.unmanaged_mib) == 10_240


def test_without_names_the_fullest_gpus_are_taken_for_the_pods() -> None:
    found = split(WHOLE, [used(8_000, 0), used(3_000, 1)], tenant("p"))
    assert sorted(found.unmanaged_mib) == [0, 3_000]
    assert found.unclear == {"p"}


def test_one_gpu_and_one_pod_need_no_name() -> None:
    found = split(whole_node("a", gpus=1), [used(8_000)], tenant("p"))
    assert found.observed_mib == {"p": 8_000}


def test_an_undescribed_pod_has_its_whole_gpu_to_itself() -> None:
    found = split(WHOLE, [used(30_000, 0), used(0, 1)], tenant("p", None))
    assert max(found.unmanaged_mib) == 0


def test_on_a_time_sliced_gpu_what_exceeds_the_promises_is_unmanaged() -> None:
    readings = [used(20_000, pod="p"), used(20_000, pod="q")]
    found = split(SLICED, readings, tenant("p", 9_000), tenant("q", 9_000))
    assert found.unmanaged_mib == (2_000,)


def test_a_gpu_in_slices_is_not_counted_once_more_as_a_whole() -> None:
    readings = [used(9_000, 0), used(4_000, 0, mig="1", pod="p"), used(5_000, 0, mig="2")]
    found = split(WHOLE, readings, tenant("p"))
    assert found.observed_mib == {"p": 4_000}
    assert sorted(found.unmanaged_mib) == [0, 5_000]


@pytest.mark.parametrize("node", [SHARING, WHOLE, SLICED])
def test_no_readings_no_unmanaged(node: NodeGpus) -> None:
    assert max(split(node, [], tenant("p")).unmanaged_mib, default=0) == 0


SIZES = st.integers(0, 15_000)


@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans(), st.sampled_from(PodValues))
def test_promises_and_unmanaged_never_add_up_to_less_than_what_is_used(
    p_mib: int, q_mib: int, others_mib: int, p_promised: int, q_promised: int, q_named: bool, values: PodValues
) -> None:
    """Whoever is named or not, and whatever the values are taken for."""
    total = p_mib + q_mib + others_mib
    readings = [used(total), used(p_mib, pod="p"), *([used(q_mib, pod="q")] if q_named else [])]
    found = split(SHARING, readings, tenant("p", p_promised, 0), tenant("q", q_promised, 0), values=values)
    assert p_promised + q_promised + found.unmanaged_mib[0] >= total
