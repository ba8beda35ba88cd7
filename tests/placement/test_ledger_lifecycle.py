"""A pod's room from filter to bind to its end: held, promised, freed."""

from __future__ import annotations

from dataclasses import replace

from tests.placement.builders import bound, decide, demand, hold, ledger_of, reason, room, sharing_node, take

from vramcast.names import NodeName, PodUid
from vramcast.placement.promises import State
from vramcast.placement.reasons import Reason

N1, N2, A, B = NodeName("n1"), NodeName("n2"), PodUid("a"), PodUid("b")


def test_a_decision_does_not_change_the_ledger() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    decide(ledger, demand("a", 600), "n1")
    assert room(ledger, "n1") == [1000]


def test_a_pod_holds_its_need_on_every_feasible_node() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000), sharing_node("n3", 500))
    hold(ledger, demand("a", 600), "n1", "n2", "n3", "nowhere")
    assert [room(ledger, n) for n in ("n1", "n2", "n3")] == [[400], [400], [500]]
    assert reason(ledger, demand("b", 500), "n1") is Reason.HELD


def test_a_pods_own_hold_does_not_block_it() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    for now in range(3):
        hold(ledger, demand("a", 600), "n1", now=now)
    assert room(ledger, "n1") == [400]
    assert take(ledger, demand("a", 600), "n1").gpu_indices == (0,)


def test_a_node_listed_twice_is_held_once() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    hold(ledger, demand("a", 600), "n1", "n1")
    assert room(ledger, "n1") == [400]
    ledger.release_hold(A)
    assert room(ledger, "n1") == [1000]


def test_a_bind_turns_the_hold_into_one_promise() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    hold(ledger, demand("a", 600), "n1", "n2")
    take(ledger, demand("a", 600), "n1")
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([400], [1000])
    assert not ledger.holds


def test_a_bind_without_room_gets_a_reason_and_no_promise() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    hold(ledger, demand("a", 600), "n1")
    ledger.promise(bound("foreign", "n1", 900, 0))
    assert ledger.assign(demand("a", 600), N1, 1.0) is Reason.NO_ROOM
    assert ledger.promise_of(A) is None


def test_a_bind_to_a_deleted_node_gets_a_reason() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    ledger.drop_node(N1)
    assert ledger.assign(demand("a", 600), N1, 1.0) is Reason.UNKNOWN_NODE


def test_a_repeated_bind_gets_the_same_promise_and_leaves_no_hold() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    first = take(ledger, demand("a", 400), "n1")
    hold(ledger, demand("a", 400), "n1", "n2")
    second = take(ledger, demand("a", 400), "n1", now=9.0)
    assert replace(second, attempt=first.attempt) == first
    assert second.attempt != first.attempt
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([600], [1000])


def test_a_refused_bind_frees_the_room() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    ledger.withdraw(take(ledger, demand("a", 600), "n1"))
    assert room(ledger, "n1") == [1000]


def test_a_refused_attempt_leaves_the_promise_to_the_pods_other_attempts() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    first, second = (take(ledger, demand("a", 600), "n1") for _ in range(2))
    ledger.leave_unconfirmed(first, 1.0)
    ledger.withdraw(second)
    promise = ledger.promise_of(A)
    assert promise is not None
    assert promise.state is State.UNCONFIRMED
    assert [p.attempt for p in ledger.unconfirmed(1.0)] == [first.attempt]
    ledger.withdraw(first)
    assert room(ledger, "n1") == [1000]


def test_an_unconfirmed_bind_keeps_its_room_until_the_pods_node_is_known() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    ledger.leave_unconfirmed(take(ledger, demand("a", 600), "n1"), 1.0)
    take(ledger, demand("a", 600), "n2")
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([400], [400])
    ledger.promise(bound("a", "n2", 600, 0))
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([1000], [400])


def test_a_late_refusal_does_not_free_the_room_of_a_bound_pod() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    attempt = take(ledger, demand("a", 600), "n1")
    ledger.promise(bound("a", "n1", 600, 0))
    ledger.withdraw(attempt)
    ledger.leave_unconfirmed(attempt, 5.0)
    promise = ledger.promise_of(A)
    assert promise is not None
    assert promise.state is State.BOUND
    assert room(ledger, "n1") == [400]


def test_a_late_answer_for_a_deleted_pod_restores_nothing() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    attempt = take(ledger, demand("a", 600), "n1")
    ledger.forget(A)
    ledger.confirm(attempt, 5.0)
    ledger.promise(bound("a", "n1", 600, 0))
    assert ledger.promise_of(A) is None
    assert room(ledger, "n1") == [1000]


def test_a_bound_promise_outranks_a_newer_bind_attempt() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    ledger.confirm(take(ledger, demand("a", 600), "n1", now=1.0), 2.0)
    take(ledger, demand("a", 600), "n2", now=3.0)
    promise = ledger.promise_of(A)
    assert promise is not None
    assert promise.node == N1


def test_an_expired_hold_is_released_and_reported() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    hold(ledger, demand("a", 600), "n1", now=100.0)
    assert ledger.expire_holds(129.9) == []
    assert [h.uid for h in ledger.expire_holds(130.0)] == [A]
    assert room(ledger, "n1") == [1000]


def test_forget_reports_whether_the_pod_had_a_hold_or_a_promise() -> None:
    ledger = ledger_of(sharing_node("n1", 1000))
    assert not ledger.forget(PodUid("neither"))
    hold(ledger, demand("b", 600), "n1")
    assert ledger.forget(B)
    take(ledger, demand("a", 600), "n1")
    assert ledger.forget(A)
    assert room(ledger, "n1") == [1000]


def test_a_list_removes_older_entries_of_pods_that_it_omits() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    take(ledger, demand("a", 300), "n1", now=5.0)
    hold(ledger, demand("b", 300), "n2", now=5.0)
    assert set(ledger.forget_absent({PodUid("x")}, listed_at=10.0)) == {A, B}
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([1000], [1000])


def test_a_list_that_began_before_a_bind_or_hold_does_not_remove_it() -> None:
    ledger = ledger_of(sharing_node("n1", 1000), sharing_node("n2", 1000))
    take(ledger, demand("a", 300), "n1", now=11.0)
    hold(ledger, demand("b", 300), "n2", now=11.0)
    assert ledger.forget_absent(set(), listed_at=10.0) == []
    assert (room(ledger, "n1"), room(ledger, "n2")) == ([700], [700])
