"""How busy tasks kept a GPU of their own, as telemetry saw it. The next pod with the same task presses as hard.

What a namespace saw of a task itself counts first. Then what others saw of it: the middle one, and a single one only if
it presses harder than forecast, because a description that is not true must not pack the pods of other namespaces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from vramcast.placement.interference import Load, pressure
from vramcast.task.task import Task, task_fingerprint
from vramcast.task.vocabulary import Level

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
# More tasks than a cluster runs in a month.
_MAX_TASKS = 5_000
# So many namespaces agree, and what they saw may also count less than the forecast.
_AGREED = 2


@dataclass(frozen=True, slots=True)
class Seen:
    """Shares of the time, 0 to 1."""

    busy: float
    memory: float | None  # None: not scraped

    @property
    def pressure(self) -> float:
        """To put sightings in order."""
        return pressure(self.busy, self.busy if self.memory is None else self.memory)


@dataclass(slots=True)
class _Sightings:
    """Of one task, by namespace. The middle one is found when they change, because filter asks for it."""

    by_namespace: dict[str, Seen]
    middle: Seen

    def put(self, namespace: str, seen: Seen) -> None:
        _put(self.by_namespace, namespace, seen)
        ordered = sorted(self.by_namespace.values(), key=lambda one: one.pressure)
        self.middle = ordered[len(ordered) // 2]


@dataclass(slots=True)
class SeenLoads:
    """Belongs to one thread. Lost on restart, and soon seen again."""

    _own: dict[Task, Seen] = field(default_factory=dict)
    _anybodys: dict[tuple[str, int], _Sightings] = field(default_factory=dict)

    def note(self, task: Task, seen: Seen) -> None:
        _put(self._own, task, seen)
        if task.level is not Level.GIVEN:
            key = _key(task)
            if key not in self._anybodys:
                _put(self._anybodys, key, _Sightings({}, seen))
            self._anybodys[key].put(task.namespace, seen)

    def correct(self, load: Load, task: Task) -> Load:
        """`load`: by the forecast."""
        if not self._own:
            return load
        own = self._own.get(task)
        if own is not None:
            return load.measured(own.busy, own.memory)
        # Two pods that only ask for as much memory have nothing else in common.
        others = self._anybodys.get(_key(task)) if task.level is not Level.GIVEN else None
        if others is None:
            return load
        middle = load.measured(others.middle.busy, others.middle.memory)
        return middle if len(others.by_namespace) >= _AGREED or middle.pressure > load.pressure else load


def _key(task: Task) -> tuple[str, int]:
    return task_fingerprint(task), task.gpus or 1


def _put(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """The oldest is dropped."""
    if key not in known and len(known) >= _MAX_TASKS:
        del known[next(iter(known))]
    known[key] = value
