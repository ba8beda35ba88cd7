"""A bind reports a fate only if it is certain; otherwise it reports UNKNOWN."""

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
    answers,
    applies_then_resets,
    is_silent,
    resets,
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
    """Time advances only by waiting."""

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
    body = server.received("bind")[0].body
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
    ("pod", "script", "fate", "message"),
    [
        (pod_on(), [], Fate.BOUND, ""),
        # Final answers.
        (None, [], Fate.REFUSED, "404"),
        (pod_on(), [answers(400)], Fate.REFUSED, "400"),
        (pod_on(), [answers(422)], Fate.REFUSED, "422"),
        (pod_on(), [answers(403)], Fate.REFUSED, "'create' on 'pods/binding' in ClusterRole vramcast-extender"),
        # After a conflict the pod decides.
        (pod_on("n0"), [], Fate.BOUND, ""),
        (pod_on("n1"), [], Fate.REFUSED, "already on node n1"),
        (pod_on(uid="uid-other"), [], Fate.REFUSED, "does not exist any more"),
        (pod_on(deletionTimestamp="2026-01-01T00:00:00Z"), [answers(409)], Fate.REFUSED, "is being deleted"),
        (pod_on(), [answers(409, "has scheduling gates")], Fate.REFUSED, "has scheduling gates"),
        # Retries.
        (pod_on(), [answers(429), answers(429)], Fate.BOUND, ""),
        (pod_on(), [answers(500), answers(503)], Fate.BOUND, ""),
        (pod_on(), [resets], Fate.BOUND, ""),
        # The write was applied, but its answer was lost.
        (pod_on(), [applies_then_resets], Fate.BOUND, ""),
        (pod_on(), [applies_then_resets, *[answers(500)] * 9], Fate.BOUND, ""),
        (pod_on(), [applies_then_resets, answers(403)], Fate.BOUND, ""),
        # Unknown.
        (pod_on(), [answers(500)] * 9, Fate.UNKNOWN, "may still come through"),
        (pod_on(), [resets] * 9, Fate.UNKNOWN, "may still come through"),
        (pod_on(), [resets, answers(403)], Fate.UNKNOWN, "may still come through"),
        (pod_on(), [resets, *[answers(429)] * 9], Fate.UNKNOWN, "may still come through"),
        # The pod proves that the lost write cannot take effect.
        (None, [resets, *[answers(500)] * 9], Fate.REFUSED, "does not exist any more"),
        (pod_on("n1"), [answers(500)] * 9, Fate.REFUSED, "already on node n1"),
        (pod_on(uid="uid-other"), [resets] * 9, Fate.REFUSED, "does not exist any more"),
        (pod_on(deletionTimestamp="2026-01-01T00:00:00Z"), [resets] * 9, Fate.REFUSED, "is being deleted"),
        # A 429 is certain: the server did not process the request.
        (pod_on(), [answers(429)] * 9, Fate.REFUSED, "429"),
    ],
)
def test_the_fate_of_a_bind(server: FakeApiServer, pod: Any, script: list[Behaviour], fate: Fate, message: str) -> None:
    if pod is not None:
        server.put("pods", pod)
    result = bind_after(server, *script)
    assert result.fate is fate
    assert message in result.message


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
    """Nothing listens on the port, so nothing was sent."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        clock = Clock()
        result = bind(Transport(urllib3.PoolManager(), url, dict), WRITE, timing(clock))
    assert result.fate is Fate.REFUSED
    assert "no connection to the API server" in result.message
    assert clock.waited == [0.1, 0.2, 0.4]


def test_if_the_pod_cannot_be_read_the_fate_is_unknown(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    server.script("get pod", resets)
    assert bind_after(server, *[resets] * 9).fate is Fate.UNKNOWN
    server.script("get pod", answers(500))
    assert bind_after(server, answers(409)).fate is Fate.UNKNOWN


@pytest.mark.parametrize(
    ("silent_but_applies", "fate"), [(False, Fate.UNKNOWN), (True, Fate.BOUND)], ids=["lost", "applied"]
)
def test_a_silent_server_cannot_delay_past_the_deadline(
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
    assert len(server.received("bind")) == 1


def test_a_retry_after_beyond_the_deadline_is_not_awaited(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    server.script("bind", answers(429, Retry_After="30"))
    clock = Clock()
    assert bind(server.transport(), WRITE, timing(clock)).fate is Fate.REFUSED
    assert clock.waited == []


def test_tries_leave_time_to_read_the_pod(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    server.script("bind", *[answers(503)] * 20)
    clock = Clock()
    bind(server.transport(), WRITE, timing(clock))
    assert sum(clock.waited) <= 1.5 * 0.75


def bind_after_waiting(server: FakeApiServer, seconds: float, *script: Behaviour) -> tuple[BindResult, Clock]:
    """A bind that waited this long for a worker."""
    server.put("pods", pod_on())
    server.script("bind", *script)
    clock = Clock()
    write = replace(WRITE, deadline=clock.now + 1.5)
    clock.now += seconds
    return bind(server.transport(), write, timing(clock)), clock


@pytest.mark.parametrize("seconds", [1.2, 1.5, 60.0])
def test_a_bind_that_waited_past_its_deadline_is_not_written_and_certainly_refused(
    server: FakeApiServer, seconds: float
) -> None:
    result, _ = bind_after_waiting(server, seconds)
    assert result.fate is Fate.REFUSED
    assert "nothing was written" in result.message
    assert server.requests == []


def test_waiting_for_a_worker_is_part_of_the_deadline(server: FakeApiServer) -> None:
    result, clock = bind_after_waiting(server, 0.8, *[answers(429)] * 20)
    assert result.fate is Fate.REFUSED
    assert 0 < sum(clock.waited) <= 1.5 * 0.75 - 0.8


def test_a_bind_that_waited_a_little_is_written(server: FakeApiServer) -> None:
    assert bind_after_waiting(server, 1.0)[0] == BindResult(Fate.BOUND)


def bind_version(server: FakeApiServer, version: str, *script: Behaviour) -> BindResult:
    server.script("bind", *script)
    return bind(server.transport(), replace(WRITE, resource_version=version), timing(Clock()))


def test_a_binding_can_require_a_resource_version(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    bind_version(server, "7")
    assert server.received("bind")[0].body["metadata"]["resourceVersion"] == "7"


def test_a_changed_pod_is_refused_without_a_retry(server: FakeApiServer) -> None:
    server.put("pods", pod_on())
    result = bind_version(server, "never", answers(409))
    assert result.fate is Fate.REFUSED
    assert len(server.received("bind")) == 1


def test_after_a_lost_answer_a_changed_version_proves_the_refusal(
    server: FakeApiServer,
) -> None:
    server.put("pods", pod_on())
    result = bind_version(server, "never", resets, answers(409))
    assert (result.fate, result.message) == (Fate.REFUSED, "pod default/task has changed since it was filtered")
