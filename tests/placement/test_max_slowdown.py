"""The annotation max-slowdown, of the pod that comes and of the pods that are there."""

from __future__ import annotations

from dataclasses import replace

from tests.placement.builders import A100, GivenForecaster, bound, demand, ledger_of, reason, sharing_node, take

from vramcast.names import PodUid
from vramcast.placement.changes import PodSeen, UtilizationSeen
from vramcast.placement.interference import Load
from vramcast.placement.promises import Demand, Promise
from vramcast.placement.reasons import Reason
from vramcast.placement.state import ClusterState
from vramcast.task.pod import read_pod
from vramcast.task.vocabulary import PREFIX

HEAVY = Load(1.0, 0.9)


def wanting(uid: str, load: Load, need_mib: int = 8_000, count: int = 1) -> Demand:
    return replace(demand(uid, need_mib, count), loads={A100: load})


def there(uid: str, load: Load, gpu: int) -> Promise:
    return replace(bound(uid, "node", 10_000, gpu), load=load)


def test_a_pod_that_would_be_slowed_too_much_is_kept_off_with_its_own_reason() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    ledger.promise(there("heavy", HEAVY, 0))
    assert reason(ledger, wanting("a", replace(HEAVY, most_slowdown=1.3)), "node") is Reason.TOO_SLOW
    assert reason(ledger, wanting("b", HEAVY), "node") is Reason.FITS


def test_memory_comes_before_slowdown_in_the_reason() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    ledger.promise(there("heavy", HEAVY, 0))
    assert reason(ledger, wanting("a", replace(HEAVY, most_slowdown=1.3), 35_000), "node") is Reason.NO_ROOM


def test_a_pod_with_a_limit_takes_the_gpu_that_keeps_it() -> None:
    ledger = ledger_of(sharing_node("node", 40_000, 40_000))
    ledger.promise(there("heavy", HEAVY, 0))
    assert take(ledger, wanting("a", replace(HEAVY, most_slowdown=1.3)), "node").gpu_indices == (1,)


def test_a_newcomer_without_a_limit_may_not_break_that_of_a_neighbour() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    take(ledger, wanting("first", replace(HEAVY, most_slowdown=1.3)), "node")
    assert reason(ledger, wanting("a", HEAVY), "node") is Reason.TOO_SLOW
    assert reason(ledger, wanting("b", Load(0.1, 0.1)), "node") is Reason.FITS


def test_the_limit_of_a_pod_ends_with_it() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    take(ledger, wanting("first", replace(HEAVY, most_slowdown=1.3)), "node")
    ledger.forget(PodUid("first"))
    assert reason(ledger, wanting("a", HEAVY), "node") is Reason.FITS


def test_bind_checks_the_limit_again() -> None:
    """Two pods may pass filter at once. Holds are not counted as neighbours, so bind refuses the second."""
    ledger = ledger_of(sharing_node("node", 40_000))
    limited = replace(HEAVY, most_slowdown=1.3)
    assert reason(ledger, wanting("a", limited), "node") is Reason.FITS
    assert reason(ledger, wanting("b", limited), "node") is Reason.FITS
    take(ledger, wanting("a", limited), "node")
    assert ledger.assign(wanting("b", limited), bound("b", "node", 0).node, 1.0) is Reason.TOO_SLOW


def test_each_gpu_of_a_pod_keeps_the_limit() -> None:
    ledger = ledger_of(sharing_node("node", 40_000, 40_000))
    ledger.promise(there("heavy", HEAVY, 0))
    assert reason(ledger, wanting("a", replace(HEAVY, most_slowdown=1.3), count=2), "node") is Reason.TOO_SLOW


def test_what_telemetry_shows_of_a_pod_alone_replaces_its_forecast() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    ledger.promise(there("quiet", HEAVY, 0))
    wanted = wanting("a", replace(HEAVY, most_slowdown=1.3))
    assert reason(ledger, wanted, "node") is Reason.TOO_SLOW
    ledger.set_busy(PodUid("quiet"), 0.05)
    assert reason(ledger, wanted, "node") is Reason.FITS


def test_memory_that_telemetry_shows_at_work_counts_although_the_gpu_is_as_busy_as_forecast() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    ledger.promise(there("calm", HEAVY, 0))
    ledger.set_busy(PodUid("calm"), HEAVY.busy, 0.01)
    assert reason(ledger, wanting("a", replace(HEAVY, most_slowdown=1.3)), "node") is Reason.FITS


def test_the_next_pod_with_the_same_task_presses_as_the_first_was_seen_to() -> None:
    state = ClusterState(ledger_of(sharing_node("node", 40_000, 40_000)), GivenForecaster(), assumed_utilization=0.8)
    annotations = {PREFIX + "gpu-memory": "8Gi", PREFIX + "share": "true"}
    first, second = (read_pod(PodUid(uid), "ml", uid, annotations, ()) for uid in ("first", "second"))
    state.apply(PodSeen(first))
    wanted = state.demand(first)
    assert wanted is not None
    take(state.ledger, wanted, "node")
    state.apply(UtilizationSeen(PodUid("first"), 0.1))
    later = state.demand(second)
    assert later is not None
    assert (wanted.loads[A100].busy, later.loads[A100].busy) == (0.8, 0.1)


def test_a_shared_gpu_does_not_tell_which_of_its_pods_is_busy() -> None:
    ledger = ledger_of(sharing_node("node", 40_000))
    ledger.promise(there("one", HEAVY, 0))
    ledger.promise(there("two", Load(0.1, 0.1), 0))
    ledger.set_busy(PodUid("one"), 0.05)
    assert reason(ledger, wanting("a", replace(HEAVY, most_slowdown=1.3)), "node") is Reason.TOO_SLOW
