"""The sizes at which a network runs. Runs of one network at other sizes say much about each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from vramcast.task.task import Task

_SIZES = ("batch", "length", "elements")


@dataclass(frozen=True, slots=True)
class RunPoint:
    """At which sizes a network ran. 0 stands for what the task leaves to the network."""

    batch: int
    length: int = 0
    elements: int = 0  # of one sample
    shape: tuple[int, ...] = ()

    def within(self, other: RunPoint) -> bool:
        """Nothing of it is larger."""
        return self.batch <= other.batch and self.length <= other.length and self.elements <= other.elements

    def differs_only_in(self, size: str, other: RunPoint) -> bool:
        """In `batch`, `length` or `elements`."""
        return all(self.size(each) == other.size(each) for each in _SIZES if each != size)

    def size(self, name: str) -> int:
        return int(getattr(self, name))

    def distance(self, other: RunPoint) -> float:
        """Sizes matter by their ratio, and other sizes of a sample more than other batches."""
        sample = abs(math.log((self.length + 1) / (other.length + 1)))
        sample += abs(math.log((self.elements + 1) / (other.elements + 1)))
        return abs(math.log(self.batch / other.batch)) + 10.0 * sample

    def of(self, task: Task) -> Task:
        """The same network at this point."""
        return _moved(task, self)


@lru_cache(maxsize=4096)  # asked for each relative whenever a task is forecast, and a copy of a task takes long
def _moved(task: Task, to: RunPoint) -> Task:
    return replace(task, batch_size=to.batch, sequence_length=to.length or None, input_size=to.shape or None)


def run_point(task: Task) -> RunPoint:
    shape = task.input_size or ()
    return RunPoint(max(task.batch_size, 1), task.sequence_length or 0, math.prod(shape) if shape else 0, shape)
