"""The check of the history finds every kind of fault, and none in a sound history."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .history import Change, Event, Fault, History, NodeState, PodState, quantity
from .objects import A100, T4, pod, shared_pod, sharing_node, whole_gpu_node, whole_gpu_pod

GIB = 1024**3
Json = dict[str, Any]


def node_event(revision: int, node: Json, change: Change = Change.ADDED) -> Event:
    node["metadata"]["uid"] = node["metadata"]["name"]
    return Event(revision, change, NodeState.of(node))


def pod_event(
    revision: int,
    pod: Json,
    node: str | None = None,
    *,
    phase: str = "Pending",
    **assigned: str,
) -> Event:
    meta = pod["metadata"]
    written = {f"vramcast.dev/{key.replace('_', '-')}": value for key, value in assigned.items()}
    version = {
        "metadata": {**meta, "uid": meta["name"], "annotations": {**meta["annotations"], **written}},
        "spec": {**pod["spec"], **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }
    return Event(revision, Change.MODIFIED, PodState.of(version))


def faults(*events: Event) -> list[Fault]:
    return [violation.fault for violation in History.of(events).violations()]


T4_NODE = sharing_node("t4", T4, count=2)  # two GPUs of 15360 MiB each


def bound(
    revision: int, name: str, reserved: str = "8Gi", indices: str = "0", asked: str = "8Gi", gpus: int = 1
) -> Event:
    pod = shared_pod(name, asked, gpus)
    return pod_event(revision, pod, "t4", reserved_memory=reserved, gpu_indices=indices)


@pytest.mark.parametrize(
    ("text", "units"),
    [("0", 0), ("1500", 1500), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 3 * GIB // 2), ("2G", 2 * 10**9),
     ("1e3", 1000), ("12E2", 1200), ("1500m", 2), ("1Ei", 2**60)],
)  # fmt: skip
def test_quantities_are_parsed_as_kubernetes_does(text: str, units: int) -> None:
    assert quantity(text) == units


@pytest.mark.parametrize("text", ["", "Gi", "1GiB", "1 Gi", "one"])
def test_other_text_is_not_a_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="not a Kubernetes quantity"):
        quantity(text)


def test_pods_that_fill_a_gpu_exactly_are_sound() -> None:
    assert faults(node_event(1, T4_NODE), bound(2, "a", "8Gi"), bound(3, "b", "7Gi", asked="7Gi")) == []


def test_one_byte_too_many_is_an_overcommit() -> None:
    over = str(7 * GIB + 1)
    assert faults(node_event(1, T4_NODE), bound(2, "a"), bound(3, "b", over, asked="1")) == [Fault.OVERCOMMIT]


def test_an_overcommit_is_found_even_if_it_lasted_one_event() -> None:
    gone = bound(4, "a")
    events = [
        node_event(1, T4_NODE),
        bound(2, "a"),
        bound(3, "b"),
        Event(gone.revision, Change.DELETED, gone.state),
    ]
    assert faults(*events) == [Fault.OVERCOMMIT]


def test_the_message_names_the_gpu_the_sum_and_the_pods() -> None:
    [violation] = History.of([node_event(1, T4_NODE), bound(2, "a"), bound(3, "b")]).violations()
    for part in ("revision 3", "node t4 GPU 0", str(16 * GIB), "pod default/a, pod default/b"):
        assert part in str(violation)


def test_the_gpus_of_a_node_are_counted_separately() -> None:
    assert faults(node_event(1, T4_NODE), bound(2, "a", indices="0"), bound(3, "b", indices="1")) == []


def test_a_pod_on_two_gpus_reserves_on_both() -> None:
    pair = bound(2, "pair", indices="0,1", gpus=2)
    assert faults(node_event(1, T4_NODE), pair, bound(3, "b", indices="1")) == [Fault.OVERCOMMIT]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_holds_nothing(phase: str) -> None:
    finished = pod_event(3, shared_pod("a", "8Gi"), "t4", phase=phase, reserved_memory="8Gi", gpu_indices="0")
    assert faults(node_event(1, T4_NODE), bound(2, "a"), finished, bound(4, "b")) == []


def test_a_pod_that_is_being_deleted_still_holds_its_memory() -> None:
    leaving = shared_pod("a", "8Gi")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    still_there = pod_event(3, leaving, "t4", reserved_memory="8Gi", gpu_indices="0")
    assert faults(node_event(1, T4_NODE), bound(2, "a"), still_there, bound(4, "b")) == [Fault.OVERCOMMIT]


def test_revisions_order_the_events_of_both_watches() -> None:
    late_delete = bound(3, "a")
    events = [
        bound(4, "b"),
        Event(late_delete.revision, Change.DELETED, late_delete.state),
        bound(2, "a"),
        node_event(1, T4_NODE),
    ]
    assert faults(*events) == []


@pytest.mark.parametrize(
    "written", [{}, {"gpu_indices": "0"}, {"reserved_memory": "8Gi"}], ids=["none", "indices", "memory"]
)
def test_a_bound_shared_pod_needs_a_complete_assignment(written: dict[str, str]) -> None:
    event = pod_event(2, shared_pod("a", "8Gi"), "t4", **written)
    assert faults(node_event(1, T4_NODE), event) == [Fault.MISSING_ANNOTATION]


@pytest.mark.parametrize(
    ("indices", "gpus"), [("0,1", 1), ("0", 2), ("0,0", 2), ("x", 1), ("", 1), ("-1", 1), ("0, 1", 2)]
)
def test_indices_must_name_as_many_distinct_gpus_as_requested(indices: str, gpus: int) -> None:
    event = bound(2, "a", indices=indices, gpus=gpus)
    assert Fault.BAD_ANNOTATION in faults(node_event(1, T4_NODE), event)


def test_the_index_of_a_missing_gpu_is_a_fault() -> None:
    assert set(faults(node_event(1, T4_NODE), bound(2, "a", indices="2"))) == {
        Fault.BAD_ANNOTATION,
        Fault.OVERCOMMIT,
    }


@pytest.mark.parametrize("reserved", ["0", "-1Gi", "plenty"])
def test_a_reservation_must_be_a_positive_amount(reserved: str) -> None:
    assert faults(node_event(1, T4_NODE), bound(2, "a", reserved)) == [Fault.BAD_ANNOTATION]


def test_reserving_less_than_requested_is_a_fault() -> None:
    assert faults(node_event(1, T4_NODE), bound(2, "a", "7Gi", asked="8Gi")) == [Fault.UNDER_RESERVED]


def test_shared_pods_belong_on_sharing_nodes() -> None:
    plain = whole_gpu_node("t4", T4, count=2)
    assert faults(node_event(1, plain), bound(2, "a")) == [Fault.WRONG_NODE]


def test_whole_gpu_pods_do_not_belong_on_sharing_nodes() -> None:
    assert faults(node_event(1, T4_NODE), pod_event(2, whole_gpu_pod("whole"), "t4")) == [Fault.MIXED]


def test_pods_without_gpus_are_ignored() -> None:
    assert faults(node_event(1, T4_NODE), pod_event(2, pod("web"), "t4")) == []


def test_a_status_update_does_not_repeat_a_fault() -> None:
    again = pod_event(4, shared_pod("b", "8Gi"), "t4", phase="Running", reserved_memory="8Gi", gpu_indices="0")
    assert faults(node_event(1, T4_NODE), bound(2, "a"), bound(3, "b"), again) == [Fault.OVERCOMMIT]


def test_a_reservation_that_grows_after_binding_is_checked_again() -> None:
    assert faults(node_event(1, T4_NODE), bound(2, "a"), bound(3, "a", "16Gi")) == [Fault.OVERCOMMIT]


def test_a_node_that_shrinks_below_its_promises_is_not_an_overcommit() -> None:
    smaller = sharing_node("t4", T4, count=1)
    events = [
        node_event(1, T4_NODE),
        bound(2, "a", indices="1"),
        node_event(3, smaller, Change.MODIFIED),
    ]
    assert faults(*events) == [Fault.SHRUNK]
    History.of(events).assert_sound(ignoring=[Fault.SHRUNK])


def test_assert_sound_shows_the_violations() -> None:
    with pytest.raises(AssertionError, match="2 violations in 4 events"):
        History.of([node_event(1, T4_NODE), bound(2, "a"), bound(3, "b"), bound(4, "c")]).assert_sound()


def test_pending_pods_that_fit_are_listed_with_their_nodes() -> None:
    events = [
        node_event(1, T4_NODE),
        node_event(2, sharing_node("big", A100, count=1)),
        node_event(3, whole_gpu_node("whole", A100)),
        bound(4, "a", indices="0"),
        bound(5, "b", indices="1"),
        pod_event(6, shared_pod("small", "7Gi")),
        pod_event(7, shared_pod("large", "80Gi")),
        pod_event(8, shared_pod("larger", "81Gi")),
        pod_event(9, shared_pod("pair", "7Gi", gpus=2)),
        pod_event(10, shared_pod("wide-pair", "8Gi", gpus=2)),
        pod_event(11, shared_pod("unknown", None)),
    ]
    cluster = History.of(events).final()
    assert cluster.pending_that_fit() == {
        "default/small": ["t4", "big"],
        "default/large": ["big"],
        "default/pair": ["t4"],
    }
    assert cluster.pending_that_fit(lambda pod: (pod.asked_bytes or 0) + GIB) == {
        "default/small": ["big"],
        "default/unknown": ["t4", "big"],
    }


def test_bindings_are_the_first_bound_event_of_each_pod() -> None:
    history = History.of([pod_event(1, shared_pod("a", "8Gi")), bound(2, "a"), bound(3, "b"), bound(4, "a")])
    assert [event.revision for event in history.bindings()] == [2, 3]


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 16)), min_size=1, max_size=12, unique_by=lambda p: p[1]))
def test_an_overcommit_is_reported_exactly_if_a_sum_exceeds_the_gpu(
    placements: list[tuple[int, int]],
) -> None:
    events = [
        bound(2 + turn, f"p{turn}", f"{size}Gi", str(gpu), asked="1") for turn, (gpu, size) in enumerate(placements)
    ]
    assert (Fault.OVERCOMMIT in faults(node_event(1, T4_NODE), *events)) == any(
        total > 15 for total in _totals(placements)
    )


def _totals(placements: Iterable[tuple[int, int]]) -> list[int]:
    by_gpu = itertools.groupby(sorted(placements), key=lambda placement: placement[0])
    return [sum(size for _, size in group) for _, group in by_gpu]
