"""What must hold: after every step, when everything has come to rest, and for every pod that still fits."""

from __future__ import annotations

from itertools import product

from tests.machine.api_server import Stored
from tests.machine.replica import Replica
from tests.machine.walk import FREE_MIB, Walk
from vramcast.controllers.maintenance import resolve_unconfirmed

# Holds, their rest and a nomination are over by then.
_ROUNDS = 45
_ROUND_SECONDS = 10.0


def check_promises(walk: Walk) -> None:
    for node in walk.nodes:
        given = sum(pod.given_mib for pod in walk.bound() if pod.node == node)
        assert given <= FREE_MIB, f"{given} MiB promised on {node}"


def come_to_rest(walk: Walk) -> None:
    """Every answer arrives, every event is delivered, every late write lands, and unconfirmed binds are resolved."""
    for write in list(walk.api.late_writes):
        walk.api.land(write)
    for replica in walk.replicas:
        if replica.listing is not None:
            replica.finish_list()
        _settle(walk, replica)
        check_promises(walk)
    walk.wait(200)
    for replica in walk.replicas:
        _settle(walk, replica)
        replica.service.expire_holds()
        replica.run(resolve_unconfirmed(replica.service))


def _settle(walk: Walk, replica: Replica) -> None:
    for _ in range(50):
        for call in list(replica.calls.open):
            walk.handle_call(call, "none")
            call.deliver()
        replica.watch(replica.unseen)
        replica.turn()
        if not replica.tasks and not replica.unseen:
            return
        walk.clock.now += 1  # filter's own wait ends
    raise AssertionError("something waits for ever")


def check_at_rest(walk: Walk) -> None:
    expected = {(pod.uid, str(pod.node), pod.given_mib) for pod in walk.bound()}
    alive = {pod.uid for pod in walk.api.unfinished()}
    for replica in walk.replicas:
        state = replica.service.state
        promised = {(p.uid, str(p.node), p.need_mib) for p in state.ledger.promises()}
        assert promised == expected, f"{replica.name} promised {promised}, the API server has {expected}"
        assert {entry.pod.uid for entry in state.unschedulable.due(float("inf"), 1000)} <= alive
        assert set(state.ledger.holds) <= alive
        assert state.pods.keys() <= alive


def check_progress(walk: Walk) -> None:
    """Every pod that fits is placed, even next to one that passes filter, once or again and again, and is not bound."""
    stuck, once = walk.pick([None, *walk.pending()]), walk.pick([False, True])
    for number in range(_ROUNDS):
        if not fitting(walk, stuck):
            return
        _schedule_all(walk, stuck, again=once and number > 0)
        walk.wait(_ROUND_SECONDS / 2)
        _schedule_all(walk, stuck, again=True)
        walk.wait(_ROUND_SECONDS / 2)
    raise AssertionError(f"starved: {fitting(walk, stuck)}")


def _schedule_all(walk: Walk, stuck: Stored | None, *, again: bool = False) -> None:
    """The stuck pod first, then one pod after another, then the gang. Maintenance requeues pods, but not the stuck."""
    alone = [[pod] for pod in walk.pending() if not pod.gang or (stuck and stuck.gang)]
    gang = [pod for pod in walk.pending() if pod.gang and not (stuck and stuck.gang)]
    for together in sorted([*alone, gang], key=lambda pods: stuck not in pods):
        if together != [stuck]:
            _schedule(walk, together, bind=True)
        elif not again:
            _schedule(walk, together, bind=False)
        check_promises(walk)


def _schedule(walk: Walk, pods: list[Stored], *, bind: bool) -> None:
    leader = walk.leader
    for pod in pods:
        leader.offered.pop(pod.uid, None)
        leader.run(leader.filter(pod))
    offers = [leader.offered.pop(pod.uid, []) for pod in pods]
    if not bind or not all(offers):
        return
    for pod, offered in zip(pods, offers, strict=True):
        leader.run(leader.bind(pod, offered[0]))
        leader.watch(leader.unseen)


def fitting(walk: Walk, stuck: Stored | None) -> list[Stored]:
    """Pods that some node has room for; a gang only if all its members fit at once."""
    free = {node: FREE_MIB - sum(p.given_mib for p in walk.bound() if p.node == node) for node in walk.nodes}
    pods = [pod for pod in walk.pending() if pod is not stuck]
    alone = [pod for pod in pods if not pod.gang and pod.need_mib <= max(free.values())]
    gang = [] if stuck and stuck.gang else [pod for pod in pods if pod.gang]
    return alone + (gang if _fit_together(gang, free) else [])


def _fit_together(pods: list[Stored], free: dict[str, int]) -> bool:
    for nodes in product(free, repeat=len(pods)):
        taken = {node: sum(pod.need_mib for pod, on in zip(pods, nodes, strict=True) if on == node) for node in free}
        if all(taken[node] <= free[node] for node in free):
            return True
    return False
