"""Every kind of step that a walk may take, and when it is legal."""

from __future__ import annotations

from collections.abc import Callable

from tests.machine.choices import Kind
from tests.machine.replica import Replica
from tests.machine.walk import MAX_PENDING, Walk


def some(has: Callable[[Replica], object]) -> Callable[[Walk], bool]:
    return lambda walk: bool(walk.that(has))


def _may_restart(walk: Walk) -> bool:
    """A restart knows only the annotations. That nobody edits them is the admission policy's part."""
    return not walk.edited


def _may_edit(walk: Walk) -> bool:
    """Only where one replica has seen what the Binding wrote."""
    return bool(walk.bound()) and not walk.elected


def _may_fail_over_a_single(walk: Walk) -> bool:
    return walk.may_fail_over() and bool(walk.singles())


KINDS = (
    Kind("watch", some(lambda r: r.listing is None and r.unseen), Walk.watch, 3, needed=True),
    Kind("list arrives", some(lambda r: r.listing is not None), Walk.list_arrives, 3, needed=True),
    Kind("time passes", lambda _: True, Walk.time_passes, 1, needed=True),
    Kind("create", lambda walk: len(walk.pending()) < MAX_PENDING, Walk.create, 6, needed=True),
    Kind("end and show", Walk.bound, Walk.end_and_show, 2, needed=True),
    Kind("place", Walk.singles, Walk.place, 4, needed=True),
    Kind("gang", Walk.members, Walk.schedule_gang, 4, needed=True),
    Kind("answer", some(Replica.waiting), Walk.answer, 4, needed=True),
    Kind("answer all", some(Replica.waiting), Walk.answer_all, 3, needed=True),
    Kind("deliver", some(Replica.handled), Walk.deliver, 6, needed=True),
    Kind("land", lambda walk: bool(walk.api.late_writes), Walk.land, 4, needed=True),
    Kind("handle", some(Replica.waiting), Walk.handle, 3, "binds ends takeovers"),
    Kind("schedule", Walk.singles, Walk.schedule, 2, "binds ends takeovers"),
    Kind("place, unanswered", Walk.singles, Walk.place_unanswered, 4, "binds ends takeovers"),
    Kind("place again", Walk.singles, Walk.place_again, 3, "binds ends"),
    Kind("schedule twice", Walk.singles, Walk.schedule_twice, 3, "binds"),
    Kind("filter", Walk.singles, Walk.filter, 3, "holds takeovers"),
    Kind("bind", Walk.chosen, Walk.bind_chosen, 4, "holds takeovers"),
    Kind("nominate", Walk.chosen, Walk.nominate, 2, "holds"),
    Kind("fail", Walk.pending, Walk.fail, 1, "holds"),
    Kind("requeue", lambda _: True, Walk.requeue, 1, "holds"),
    Kind("delete", lambda walk: bool(walk.api.pods), Walk.delete, 2, "ends"),
    Kind("finish", Walk.bound, Walk.finish, 1, "ends"),
    Kind("edit bound", _may_edit, Walk.edit_bound, 1, "ends"),
    Kind("edit pending", Walk.pending, Walk.edit_pending, 1, "takeovers"),
    Kind("break watch", some(lambda r: r.listing is None), Walk.break_watch, 2, "ends"),
    Kind("resolve", lambda _: True, Walk.resolve, 1, "binds"),
    Kind("resolve, stale", lambda _: True, Walk.resolve_stale, 2, "ends"),
    Kind("resolve at once", lambda _: True, Walk.resolve_at_once, 3, "binds"),
    Kind("restart", _may_restart, Walk.restart, 1),
    Kind("poll", lambda walk: walk.elected and bool(walk.that(Replica.may_poll)), Walk.poll, 2, "ends"),
    Kind("heartbeat", lambda walk: walk.elected and walk.leader.may_poll(), Walk.heartbeat, 1),
    Kind("fail over", Walk.may_fail_over, Walk.fail_over, 2, "takeovers"),
    Kind("fail over, halfway", Walk.may_fail_over, Walk.fail_over_halfway, 2, "takeovers"),
    Kind("fail over, overtaken", _may_fail_over_a_single, Walk.fail_over_overtaken, 2, "takeovers"),
    Kind("fail over, unanswered", _may_fail_over_a_single, Walk.fail_over_unanswered, 2, "takeovers"),
    Kind("hand over, binding", _may_fail_over_a_single, Walk.hand_over_binding, 2, "takeovers"),
    Kind("hand over", Walk.may_fail_over, Walk.hand_over, 2, "takeovers"),
)
