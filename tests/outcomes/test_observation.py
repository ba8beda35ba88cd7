"""One poll of telemetry as a whole, and what must hold for any telemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import sharing_node

from vramcast.forecast.forecaster import PhysicsForecaster
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization, UtilizationCounter
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, PodUid
from vramcast.outcomes.observation import Findings, Observer
from vramcast.outcomes.outcome import Truth
from vramcast.outcomes.readings import Fault, Interpreter, Series
from vramcast.outcomes.tenancy import Tenancy
from vramcast.placement.changes import NodeSeen, UnmanagedSeen
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Promise, State
from vramcast.placement.state import ClusterState

NOW = 10_000.0
NODE = NodeName("a")


def series(value: float, at: float, gpu: str = "0", **labels: str) -> Series:
    return Series({"Hostname": "a", "gpu": gpu, **labels}, ((at, value),))


def promise(name: str, need_mib: int, *gpus: int) -> Promise:
    return Promise(PodUid(name), f"ns/{name}", NODE, SHARED_GPU, len(gpus), need_mib, gpus, State.BOUND, 0.0)


def study(
    observer: Observer,
    tenancy: Tenancy,
    *given: Series,
    utilization: Mapping[UtilizationCounter, Sequence[Series]] | None = None,
) -> Findings:
    frame = Interpreter().read(given, utilization or {}, NOW)
    return observer.study(frame, {NODE: sharing_node("a", gpus=2)}, tenancy.by_node(), tenancy)


def tenancy_of(*promises: Promise, since: float = NOW - 500) -> Tenancy:
    tenancy = Tenancy(lag_seconds=30)
    tenancy.update(promises, NOW, lambda _: since)
    return tenancy


def test_unmanaged_memory_is_seen_in_the_first_poll() -> None:
    findings = study(Observer(), tenancy_of(), series(10_240, NOW - 3))
    assert findings.unmanaged_mib == {NODE: (NOW - 3, (10_240, 0))}


def test_every_sample_of_a_poll_is_used_and_the_newest_time_is_reported() -> None:
    tenancy = tenancy_of(promise("p", 10_000, 0))
    findings = study(Observer(), tenancy, series(4_000, NOW - 30), series(9_000, NOW - 15), series(2_000, NOW))
    assert [(sighting.at, sighting.used_mib) for sighting in findings.sightings] == [
        (NOW - 30, 4_000), (NOW - 15, 9_000), (NOW, 2_000),
    ]  # fmt: skip
    assert findings.newest_at == NOW


def test_utilization_is_paired_with_the_memory_of_the_same_moment() -> None:
    tenancy = tenancy_of(promise("p", 10_000, 0))
    counted = {
        UtilizationCounter.GPU_UTIL: [series(80, NOW), series(10, NOW, "1")],
        UtilizationCounter.SM_ACTIVE: [series(0.4, NOW)],
    }
    findings = study(Observer(), tenancy, series(4_000, NOW), utilization=counted)
    assert [sighting.utilization for sighting in findings.sightings] == [Utilization(gpu_util=0.8, sm_active=0.4)]
    assert findings.scraped_at == dict.fromkeys(counted, NOW)


def test_the_utilization_of_a_gpu_that_pods_share_is_nobodys() -> None:
    """Where telemetry knows each pod's memory but only the GPU's utilization."""
    named = [series(mib, NOW, namespace="ns", pod=pod) for pod, mib in (("p", 4_000), ("q", 3_000))]
    busy = {counter: [series(80 if counter.endswith("_util") else 0.8, NOW)] for counter in UtilizationCounter}
    findings = study(Observer(), neighbours(), series(7_000, NOW), *named, utilization=busy)
    assert {(s.uid, s.used_mib, s.utilization) for s in findings.sightings} == {
        ("p", 4_000, UNKNOWN_UTILIZATION), ("q", 3_000, UNKNOWN_UTILIZATION),
    }  # fmt: skip
    # A neighbour that has not started to use the GPU does not count.
    findings = study(Observer(), neighbours(), series(4_050, NOW), named[0], utilization=busy)
    used = {sighting.uid: sighting for sighting in findings.sightings}
    assert used[PodUid("p")].utilization == Utilization(0.8, 0.8, 0.8, memory_util=0.8)


def test_memory_in_use_before_a_pod_is_remembered_between_polls() -> None:
    observer, tenancy = Observer(), tenancy_of(promise("p", 10_000, 0), since=NOW - 50)
    study(observer, tenancy, series(6_000, NOW - 100))
    findings = study(observer, tenancy, series(14_000, NOW))
    assert findings.sightings[0].used_mib == 8_000
    assert findings.unmanaged_mib[NODE][1] == (6_000, 0)


def test_a_sample_belongs_to_the_pod_that_ran_when_it_was_taken() -> None:
    tenancy = tenancy_of(promise("old", 10_000, 0))
    tenancy.leave(PodUid("old"), NOW - 100)
    tenancy.update([promise("new", 5_000, 0)], NOW, lambda _: NOW - 40)
    findings = study(Observer(), tenancy, series(9_000, NOW - 200), series(4_000, NOW))
    assert {(sighting.uid, sighting.used_mib) for sighting in findings.sightings} == {("old", 9_000), ("new", 4_000)}


def test_memory_of_a_pod_that_just_ended_is_not_unmanaged() -> None:
    tenancy = tenancy_of(promise("p", 10_000, 0))
    tenancy.leave(PodUid("p"), NOW - 10)
    assert study(Observer(), tenancy, series(9_000, NOW)).unmanaged_mib[NODE][1] == (0, 0)


def test_a_value_larger_than_the_gpu_is_a_wrong_unit() -> None:
    findings = study(Observer(), tenancy_of(), series(50_000, NOW))
    assert findings.faults == {Fault.UNIT: 1}
    assert findings.unmanaged_mib == {}


def test_samples_of_unknown_nodes_and_gpus_are_counted_as_faults() -> None:
    findings = study(
        Observer(), tenancy_of(), series(1, NOW, "7"), Series({"Hostname": "b", "gpu": "0"}, ((NOW, 1.0),))
    )
    assert findings.faults == {Fault.NO_GPU: 1, Fault.UNKNOWN_NODE: 1}


# --- any telemetry

ANY_SERIES = st.builds(
    Series,
    st.dictionaries(
        st.sampled_from(["Hostname", "gpu", "pod", "namespace", "exported_pod", "GPU_I_ID"]),
        st.sampled_from(["a", "b", "0", "1", "99", "", "p", "q", "ns", "-1"]),
    ),
    st.lists(
        st.tuples(
            st.floats(NOW - 100, NOW + 200) | st.sampled_from([float("nan"), float("inf")]),
            st.floats(allow_nan=True, allow_infinity=True) | st.integers(0, 45_000).map(float),
        ),
        max_size=4,
    ).map(tuple),
)


@given(st.lists(ANY_SERIES, max_size=8), st.lists(st.integers(1, 20_000), max_size=4))
def test_no_telemetry_adds_room_beyond_what_the_promises_leave(given: list[Series], needs_mib: list[int]) -> None:
    promises = [
        promise(name, need, index % 2) for index, (name, need) in enumerate(zip("pqrs", needs_mib, strict=False))
    ]
    state = ClusterState(Ledger(), PhysicsForecaster(0.05))
    state.apply(NodeSeen(sharing_node("a", gpus=2)))
    for each in promises:
        state.ledger.promise(each)
    before = [view.room_mib for view in state.ledger.device_views(NODE)]
    tenancy = tenancy_of(*promises)
    for name, (_, used_mib) in study(Observer(), tenancy, *given).unmanaged_mib.items():
        state.apply(UnmanagedSeen(name, used_mib))
    after = [view.room_mib for view in state.ledger.device_views(NODE)]
    assert all(now <= then for now, then in zip(after, before, strict=True))
    assert sorted(p.uid for p in state.ledger.promises()) == sorted(p.uid for p in promises)


@given(st.lists(st.integers(0, 39_000), min_size=1, max_size=30), st.integers(0, 39_000))
def test_a_promise_plus_unmanaged_memory_covers_all_used_memory(used: list[int], need_mib: int) -> None:
    """The room on a GPU never exceeds what telemetry shows as free."""
    tenancy, observer = tenancy_of(promise("p", need_mib, 0)), Observer()
    for step, mib in enumerate(used):
        findings = study(observer, tenancy, series(mib, NOW - len(used) + step))
        assert need_mib + findings.unmanaged_mib[NODE][1][0] >= mib


# --- next to the agent


def by_agent(mib: float, at: float, uid: str = "") -> Series:
    return Series({"Hostname": "a", "gpu": "0", "pod_uid": uid, "told_apart": "yes"}, ((at, mib),))


def study_with_agent(
    observer: Observer, tenancy: Tenancy, memory: list[Series], agent: list[Series], busy: list[Series] | None = None
) -> Findings:
    counted = {UtilizationCounter.GPU_UTIL: [series(80, NOW)], UtilizationCounter.SM_ACTIVE: [series(0.4, NOW - 10)]}
    frame = Interpreter().read(memory, counted, NOW, agent, busy or [])
    return observer.study(frame, {NODE: sharing_node("a", gpus=2)}, tenancy.by_node(), tenancy)


def neighbours() -> Tenancy:
    return tenancy_of(promise("p", 10_000, 0), promise("q", 10_000, 0))


def test_samples_between_the_agents_do_not_blur_what_the_agent_saw() -> None:
    agent = [by_agent(9_000, NOW - 20), by_agent(6_000, NOW - 20, "p"), by_agent(2_000, NOW - 20, "q")]
    findings = study_with_agent(Observer(), neighbours(), [series(9_000, NOW - 30), series(9_000, NOW - 10)], agent)
    assert [(found.uid, found.at, found.used_mib, found.truth) for found in findings.sightings] == [
        ("p", NOW - 20, 6_000, Truth.AGENT), ("q", NOW - 20, 2_000, Truth.AGENT),
    ]  # fmt: skip
    assert findings.unmanaged_mib[NODE] == (NOW - 20, (1_000, 0))


def test_the_agent_is_believed_to_be_there_in_the_next_poll_and_no_longer_once_it_is_silent() -> None:
    observer = Observer(agent_seconds=60)
    study_with_agent(observer, neighbours(), [], [by_agent(9_000, NOW - 70)])
    findings = study_with_agent(observer, neighbours(), [series(9_000, NOW - 10), series(9_000, NOW)], [])
    assert {(found.at, found.used_mib) for found in findings.sightings} == {(NOW, None)}


def test_an_agent_that_cannot_tell_processes_apart_silences_nobody() -> None:
    blind = Series({"Hostname": "a", "gpu": "0", "pod_uid": "", "told_apart": "no"}, ((NOW - 20, 9_000.0),))
    named = series(6_000, NOW, namespace="ns", pod="p"), series(2_000, NOW, namespace="ns", pod="q")
    findings = study_with_agent(Observer(), neighbours(), [series(9_000, NOW), *named], [blind])
    assert {(found.uid, found.used_mib, found.truth) for found in findings.sightings if found.at == NOW} == {
        ("p", 6_000, Truth.POD_LABEL), ("q", 2_000, Truth.POD_LABEL),
    }  # fmt: skip


@pytest.mark.parametrize("at", [NOW, NOW - 10])
def test_what_other_exporters_say_next_to_the_agent_is_a_second_opinion(at: float) -> None:
    agent = [by_agent(9_000, NOW), by_agent(6_000, NOW, "p"), by_agent(2_000, NOW, "q")]
    named = series(5_900, at, namespace="ns", pod="p"), series(2_100, at, namespace="ns", pod="q")
    findings = study_with_agent(Observer(), neighbours(), [series(9_000, at), *named], agent)
    assert {(found.uid, found.used_mib) for found in findings.sightings} == {("p", 6_000), ("q", 2_000)}
    assert {(found.uid, found.used_mib, found.truth) for found in findings.second_opinions} == {
        ("p", 5_900, Truth.POD_LABEL), ("q", 2_100, Truth.POD_LABEL),
    }  # fmt: skip


def test_utilization_by_pod_counts_more_than_the_gpus() -> None:
    agent = [by_agent(9_000, NOW), by_agent(6_000, NOW, "p"), by_agent(2_000, NOW, "q")]
    findings = study_with_agent(Observer(), neighbours(), [], agent, [by_agent(30, NOW, "p")])
    assert {found.uid: found.utilization.gpu_util for found in findings.sightings} == {"p": 0.3, "q": None}


@pytest.mark.parametrize(("at", "sm_active"), [(NOW, 0.4), (NOW + 20, 0.4), (NOW + 21, None)])
def test_a_counter_of_another_exporter_is_paired_with_the_agents_memory_if_it_is_near_in_time(
    at: float, sm_active: float | None
) -> None:
    tenancy = tenancy_of(promise("p", 10_000, 0))
    agent = [by_agent(6_000, at), by_agent(6_000, at, "p")]
    (sighting,) = study_with_agent(Observer(), tenancy, [], agent).sightings
    assert sighting.utilization.sm_active == sm_active
