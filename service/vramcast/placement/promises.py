"""What a pod demands, and what has been promised to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vramcast.names import NodeName, PodUid, Product, Resource
from vramcast.placement.interference import IDLE, Load
from vramcast.task.pod import Ask


@dataclass(frozen=True, slots=True)
class Demand:
    """The devices that a pod wants, and the memory on each by GPU product. No needs: an undescribed pod."""

    uid: PodUid
    pod: str
    ask: Ask
    needs_mib: Mapping[Product, int]
    gang: str = ""  # the group of pods that it is placed with
    loads: Mapping[Product, Load] = field(default_factory=dict)  # by GPU product; what it does to its neighbours

    @property
    def largest_need_mib(self) -> int:
        return max(self.needs_mib.values(), default=0)


class State(StrEnum):
    """How certain a promise is. It counts in full in every state."""

    BINDING = "binding"  # our write is under way
    UNCONFIRMED = "unconfirmed"  # our write got no answer and may still succeed
    BOUND = "bound"  # the API server has it


@dataclass(frozen=True, slots=True)
class Promise:
    """Memory on the GPUs of one node. `gpu_indices` is empty where the GPUs are not known."""

    uid: PodUid
    pod: str
    node: NodeName
    resource: Resource
    count: int
    need_mib: int | None  # None: an undescribed pod
    gpu_indices: tuple[int, ...]
    state: State
    # When we made it, or when the read that showed it began. A list that began later, without the pod, ends it.
    made_at: float
    attempt: int = 0  # the bind attempt that this promise belongs to; 0: none of ours
    # The takeover's mark that the pod had at the last attempt. None: no other replica can bind it.
    mark: str | None = None
    load: Load = IDLE
