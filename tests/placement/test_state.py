"""Watch events become promises in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.placement.builders import A100, T4, GivenForecaster, room, sharing_node, whole_node

from vramcast.errors import InvalidTask
from vramcast.forecast.forecast import Forecast, Source
from vramcast.hardware.utilization import Utilization
from vramcast.hardware.vendors import WHOLE_GPU
from vramcast.names import NodeName, PodUid, Product
from vramcast.placement.changes import NodeGone, NodeSeen, NodesListed, PodGone, PodSeen, PodsListed, UnmanagedSeen
from vramcast.placement.interference import Load, pressure
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Promise
from vramcast.placement.state import ClusterState
from vramcast.task.pod import ContainerDevices, PodRecord, read_pod
from vramcast.task.quantity import MIB
from vramcast.task.run_status import RunFacts
from vramcast.task.task import Task
from vramcast.task.vocabulary import PREFIX, Written

N1 = NodeName("n1")


def apply(state: ClusterState, changes: Sequence[Any]) -> None:
    for change in changes:
        state.apply(change)


class PerProductForecaster:
    """A fake: the need is the task's `gpu-memory`, plus 100 MiB on a T4."""

    def forecast(self, task: Task, product: Product) -> Forecast:
        size_bytes = ((task.gpu_memory_mib or 0) + (100 if product == T4 else 0)) * MIB
        return Forecast(product, size_bytes, size_bytes, 0.01, Source.GIVEN, "fake")


def new_state(forecaster: PerProductForecaster | GivenForecaster | None = None) -> ClusterState:
    return ClusterState(Ledger(), forecaster or GivenForecaster())


def shared_pod(
    uid: str, need_mib: int, node: str | None = None, assigned: str | None = None, finished: bool = False
) -> PodRecord:
    annotations = {PREFIX + "gpu-memory": f"{need_mib}Mi", PREFIX + "share": "true"}
    if assigned is not None:
        annotations |= {Written.RESERVED_MEMORY.value: f"{need_mib}Mi", Written.GPU_INDICES.value: assigned}
    where = NodeName(node) if node else None
    return read_pod(PodUid(uid), "ml", uid, annotations, (), where, finished)


def test_a_bound_pod_counts_on_the_gpus_in_its_annotations() -> None:
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000, 1000)), PodSeen(shared_pod("a", 300, "n1", "1"))])
    assert room(state.ledger, "n1") == [1000, 700]


def test_a_demand_presses_by_its_forecast_and_a_bound_pod_by_what_bind_wrote() -> None:
    class BusyForecaster(GivenForecaster):
        def forecast(self, task: Task, product: Product) -> Forecast:
            busy = Utilization(gpu_util=1.0, sm_active=0.64)
            return replace(super().forecast(task, product), utilization=busy)

    state = new_state(BusyForecaster())
    apply(state, [NodeSeen(sharing_node("n1", 1000))])
    wanted = state.demand(shared_pod("a", 300))
    assert wanted is not None
    assert wanted.loads == {A100: Load(1.0, pressure(1.0, 0.64))}
    # Bound before the annotation told more than one counter, and after.
    for name, written, load in (
        ("old", Utilization(sm_active=0.7), Load(0.7, pressure(0.7, 0.7))),
        ("new", Utilization(gpu_util=1.0, sm_active=0.64, sm_occupancy=0.2), Load(1.0, pressure(1.0, 0.64))),
    ):
        apply(state, [PodSeen(replace(shared_pod(name, 300, "n1", "0"), run=RunFacts(utilization=written)))])
        promise = state.ledger.promise_of(PodUid(name))
        assert promise is not None
        assert promise.load == load


def test_pods_may_arrive_before_their_nodes() -> None:
    state = new_state()
    apply(state, [PodSeen(shared_pod("a", 300, "n1", "0")), PodSeen(shared_pod("b", 200, "n1"))])
    apply(state, [NodeSeen(sharing_node("n1", 1000, 1000))])
    assert room(state.ledger, "n1") == [500, 800]


def test_a_pod_without_an_assignment_counts_at_its_forecast_for_the_nodes_product() -> None:
    state = new_state(PerProductForecaster())
    apply(state, [NodeSeen(sharing_node("big", 1000)), PodSeen(shared_pod("a", 300, "n1"))])
    apply(state, [NodeSeen(sharing_node("n1", 1000, product=T4))])
    assert room(state.ledger, "n1") == [600]
    apply(state, [NodeSeen(sharing_node("n1", 1000, product=A100))])
    assert room(state.ledger, "n1") == [700]


def test_an_undescribed_pod_on_a_sharing_node_blocks_sharing() -> None:
    state = new_state()
    pod = read_pod(PodUid("a"), "ml", "a", {}, [ContainerDevices({WHOLE_GPU: 1})], N1)
    apply(state, [NodeSeen(sharing_node("n1", 1000)), PodSeen(pod)])
    wanted = state.demand(shared_pod("b", 10))
    assert wanted is not None
    assert isinstance(state.ledger.assign(wanted, N1, 2.0), int)


