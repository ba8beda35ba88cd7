"""How busy tasks kept a GPU of their own, as telemetry saw it. The next pod with the same task presses as hard.

What a namespace saw of a task itself counts first. Then what others saw of it: the middle one, and a single one only if
it presses harder than forecast, because a description that is not true must not pack the pods of other namespaces.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from vramcast.placement.interference import Load
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


@dataclass(slots=True)
class SeenLoads:
    """Belongs to one thread. Lost on restart, and soon seen again."""

    _own: dict[Task, Seen] = field(default_factory=dict)
    _anybodys: dict[tuple[str, int], dict[str, Seen]] = field(default_factory=dict)  # by namespace

    def note(self, task: Task, seen: Seen) -> None:
        _put(self._own, task, seen)
        if task.level is not Level.GIVEN:
            key = _key(task)
            by_namespace = self._anybodys.get(key)
            if by_namespace is None:
                _put(self._anybodys, key, by_namespace := {})
            _put(by_namespace, task.namespace, seen)

    def correct(self, load: Load, task: Task) -> Load:
        """`load`: by the forecast."""
        if not self._own:
            return load
        own = self._own.get(task)
        if own is not None:
            return load.measured(own.busy, own.memory)
        # Two pods that only ask for as much memory have nothing else in common.
        others = self._anybodys.get(_key(task)) if task.level is not Level.GIVEN else None
        if not others:
            return load
        seen = sorted((load.measured(one.busy, one.memory) for one in others.values()), key=lambda one: one.pressure)
        middle = seen[len(seen) // 2]
        return middle if len(seen) >= _AGREED or middle.pressure > load.pressure else load


def _key(task: Task) -> tuple[str, int]:
    return task_fingerprint(task), task.gpus or 1


def _put(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """The oldest is dropped."""
    if key not in known and len(known) >= _MAX_TASKS:
        del known[next(iter(known))]
    known[key] = value
