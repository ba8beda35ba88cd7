"""Attribution: which pods use the memory of one node at one moment."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import gfd_labels, sharing_node, whole_node

from vramcast.names import NodeName, PodUid
from vramcast.outcomes.attribution import Division, divide
from vramcast.outcomes.outcome import Truth
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


def test_on_a_gpu_without_tenants_all_memory_is_unmanaged() -> None:
    assert split(SHARING, [used(10_240), used(0, 1)]).unmanaged_mib == (10_240, 0)


def test_a_pod_alone_on_a_gpu_gets_all_the_used_memory() -> None:
    division = split(SHARING, [used(8_000)], tenant("p", 10_000, 0))
    assert division.observed_mib == {"p": 8_000}
    assert division.unmanaged_mib == (0, 0)


def test_memory_in_use_before_the_pod_came_stays_unmanaged() -> None:
    division = split(SHARING, [used(12_000)], tenant("p", 10_000, 0), before={0: 5_000})
    assert division.observed_mib == {"p": 7_000}
    assert division.unmanaged_mib == (5_000, 0)


def test_a_pod_that_outgrew_its_promise_counts_at_what_it_uses() -> None:
    division = split(SHARING, [used(13_000)], tenant("p", 10_000, 0))
    assert division.observed_mib == {"p": 13_000}
    assert division.unmanaged_mib == (3_000, 0)


def test_without_values_per_pod_two_pods_on_a_gpu_are_unclear() -> None:
    division = split(SHARING, [used(15_000)], tenant("p", 10_000, 0), tenant("q", 4_000, 0))
    assert division.observed_mib == {}
    assert division.unclear == {"p", "q"}
    assert division.unmanaged_mib == (1_000, 0)


def test_values_per_pod_are_used_as_they_are() -> None:
    readings = [used(15_000), used(9_000, pod="p"), used(4_500, pod="q")]
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 4_000, 0))
    assert division.observed_mib == {"p": 9_000, "q": 4_500}
    # 1,500 MiB belong to no pod, and q uses 500 MiB more than its promise.
    assert division.unmanaged_mib == (2_000, 0)


def test_the_same_value_for_every_pod_is_the_gpus_total() -> None:
    """Exporters before 4.5.3-4.8.2 report it this way."""
    readings = [used(13_000, pod="p"), used(13_000, pod="q")]
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 4_000, 0))
    assert division.observed_mib == {}
    assert division.unclear == {"p", "q"}
    assert division.unmanaged_mib == (0, 0)


def test_equal_values_are_the_pods_own_if_so_configured() -> None:
    readings = [used(9_000, pod="p"), used(9_000, pod="q")]
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 10_000, 0), values=PodValues.POD)
    assert division.observed_mib == {"p": 9_000, "q": 9_000}


def test_a_pod_value_that_differs_from_the_gpus_value_is_the_pods_own() -> None:
    division = split(SHARING, [used(12_000), used(9_000, pod="p")], tenant("p", 10_000, 0), before={0: 3_000})
    assert division.observed_mib == {"p": 9_000}
    assert division.unmanaged_mib == (3_000, 0)


@pytest.mark.parametrize("readings", [[used(9_000), used(9_000, pod="p")], [used(9_040), used(9_000, pod="p")]])
def test_a_pod_without_a_value_uses_nothing_yet_if_no_memory_is_left_over(readings: list[Reading]) -> None:
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("pulls", 10_000, 0), values=PodValues.POD)
    assert division.observed_mib == {"p": 9_000, "pulls": 0}
    assert division.unclear == set()


def test_a_pod_without_a_value_is_unclear_if_memory_is_left_over() -> None:
    readings = [used(12_000), used(9_000, pod="p")]
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 10_000, 0))
    assert division.observed_mib == {"p": 9_000}
    assert division.unclear == {"q"}
    assert division.unmanaged_mib == (0, 0)


def test_pods_on_a_gpu_without_new_memory_use_nothing_yet() -> None:
    division = split(SHARING, [used(5_010)], tenant("p", 10_000, 0), tenant("q", 4_000, 0), before={0: 5_000})
    assert division.observed_mib == {"p": 0, "q": 0}
    assert division.unmanaged_mib == (5_000, 0)


def test_the_name_of_a_pod_that_is_no_tenant_is_ignored() -> None:
    """Prometheus without honorLabels replaces the task's pod with the exporter's own."""
    division = split(SHARING, [used(8_000, pod="dcgm-exporter-x")], tenant("p", 10_000, 0))
    assert division.observed_mib == {"p": 8_000}
    assert division.unmanaged_mib == (0, 0)


def test_memory_of_a_pod_that_just_ended_is_not_unmanaged() -> None:
    division = split(SHARING, [used(9_000)], tenant("gone", 10_000, 0, until=AT - 5))
    assert division.unmanaged_mib == (0, 0)


def test_while_a_pod_that_just_ended_still_shows_the_next_one_is_neither_observed_nor_unclear() -> None:
    division = split(SHARING, [used(9_000)], tenant("gone", 10_000, 0, until=AT - 5), tenant("next", 10_000, 0))
    assert division.observed_mib == {}
    assert division.unclear == set()


def test_a_pod_on_several_gpus_counts_by_its_fullest_gpu() -> None:
    division = split(SHARING, [used(5_000, 0), used(7_000, 1)], tenant("p", 10_000, 0, 1))
    assert division.observed_mib == {"p": 7_000}
    assert division.devices == {"p": Device(1)}


# --- GPUs that the device plugin hands out


def test_no_memory_on_a_pods_whole_gpu_counts_as_unmanaged() -> None:
    division = split(WHOLE, [used(8_000, 0, pod="p"), used(0, 1)], tenant("p"))
    assert division.observed_mib == {"p": 8_000}
    assert max(division.unmanaged_mib) == 0


def test_unmanaged_memory_on_a_free_whole_gpu_counts() -> None:
    division = split(WHOLE, [used(8_000, 0, pod="p"), used(10_240, 1)], tenant("p"))
    assert max(division.unmanaged_mib) == 10_240


def test_without_names_the_fullest_gpus_are_assumed_to_be_the_pods() -> None:
    division = split(WHOLE, [used(8_000, 0), used(3_000, 1)], tenant("p"))
    assert sorted(division.unmanaged_mib) == [0, 3_000]
    assert division.unclear == {"p"}


def test_one_pod_on_a_node_with_one_gpu_needs_no_name() -> None:
    division = split(whole_node("a", gpus=1), [used(8_000)], tenant("p"))
    assert division.observed_mib == {"p": 8_000}


def test_an_undescribed_pod_has_its_whole_gpu_to_itself() -> None:
    division = split(WHOLE, [used(30_000, 0), used(0, 1)], tenant("p", None))
    assert max(division.unmanaged_mib) == 0


def test_on_a_time_sliced_gpu_memory_beyond_the_promises_is_unmanaged() -> None:
    readings = [used(20_000, pod="p"), used(20_000, pod="q")]
    division = split(SLICED, readings, tenant("p", 9_000), tenant("q", 9_000))
    assert division.unmanaged_mib == (2_000,)


def test_a_gpu_split_into_mig_slices_is_not_counted_again_as_a_whole() -> None:
    readings = [used(9_000, 0), used(4_000, 0, mig="1", pod="p"), used(5_000, 0, mig="2")]
    division = split(WHOLE, readings, tenant("p"))
    assert division.observed_mib == {"p": 4_000}
    assert sorted(division.unmanaged_mib) == [0, 5_000]


@pytest.mark.parametrize("node", [SHARING, WHOLE, SLICED])
def test_without_readings_there_is_no_unmanaged_memory(node: NodeGpus) -> None:
    assert max(split(node, [], tenant("p")).unmanaged_mib, default=0) == 0


SIZES = st.integers(0, 15_000)


@given(SIZES, SIZES, SIZES, SIZES, SIZES, st.booleans(), st.sampled_from(PodValues))
def test_promises_plus_unmanaged_memory_cover_all_used_memory(
    p_mib: int, q_mib: int, others_mib: int, p_promised: int, q_promised: int, q_named: bool, values: PodValues
) -> None:
    """Whether or not a pod has a value, and however the values are interpreted."""
    total = p_mib + q_mib + others_mib
    readings = [used(total), used(p_mib, pod="p"), *([used(q_mib, pod="q")] if q_named else [])]
    division = split(SHARING, readings, tenant("p", p_promised, 0), tenant("q", q_promised, 0), values=values)
    assert p_promised + q_promised + division.unmanaged_mib[0] >= total


# --- the agent's readings


def told(mib: float, gpu: int = 0, uid: str = "") -> Reading:
    return Reading(NodeName("a"), Device(gpu), uid, AT, mib, told_apart=True)


def test_by_the_agent_neighbours_are_told_apart_and_the_rest_is_unmanaged() -> None:
    readings = [told(9_000), told(5_000, uid="p"), told(3_000, uid="q")]
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("q", 10_000, 0))
    assert division.observed_mib == {"p": 5_000, "q": 3_000}
    assert division.unmanaged_mib == (1_000, 0)
    assert division.truths == {"p": Truth.AGENT, "q": Truth.AGENT}


def test_by_the_agent_a_pod_without_a_process_uses_nothing_even_if_it_is_alone() -> None:
    division = split(SHARING, [told(9_000)], tenant("p", 10_000, 0))
    assert division.observed_mib == {"p": 0}
    assert division.unmanaged_mib == (9_000, 0)
    assert not division.unclear


def test_by_the_agent_equal_values_are_still_each_pods_own() -> None:
    readings = [told(4_000), told(4_000, uid="p")]
    division = split(SHARING, readings, tenant("p", 10_000, 0), values=PodValues.GPU)
    assert division.observed_mib == {"p": 4_000}


def test_at_the_same_moment_the_agent_counts_and_other_exporters_do_not() -> None:
    readings = [used(9_500), used(9_500, pod="p"), told(9_000), told(5_000, uid="p"), used(700, gpu=1)]
    division = split(SHARING, readings, tenant("p", 10_000, 0), tenant("r", 10_000, 1))
    assert division.observed_mib == {"p": 5_000, "r": 700}
    assert division.unmanaged_mib == (4_000, 0)
    assert division.truths == {"p": Truth.AGENT, "r": Truth.ALONE}
