"""How the recorder handles the gap that a restart of the API server leaves."""

from __future__ import annotations

from typing import Any, cast

import pytest

from .api import Api
from .history import Fault, History, NodeState, PodState
from .objects import T4, shared_pod, sharing_node
from .recorder import _Stream

Json = dict[str, Any]


class ScriptedLists:
    """Answers every list with the next scripted one."""

    def __init__(self, *answers: Json) -> None:
        self._answers = list(answers)

    def get(self, path: str) -> Json:
        return self._answers.pop(0)

    def new_pool(self, connections: int) -> None:
        return None


def listing(revision: int, *items: Json) -> Json:
    return {"metadata": {"resourceVersion": str(revision)}, "items": items}


def bound(name: str, revision: int, gib: int, phase: str = "Running") -> Json:
    pod = shared_pod(name, f"{gib}Gi", annotations={"gpu-indices": "0", "reserved-memory": f"{gib}Gi"})
    pod["metadata"] |= {"uid": name, "resourceVersion": str(revision)}
    pod["spec"]["nodeName"] = "t4"
    return {**pod, "status": {"phase": phase}}


def faults_across_gap(before: Json, after: Json, gap_start: int) -> list[Fault]:
    node = sharing_node("t4", T4, count=1)
    node["metadata"] |= {"uid": "t4", "resourceVersion": "1"}
    nodes = _Stream(cast(Api, ScriptedLists(listing(1, node))), "/nodes", NodeState.of, None)
    pods = _Stream(cast(Api, ScriptedLists(before, after)), "/pods", PodState.of, None)
    nodes._list(None)
    pods._list(None)
    pods._list(gap_start)
    return [violation.fault for violation in History.of([*nodes.events, *pods.events]).violations()]


@pytest.mark.parametrize("others", [(), (bound("old", 14, 10, "Succeeded"),)], ids=["deleted", "finished"])
def test_memory_released_in_a_gap_may_have_been_reassigned_in_it(others: tuple[Json, ...]) -> None:
    before = listing(5, bound("old", 4, 10))
    after = listing(15, bound("new", 12, 10), *others)
    assert faults_across_gap(before, after, gap_start=5) == []


def test_an_overcommit_that_persists_after_a_gap_is_found() -> None:
    before = listing(5, bound("old", 4, 10))
    after = listing(15, bound("old", 4, 10), bound("new", 12, 10))
    assert faults_across_gap(before, after, gap_start=5) == [Fault.OVERCOMMIT]


def test_a_repeated_list_is_recorded_once() -> None:
    again = listing(5, bound("old", 4, 10))
    stream = _Stream(cast(Api, ScriptedLists(again, again)), "/pods", PodState.of, None)
    stream._list(None)
    stream._list(5)
    assert len(stream.events) == 1
