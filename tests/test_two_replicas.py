"""Orders of two replicas that once broke a promise, each as the machine found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes import FakeClock
from tests.machine.api_server import ApiServer
from tests.machine.replica import LOOP, Replica

NODES = ("a",)


@pytest.fixture
def api() -> ApiServer:
    LOOP.clock = clock = FakeClock()
    return ApiServer(clock)


@pytest.fixture
def replicas(api: ApiServer) -> Iterator[tuple[Replica, Replica]]:
    api.create("p", "10Gi", "")
    first, second = Replica("x", api, NODES, elected=True), Replica("y", api, NODES, elected=True)
    first.lead()
    yield first, second
    first.stop()
    second.stop()


def place(replica: Replica, name: str, fault: str = "none") -> None:
    pod = replica.api.pods[name]
    replica.run(replica.filter(pod))
    assert replica.offered[pod.uid] == ["a"]
    replica.spawn(replica.bind(pod, "a"))
    (call,) = replica.waiting()
    replica.api.begin_call(fault)
    call.deliver()
    replica.api.begin_call("none")
    replica.turn()


def promises(replica: Replica) -> dict[str, int | None]:
    return {promise.pod: promise.need_mib for promise in replica.service.state.ledger.promises()}


def test_what_the_next_leader_wrote_counts_not_what_the_former_leader_had_tried(
    api: ApiServer, replicas: tuple[Replica, Replica]
) -> None:
    """The need differs because the description was edited. Calibration or another GPU would do the same."""
    former, leader = replicas
    place(former, "p", "late")
    leader.lead()
    api.pods["p"].annotations["vramcast.dev/gpu-memory"] = "30Gi"
    api.store(api.pods["p"])
    leader.watch(leader.unseen)
    place(leader, "p")
    former.watch(former.unseen)
    assert promises(former) == promises(leader) == {"default/p": 30 * 1024}


def test_a_binding_that_arrived_before_the_takeover_counts_as_it_was_written(
    api: ApiServer, replicas: tuple[Replica, Replica]
) -> None:
    former, leader = replicas
    place(former, "p", "answer lost")
    leader.lead()
    former.watch(former.unseen)
    assert promises(former) == promises(leader) == {"default/p": 10 * 1024}


def test_a_binding_of_the_former_leader_does_not_arrive_after_the_takeover(
    api: ApiServer, replicas: tuple[Replica, Replica]
) -> None:
    former, leader = replicas
    place(former, "p", "late")
    leader.lead()
    (write,) = api.late_writes
    api.land(write)
    assert api.pods["p"].node is None
    assert promises(leader) == {}


def test_a_leader_does_not_repeat_what_it_tried_before_another_led(
    api: ApiServer, replicas: tuple[Replica, Replica]
) -> None:
    """The leader in between knew that the late Binding would be refused, and gave its room away."""
    first, second = replicas
    place(first, "p", "late")
    second.lead()
    api.create("q", "35Gi", "")
    place(second, "q")
    first.lead()
    assert promises(first) == {"default/q": 35 * 1024}
    first.run(first.filter(api.pods["p"]))
    assert first.offered[api.pods["p"].uid] == []
