"""Whatever happens to holds, the arrays show exactly what is held, and nothing stays behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.placement.builders import demand, sharing_node

from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, PodUid
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Demand

NODES = ("n0", "n1", "n2")
PODS = tuple(f"p{number}" for number in range(5))
GANGS = ("", "", "ml/one", "ml/one", "ml/two")
FREE_MIB = 1000

steps = st.lists(
    st.tuples(
        st.sampled_from(["filter", "filter", "nominate", "give_up", "release", "expire", "change", "forget", "bind"]),
        st.integers(0, len(PODS) - 1),
        st.integers(0, len(NODES) - 1),
        st.integers(0, 400),
        st.floats(0, 40, allow_nan=False),
    ),
    max_size=40,
)


def wanted(number: int, need_mib: int) -> Demand:
    made = demand(PODS[number], need_mib)
    return Demand(made.uid, made.pod, made.ask, made.needs_mib, GANGS[number])


def check(ledger: Ledger) -> None:
    table = ledger.board.tables[SHARED_GPU]
    held = np.zeros_like(table.held)
    for hold in ledger.holds.values():
        for gpus in hold.gpus:
            held[gpus, hold.columns] += hold.needs_mib
    assert (table.held == held).all()
    assert table.held_mib == int(held.sum())
    for name in NODES:
        (view,) = ledger.device_views(NodeName(name))
        promised = sum(promise.need_mib or 0 for promise in ledger.promises_on(NodeName(name)))
        assert view.room_mib == view.size_mib - promised - view.held_mib
        assert view.room_mib >= 0


@given(steps)
@settings(max_examples=200, deadline=None)
def test_the_arrays_show_what_is_held(taken: list[tuple[str, int, int, int, float]]) -> None:
    ledger = Ledger()
    for name in NODES:
        ledger.put_node(sharing_node(name, FREE_MIB))
    now = 0.0
    for step, pod, node, need_mib, seconds in taken:
        now += seconds
        name, uid = NodeName(NODES[node]), PodUid(PODS[pod])
        match step:
            case "filter":
                asked = wanted(pod, need_mib)
                ledger.expire_holds(now)
                ledger.start_over(asked, now)
                decision = ledger.decide(asked, ledger.board.columns(NODES))
                if decision.fits.any():
                    ledger.hold(ledger.offer_best(decision, 1) if asked.gang else decision, now)
                else:
                    ledger.give_up(asked, now)
            case "nominate":
                ledger.nominate(uid, name)
            case "give_up":
                ledger.give_up(wanted(pod, need_mib), now)
            case "release":
                ledger.release_hold(uid)
            case "expire":
                ledger.expire_holds(now)
            case "change":
                ledger.put_node(sharing_node(name, FREE_MIB + need_mib))
            case "forget":
                ledger.forget(uid)
            case "bind":
                ledger.assign(wanted(pod, need_mib), name, now)
        check(ledger)
    assert all(hold.expires_at <= now + 300 for hold in ledger.holds.values())
    ledger.expire_holds(now + 300)
    assert not ledger.holds
    check(ledger)
