"""Which tasks are the same: a job that comes back after an out-of-memory is known by this, and by its owner."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from vramcast.task.task import Task


def task_fingerprint(task: Task) -> str:
    """Of what the task runs; not of how it is placed, nor of the risk that it accepts."""
    what = replace(task, share=False, gpus=None, max_oom_risk=None, assumptions=())
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]
