"""A task as the annotations that describe it: the way back from `parse_task`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from vramcast.task.task import FIELD_NAMES, Task
from vramcast.task.vocabulary import KEYS

# Placement does not change what a task uses, and profiles are stored separately.
_LEFT_OUT = frozenset({"share", "gpus", "max-oom-risk", "gpu-memory", "profile"})
_DEFAULTS = {field.name: field.default for field in fields(Task)}


def task_words(task: Task) -> dict[str, str]:
    """What the task runs, without prefix. `parse_task` reads the same task from it, unless it has a profile."""
    return {name: text for name, text in all_words(task).items() if name not in _LEFT_OUT}


def all_words(task: Task) -> dict[str, str]:
    """Every annotation without prefix. `parse_task` reads the same task from them."""
    values = {name: getattr(task, field_of(name)) for name in KEYS}
    return {
        name: word(value)
        for name, value in values.items()
        if value is not None and (value != _DEFAULTS[field_of(name)] or name == "batch-size")
    }


def field_of(name: str) -> str:
    """Of a Task, for an annotation."""
    return FIELD_NAMES.get(name, name.replace("-", "_"))


def word(value: Any) -> str:
    """As `parse_task` reads it. Memory is in MiB."""
    if isinstance(value, bool):
        return str(value).lower()
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
