"""GPUs with fast links, for pods that take several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.placement.builders import bound, demand, ledger_of, room, sharing_node, take

from vramcast.names import NodeName
from vramcast.placement.gpus import LINKS, NodeGpus, read_node
from vramcast.placement.promises import Promise


def linked_node(*sizes_mib: int) -> NodeGpus:
    return replace(sharing_node("node", *sizes_mib), links=(range(2), range(2, 4)))


def test_two_gpus_come_from_one_group_although_others_are_fuller() -> None:
    ledger = ledger_of(linked_node(1000, 1000, 1000, 1000))
    ledger.promise(bound("a", "node", 400, 0))
    ledger.promise(bound("b", "node", 400, 2))
    assert take(ledger, demand("c", 500, 2), "node").gpu_indices in {(0, 1), (2, 3)}


def test_without_a_group_that_has_room_any_gpus_do() -> None:
    ledger = ledger_of(linked_node(1000, 1000, 1000, 1000))
    ledger.promise(bound("a", "node", 800, 0))
    ledger.promise(bound("b", "node", 800, 2))
    assert take(ledger, demand("c", 500, 2), "node").gpu_indices == (1, 3)


def test_the_fuller_of_two_groups_is_taken() -> None:
    ledger = ledger_of(linked_node(1000, 1000, 1000, 1000))
    ledger.promise(bound("a", "node", 200, 2))
    assert take(ledger, demand("b", 500, 2), "node").gpu_indices == (2, 3)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 700)), max_size=10))
def test_promises_on_linked_gpus_never_exceed_them(asked: list[tuple[int, int]]) -> None:
    ledger = ledger_of(linked_node(1000, 1000, 1000, 1000))
    for number, (count, need_mib) in enumerate(asked):
        taken = ledger.assign(demand(f"pod-{number}", need_mib, count), NodeName("node"), 0.0)
        if isinstance(taken, Promise):
            assert len(set(taken.gpu_indices)) == count
        assert min(room(ledger, "node")) >= 0


def test_links_are_read_from_the_node() -> None:
    labels = {"vramcast.dev/gpu-sharing": "true", "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "4"}
    node = read_node(NodeName("node"), labels, {LINKS: "0-1, 2-3"}, {})
    assert node.links == (range(2), range(2, 4))


@pytest.mark.parametrize("text", ["0", "1-0", "a-b", "0-99", "0-1;2-3"])
def test_links_that_cannot_be_read_are_a_problem_of_the_node(text: str) -> None:
    labels = {"vramcast.dev/gpu-sharing": "true", "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "4"}
    assert "expected groups of GPUs such as 0-3,4-7" in read_node(NodeName("node"), labels, {LINKS: text}, {}).problem
