"""Recorded training steps as what they ask of an allocator: for any batch, and with other workspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.allocator import GRAIN, CachingAllocator


@dataclass(frozen=True, slots=True)
class Replay:
    reserved_bytes: int
    peak_active_bytes: int


@dataclass(frozen=True, slots=True)
class Workspaces:
    """How many times over cuDNN keeps its copies, and whether in the forward pass too."""

    copies: int
    forward: bool = False


NO_WORKSPACE = Workspaces(0)


# Columns of a recorded event: bytes per sample, bytes whatever the batch, and the tensor: above 0 it is made, below 0
# freed, and 0 stands for a workspace, whose second column says whether it is the forward pass's.
COLUMNS = 3
Events = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Recording:
    """A network's training steps for any batch."""

    placed: Events
    warm_up: Events
    first: Events
    again: Events  # the second step; later ones are made from it
    tensors_before: int  # made before the second step
    tensors_made: int  # in the second step
    successors: Events  # of a tensor of the first step that the second frees: the one in its place that the third frees

    def program(self, batches: Sequence[int], warm_up_batch: int) -> Program:
        """Steps over these batches; `warm_up_batch` is a pass before training (a summary), 0 for none."""
        parts = [(self.placed, 1)]
        if warm_up_batch:
            parts.append((self.warm_up, warm_up_batch))
        parts += [(self._step(number), batch) for number, batch in enumerate(batches)]
        sizes = [
            np.where(part[:, 2] == 0, part[:, 0] * batch, part[:, 0] * batch + part[:, 1]) for part, batch in parts
        ]
        events = np.concatenate([part for part, _ in parts])
        return Program(np.concatenate(sizes), events[:, 2], (events[:, 2] == 0) & (events[:, 1] > 0))

    def _step(self, number: int) -> Events:
        if number < 2:
            return (self.first, self.again)[number]
        later = self.again.copy()
        tensor = np.abs(later[:, 2])
        shift = (number - 1) * self.tensors_made
        old = (tensor > 0) & (tensor <= self.tensors_before)
        moved = np.where(old, self.successors[np.where(old, tensor, 0)] + shift - self.tensors_made, tensor + shift)
        later[:, 2] = np.sign(later[:, 2]) * moved
        return later


@dataclass(frozen=True, slots=True)
class Program:
    """What steps ask of an allocator, so that they can be replayed with other workspaces; arrays over events."""

    sizes: Events
    tensors: Events
    forward: NDArray[np.bool_]

    def run(self, workspaces: Workspaces) -> Replay:
        """Reserved bytes at the end."""
        held_for_a_moment = self.tensors == 0
        sizes = np.where(held_for_a_moment, self.sizes * workspaces.copies, self.sizes)
        if not workspaces.forward:
            sizes[self.forward] = 0
        wanted = ~held_for_a_moment | (sizes > 0)
        allocator = CachingAllocator()
        allocator.replay(*_compiled(sizes[wanted], self.tensors[wanted]))
        return Replay(allocator.reserved_bytes, allocator.peak_active_bytes)


def _compiled(sizes: Events, tensors: Events) -> tuple[list[int], list[int]]:
    """As the allocator reads it. A tensor that is freed at once is held for a moment, like a workspace."""
    grains = -(-np.maximum(sizes, 1) // GRAIN)
    at_once = np.zeros(len(tensors), np.bool_)
    at_once[:-1] = (tensors[:-1] > 0) & (tensors[1:] == -tensors[:-1])
    grains[at_once | (tensors == 0)] *= -1
    grains[tensors < 0] = 0
    kept = np.ones(len(tensors), np.bool_)
    kept[1:] = ~at_once[:-1]
    return grains[kept].tolist(), np.abs(tensors[kept]).tolist()
