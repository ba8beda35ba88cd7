"""The parts of a recorded forecast: what is alive when the step needs the most memory, in words."""

from __future__ import annotations

from collections.abc import Iterator

from vramcast.forecast.forecast import Part
from vramcast.forecast.peaks import Peaks
from vramcast.forecast.sizes import Point, shown
from vramcast.forecast.tape import Role
from vramcast.task.quantity import MIB
from vramcast.task.vocabulary import Optimizer

ROLE_NAMES = {
    Role.WEIGHT: "weights", Role.FROZEN: "frozen weights", Role.BUFFER: "buffers", Role.INPUT: "input",
    Role.GRADIENT: "gradients", Role.STATE: "optimizer states", Role.SAVED: "saved activations",
    Role.TEMPORARY: "temporaries", Role.WORKSPACE: "library workspaces",
}  # fmt: skip
_ONE_OR_MORE = {
    Role.WEIGHT: ("that is trained", "that are trained"),
    Role.FROZEN: ("that is not trained", "that are not trained"),
}
_WHAT_FOR = {
    Role.BUFFER: "that the network keeps beside its weights",
    Role.INPUT: "of the batch",
    Role.GRADIENT: "for trained weights",
    Role.SAVED: "that the forward pass keeps for the backward pass",
    Role.TEMPORARY: "that only the operations around the peak use",
    Role.WORKSPACE: "of cuBLAS or for communication",
}
_GROW = frozenset({Role.INPUT, Role.SAVED, Role.TEMPORARY})


def peak_parts(found: Peaks, point: Point, optimizer: Optimizer | None) -> Iterator[Part]:
    """`optimizer`: None if the recorded loop ran its own."""
    for role, size_bytes in found.by_role.items():
        tensors = _tensors(role, found.storages_by_role[role], optimizer)
        at_point = f", at {shown(point)}" if point and role in _GROW else ""
        yield Part(ROLE_NAMES[role], size_bytes, f"{tensors}{at_point}; peak: {found.moment}")
    beyond = found.reserved_bytes - sum(found.by_role.values())
    why = f"blocks that are cached, or larger than their tensors, beyond {found.active_bytes / MIB:,.0f} MiB in use"
    yield Part("allocator", beyond, why)


def _tensors(role: Role, count: int, optimizer: Optimizer | None) -> str:
    if role is Role.STATE:
        what_for = f"that {optimizer or 'the optimizer'} keeps"
    elif role in _ONE_OR_MORE:
        what_for = _ONE_OR_MORE[role][count > 1]
    else:
        what_for = _WHAT_FOR[role]
    return f"{count:,} tensor{'s' if count > 1 else ''} {what_for}"
