"""What is said of a bind is certain, or says that it is not."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import urllib3

from tests.cluster.fake_apiserver import (
    Behaviour,
    Exchange,
    FakeApiServer,
    applies_then_resets,
    is_silent,
    resets,
    says,
)
from tests.cluster.manifests import shared_pod
from tests.cluster.watching import STEADY
from vramcast.cluster.binding import BindTiming, bind
from vramcast.cluster.seam import BindingWrite, BindResult, Fate
from vramcast.cluster.transport import Transport
from vramcast.names import NodeName, PodUid

ASSIGNMENT = {"vramcast.dev/gpu-indices": "3", "vramcast.dev/reserved-memory": "10Gi"}
WRITE = BindingWrite(PodUid("uid-task"), "default", "task", NodeName("n0"), ASSIGNMENT)


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


def timing(clock: Clock, deadline_seconds: float = 1.5) -> BindTiming:
    return BindTiming(deadline_seconds, STEADY, clock, clock.wait)


def pod_on(node: str | None = None, uid: str = "uid-task", **metadata: Any) -> dict[str, Any]:
    pod = shared_pod("task", uid=uid, **metadata)
    if node:
        pod["spec"]["nodeName"] = node
        pod["metadata"]["annotations"] |= ASSIGNMENT
    return pod


def bind_after(server: FakeApiServer, *script: Behaviour, deadline_seconds: float = 1.5) -> BindResult:
    server.script("bind", *script)
    return bind(server.transport(), WRITE, timing(Clock(), deadline_seconds))


def test_the_binding_carries_uid_node_and_assignment(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    assert bind_after(server) == BindResult(Fate.BOUND)
    body = server.asked("bind")[0].body
    assert body["metadata"] == {
        "name": "task",
        "namespace": "default",
        "uid": "uid-task",
        "annotations": ASSIGNMENT,
    }
    assert body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n0"}


def test_a_name_cannot_lead_to_another_resource(server: FakeApiServer) -> None:
    odd = BindingWrite(PodUid("u"), "default", "../../nodes/n0", NodeName("n0"), {})
    assert bind(server.transport(), odd, timing(Clock())).fate is Fate.REFUSED
    assert server.requests[0].path == "/api/v1/namespaces/default/pods/..%2F..%2Fnodes%2Fn0/binding"


@pytest.mark.parametrize(
    ("pod", "script", "fate", "said"),
    [
        (pod_on(), [], Fate.BOUND, ""),
        # An answer that is final.
        (None, [], Fate.REFUSED, "404"),
        (pod_on(), [says(400)], Fate.REFUSED, "400"),
        (pod_on(), [says(422)], Fate.REFUSED, "422"),
        (pod_on(), [says(403)], Fate.REFUSED, "'create' on 'pods/binding' in ClusterRole vramcast-extender"),
        # A conflict is settled by the pod.
        (pod_on("n0"), [], Fate.BOUND, ""),
        (pod_on("n1"), [], Fate.REFUSED, "already on node n1"),
        (pod_on(uid="uid-other"), [], Fate.REFUSED, "does not exist any more"),
        (pod_on(deletionTimestamp="2026-01-01T00:00:00Z"), [says(409)], Fate.REFUSED, "is being deleted"),
        (pod_on(), [says(409, "has scheduling gates")], Fate.REFUSED, "has scheduling gates"),
        # Tried again.
        (pod_on(), [says(429), says(429)], Fate.BOUND, ""),
        (pod_on(), [says(500), says(503)], Fate.BOUND, ""),
        (pod_on(), [resets], Fate.BOUND, ""),
        # It came through, only the answer was lost.
        (pod_on(), [applies_then_resets], Fate.BOUND, ""),
        (pod_on(), [applies_then_resets, *[says(500)] * 9], Fate.BOUND, ""),
        (pod_on(), [applies_then_resets, says(403)], Fate.BOUND, ""),
        # Nobody knows.
        (pod_on(), [says(500)] * 9, Fate.UNKNOWN, "may still come through"),
        (pod_on(), [resets] * 9, Fate.UNKNOWN, "may still come through"),
        (pod_on(), [resets, says(403)], Fate.UNKNOWN, "may still come through"),
        (pod_on(), [resets, *[says(429)] * 9], Fate.UNKNOWN, "may still come through"),
        # The pod proves that the lost write did nothing and will do nothing.
        (None, [resets, *[says(500)] * 9], Fate.REFUSED, "does not exist any more"),
        (pod_on("n1"), [says(500)] * 9, Fate.REFUSED, "already on node n1"),
        (pod_on(uid="uid-other"), [resets] * 9, Fate.REFUSED, "does not exist any more"),
        (pod_on(deletionTimestamp="2026-01-01T00:00:00Z"), [resets] * 9, Fate.REFUSED, "is being deleted"),
        # Certainly not executed: the server turned it away at the door.
        (pod_on(), [says(429)] * 9, Fate.REFUSED, "429"),
    ],
)
def test_fates(server: FakeApiServer, pod: Any, script: list[Behaviour], fate: Fate, said: str) -> None:
    if pod is not None:
        server.put("pods", pod)
    result = bind_after(server, *script)
    assert result.fate is fate
    assert said in result.message


def test_the_same_node_with_other_gpus_is_not_the_same_binding(server: FakeApiServer) -> None:
    pod = pod_on("n0")
    pod["metadata"]["annotations"]["vramcast.dev/gpu-indices"] = "5"
    server.put("pods", pod)
    result = bind_after(server)
    assert result.fate is Fate.REFUSED
    assert "another assignment" in result.message


def test_other_annotations_make_no_difference(server: FakeApiServer) -> None:
    server.put("pods", pod_on("n0"))
    write = BindingWrite(WRITE.uid, "default", "task", WRITE.node, {**ASSIGNMENT, "vramcast.dev/model-version": "2"})
    assert bind(server.transport(), write, timing(Clock())).fate is Fate.BOUND


def test_a_refused_connection_is_certain(server: FakeApiServer) -> None:
    """Nobody listens, so nothing can have been sent."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        clock = Clock()
        result = bind(Transport(urllib3.PoolManager(), url, dict), WRITE, timing(clock))
    assert result.fate is Fate.REFUSED
    assert "no connection to the API server" in result.message
    assert clock.waited == [0.1, 0.2, 0.4]