@pytest.mark.parametrize("end", [PodGone(PodUid("a")), PodSeen(shared_pod("a", 300, "n1", "0", finished=True))])
def test_a_pod_that_ends_frees_its_room_at_once(end: PodGone | PodSeen) -> None:
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000)), PodSeen(shared_pod("a", 300, "n1", "0")), end])
    assert room(state.ledger, "n1") == [1000]
    assert not state.pods


def test_a_stale_event_does_not_free_the_room_of_a_bound_pod() -> None:
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000)), PodSeen(shared_pod("a", 300))])
    wanted = state.demand(shared_pod("a", 300))
    assert wanted is not None
    promise = state.ledger.assign(wanted, N1, 2.0)
    assert isinstance(promise, Promise)
    state.ledger.confirm(promise, 3.0)
    apply(state, [PodSeen(shared_pod("a", 300))])
    assert room(state.ledger, "n1") == [700]


def test_a_bound_pod_with_edited_annotations_keeps_its_promise_over_a_restart() -> None:
    edited = {PREFIX + "batch_size": "8", Written.RESERVED_MEMORY.value: "300Mi", Written.GPU_INDICES.value: "0"}
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000)), PodSeen(read_pod(PodUid("a"), "ml", "a", edited, (), N1))])
    assert room(state.ledger, "n1") == [700]


def test_the_state_is_synced_only_after_both_lists() -> None:
    state = new_state()
    apply(state, [NodesListed(frozenset())])
    assert not state.synced
    apply(state, [PodsListed(frozenset(), 1.0)])
    assert state.synced


def test_pods_and_nodes_that_a_list_omits_are_removed() -> None:
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000)), NodeSeen(whole_node("n2", 1000))])
    apply(state, [PodSeen(shared_pod("a", 300, "n1", "0")), PodSeen(shared_pod("b", 300))])
    apply(state, [NodesListed(frozenset({N1})), PodsListed(frozenset({PodUid("b")}), 2.0)])
    assert set(state.ledger.nodes) == {N1}
    assert set(state.pods) == {"b"}
    assert room(state.ledger, "n1") == [1000]


def test_unmanaged_memory_and_deleted_nodes_reach_the_ledger() -> None:
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000)), UnmanagedSeen(N1, (400,))])
    assert room(state.ledger, "n1") == [600]
    apply(state, [NodeGone(N1)])
    assert not state.ledger.nodes


def test_every_change_increments_the_revision() -> None:
    state = new_state()
    apply(state, [NodeSeen(sharing_node("n1", 1000)), NodeGone(N1)])
    assert state.revision == 2


def test_a_pod_without_gpus_is_not_tracked_and_an_invalid_one_raises() -> None:
    state = new_state()
    plain = read_pod(PodUid("a"), "ml", "a", {}, ())
    apply(state, [PodSeen(plain)])
    assert not state.pods
    assert state.demand(plain) is None
    with pytest.raises(InvalidTask):
        state.demand(read_pod(PodUid("b"), "ml", "b", {PREFIX + "typo": "1"}, ()))


@pytest.mark.parametrize(
    ("replicated", "assignment", "left"),
    [
        (True, "300Mi on 0", [700, 1000]),
        (True, "300Mi on 1", [700, 700]),
        (True, "500Mi on 0", [500, 1000]),
        (True, "1Mi on 0", [700, 1000]),
        (False, "500Mi on 1", [700, 1000]),
    ],
    ids=["our own Binding", "another GPU", "another need", "smaller need", "only replica"],
)
def test_an_unconfirmed_promise_and_another_assignment_on_the_same_node_both_count(
    replicated: bool, assignment: str, left: list[int]
) -> None:
    """Another replica may have bound the pod meanwhile, or our own Binding came through and was edited."""
    state = ClusterState(Ledger(), GivenForecaster(), replicated=replicated)
    apply(state, [NodeSeen(sharing_node("n1", 1000, 1000)), PodSeen(shared_pod("a", 300))])
    demand = state.demand(shared_pod("a", 300))
    assert demand is not None
    promise = state.ledger.assign(demand, N1, 0.0)
    assert isinstance(promise, Promise)
    assert promise.gpu_indices == (0,)
    state.ledger.leave_unconfirmed(promise, 1.0)

    memory, _, index = assignment.partition(" on ")
    written = {Written.RESERVED_MEMORY.value: memory, Written.GPU_INDICES.value: index}
    asked = {PREFIX + "share": "true", PREFIX + "gpu-memory": "300Mi"}
    apply(state, [PodSeen(read_pod(PodUid("a"), "ml", "a", {**asked, **written}, (), N1))])
    assert room(state.ledger, "n1") == left
    state.ledger.withdraw(promise)
    assert room(state.ledger, "n1") == left
    apply(state, [PodGone(PodUid("a"))])
    assert room(state.ledger, "n1") == [1000, 1000]
