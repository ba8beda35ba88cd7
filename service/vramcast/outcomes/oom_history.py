"""Tasks that ran out of GPU memory. When the same owner runs the same task again, it gets more than it died with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vramcast.outcomes.outcome import Outcome
from vramcast.task.quantity import ceil_mib
from vramcast.task.run_status import Ending
from vramcast.task.task import TaskKey, task_key

# More than it died with. A larger factor would leave GPUs half empty more often than it saves a second OOM.
ABOVE = 1.2
# Jobs that run again after an OOM are few. Beyond this, the oldest record is dropped.
MAX_OOM_RECORDS = 500


@dataclass(frozen=True, slots=True)
class OomRecord:
    """A task, and an amount of memory that was too little for it."""

    task: TaskKey
    short_bytes: int
    died_at: float  # seconds since the epoch


class OomHistory:
    """`floors_mib`: the least that each of these tasks may get. Belongs to one thread."""

    def __init__(self) -> None:
        self.revision = 0
        self.floors_mib: dict[TaskKey, int] = {}
        self._records: dict[TaskKey, OomRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def record(self, outcome: Outcome) -> None:
        if outcome.ending is not Ending.OOM:
            return
        namespace, _, name = outcome.pod.partition("/")
        task = task_key(namespace, name, outcome.owner, outcome.fingerprint)
        before = self._records.pop(task, None)
        short = max(outcome.peak_bytes, outcome.bound_bytes, before.short_bytes if before else 0)
        self._put(OomRecord(task, short, outcome.ended_at))
        self.revision += 1

    def records(self) -> Iterator[OomRecord]:
        """Oldest first."""
        return iter(list(self._records.values()))

    def put(self, records: Iterable[OomRecord]) -> None:
        """Replace everything."""
        self._records.clear()
        self.floors_mib.clear()
        for record in records:
            self._put(record)
        self.revision += 1

    def _put(self, record: OomRecord) -> None:
        self._records[record.task] = record
        self.floors_mib[record.task] = ceil_mib(round(record.short_bytes * ABOVE))
        if len(self._records) > MAX_OOM_RECORDS:
            oldest = next(iter(self._records))
            del self._records[oldest], self.floors_mib[oldest]


def oom_json(record: OomRecord) -> list[Any]:
    return [*record.task, record.short_bytes, round(record.died_at)]


def read_oom(values: Any) -> OomRecord:
    """Raises ValueError or TypeError."""
    namespace, owner, fingerprint, short_bytes, died_at = values
    return OomRecord((str(namespace), str(owner), str(fingerprint)), int(short_bytes), float(died_at))