def test_a_pod_that_cannot_be_looked_at_settles_nothing(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    server.script("get pod", resets)
    assert bind_after(server, *[resets] * 9).fate is Fate.UNKNOWN
    server.script("get pod", says(500))
    assert bind_after(server, says(409)).fate is Fate.UNKNOWN


@pytest.mark.parametrize(
    ("silent_but_applies", "fate"), [(False, Fate.UNKNOWN), (True, Fate.BOUND)], ids=["lost", "applied"]
)
def test_a_server_that_says_nothing_is_not_waited_for_past_the_deadline(
    server: FakeApiServer, silent_but_applies: bool, fate: Fate
) -> None:
    def applies_silently(fake: FakeApiServer, exchange: Exchange) -> None:
        fake.apply_binding(exchange.request)
        is_silent(fake, exchange)

    server.put("pods", pod_on())
    behaviour: Callable[..., None] = applies_silently if silent_but_applies else is_silent
    server.script("bind", behaviour)
    result = bind(server.transport(), WRITE, BindTiming(deadline_seconds=0.3))
    assert result.fate is fate
    assert len(server.asked("bind")) == 1


def test_retry_after_past_the_deadline_is_not_waited_for(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    server.script("bind", says(429, Retry_After="30"))
    clock = Clock()
    assert bind(server.transport(), WRITE, timing(clock)).fate is Fate.REFUSED
    assert clock.waited == []


def test_tries_end_before_the_deadline_does(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    server.script("bind", *[says(503)] * 20)
    clock = Clock()
    bind(server.transport(), WRITE, timing(clock))
    assert sum(clock.waited) <= 1.5 * 0.75


def bind_version(server: FakeApiServer, version: str, *script: Behaviour) -> BindResult:
    server.script("bind", *script)
    return bind(server.transport(), replace(WRITE, resource_version=version), timing(Clock()))


def test_a_binding_can_name_the_version_that_it_is_for(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    bind_version(server, "7")
    assert server.asked("bind")[0].body["metadata"]["resourceVersion"] == "7"


def test_a_pod_that_has_changed_since_is_refused_for_good_and_not_tried_again(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    result = bind_version(server, "never", says(409))
    assert result.fate is Fate.REFUSED
    assert len(server.asked("bind")) == 1


def test_after_a_lost_answer_a_changed_version_proves_that_nothing_comes_through_any_more(
    server: FakeApiServer,
) -> None:
    server.put("pods", pod_on())
    result = bind_version(server, "never", resets, says(409))
    assert (result.fate, result.message) == (Fate.REFUSED, "pod default/task has changed since it was filtered")
