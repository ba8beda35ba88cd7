"""How many GPUs the same pods would take, if they asked for what they need.

The pods are played again in the order in which they came. Each goes to the fullest GPU of its product that has room for
it, and stays there until it ends: nothing is moved. Memory and how busy the GPU is both have to fit, because pods that
share a GPU also share its time. A pod that cannot share has a GPU to itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

# Sums of shares must not fail by rounding.
_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, eq=False, slots=True)
class PackedPod:
    """One pod: from `start` to `end`, which is later, on `gpus` GPUs of a product.

    `memory` and `compute`: what it takes of each, from 0 to 1. `places`: the GPUs that it had.
    """

    product: str
    start: float
    end: float
    gpus: int
    memory: float = 1.0
    compute: float = 1.0
    places: tuple[tuple[str, str], ...] = ()

    @property
    def whole(self) -> bool:
        return self.memory >= 1.0 or self.compute >= 1.0


@dataclass(slots=True)
class Occupancy:
    """GPUs in use over time, as (time, GPUs from then on)."""

    changes: list[tuple[float, int]] = field(default_factory=list)

    @property
    def most(self) -> int:
        return max((count for _, count in self.changes), default=0)

    @property
    def busiest_at(self) -> float | None:
        return max(self.changes, key=lambda change: (change[1], -change[0]))[0] if self.changes else None

    @property
    def gpu_hours(self) -> float:
        pairs = zip(self.changes, self.changes[1:], strict=False)
        return sum(count * (later - at) for (at, count), (later, _) in pairs) / 3600.0

    def note(self, at: float, count: int) -> None:
        if self.changes and self.changes[-1][0] == at:
            self.changes[-1] = (at, count)
        else:
            self.changes.append((at, count))


def as_it_was(pods: Sequence[PackedPod]) -> Occupancy:
    """Different GPUs that had a pod. One that two pods used in the same step counts once."""
    used: dict[tuple[str, str], int] = {}
    occupancy = Occupancy()
    for at, starts, pod in _events(pods):
        for place in pod.places:
            used[place] = used.get(place, 0) + (1 if starts else -1)
            if not used[place]:
                del used[place]
        occupancy.note(at, len(used))
    return occupancy


@dataclass(eq=False, slots=True)
class _Gpu:
    """What is free of it, from 0 to 1, and its pods."""

    memory: float = 1.0
    compute: float = 1.0
    pods: int = 0

    def holds(self, pod: PackedPod) -> bool:
        return self.memory + _TOLERANCE >= pod.memory and self.compute + _TOLERANCE >= pod.compute

    def take(self, pod: PackedPod, sign: int) -> None:
        self.memory -= sign * min(pod.memory, 1.0)
        self.compute -= sign * min(pod.compute, 1.0)
        self.pods += sign


def packed(pods: Sequence[PackedPod]) -> Occupancy:
    pools: dict[str, list[_Gpu]] = {}
    where: dict[PackedPod, list[_Gpu]] = {}
    occupancy = Occupancy()
    for at, starts, pod in _events(pods):
        pool = pools.setdefault(pod.product, [])
        if starts:
            where[pod] = chosen = _choose(pool, pod)
        else:
            chosen = where.pop(pod)
        for gpu in chosen:
            gpu.take(pod, 1 if starts else -1)
            if not gpu.pods:
                pool.remove(gpu)
        occupancy.note(at, sum(map(len, pools.values())))
    return occupancy


def _choose(pool: list[_Gpu], pod: PackedPod) -> list[_Gpu]:
    """The fullest GPUs with room, and new ones for the rest."""
    room = [] if pod.whole else [gpu for gpu in pool if gpu.holds(pod)]
    chosen = sorted(room, key=lambda gpu: (gpu.memory, gpu.compute))[: pod.gpus]
    new = [_Gpu() for _ in range(pod.gpus - len(chosen))]
    pool += new
    return chosen + new


def _events(pods: Sequence[PackedPod]) -> list[tuple[float, bool, PackedPod]]:
    """Those that end at a time leave before others come; of those that come together, the largest is first."""
    events = [(pod.end, False, pod) for pod in pods] + [(pod.start, True, pod) for pod in pods]
    return sorted(events, key=lambda event: (event[0], event[1], -event[2].memory, -event[2].compute))
