"""What has been promised to whom, and what is only held until a pod's fate is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from vramcast.names import NodeName, PodUid, Product, Resource
from vramcast.placement.table import Ints, Mibs, Sweep
from vramcast.task.pod import Ask


@dataclass(frozen=True, slots=True)
class Demand:
    """What one pod wants: devices, and the memory on each by GPU product. No needs: an undescribed pod."""

    uid: PodUid
    pod: str
    ask: Ask
    needs_mib: Mapping[Product, int]


class State(StrEnum):
    """How sure a promise is. It counts in full in every state."""

    BINDING = "binding"  # our write is under way
    UNCONFIRMED = "unconfirmed"  # our write got no answer: it may still come through
    BOUND = "bound"  # the API server has it


@dataclass(frozen=True, slots=True)
class Promise:
    """Memory on the GPUs of one node. `gpu_indices` is empty where it is not known which GPUs they are."""

    uid: PodUid
    pod: str
    node: NodeName
    resource: Resource
    count: int
    need_mib: int | None  # None: an undescribed pod
    gpu_indices: tuple[int, ...]
    state: State
    made_at: float


@dataclass(frozen=True, slots=True)
class Hold:
    """A pod's need, on every node that it was told is feasible. Shapes: (nodes,), `gpus` (count, nodes)."""

    uid: PodUid
    pod: str
    resource: Resource
    columns: Ints
    gpus: Ints
    needs_mib: Mibs
    expires_at: float
    sweep: Sweep  # what its nodes were chosen by
    layout: int  # of the board then: which node has which column
