"""Runs that died of OOM and come back: the same owner, the same task, and a bound above what killed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

# Above what killed it. A third death of a job that needs half as much again is rarer than a GPU half empty.
ABOVE = 1.2
# Jobs that die and come back are few; past this the one whose death is oldest is forgotten.
MAX_OOM_RECORDS = 500


@dataclass(frozen=True, slots=True)
class OomRecord:
    """Who it was, and with how much it did not get by."""

    namespace: str
    owner: str  # Job/train-7, or Pod/name for a pod that nothing owns
    fingerprint: str
    short_bytes: int
    died_at: float  # seconds since the epoch

    @property
    def key(self) -> tuple[str, str, str]:
        return self.namespace, self.owner, self.fingerprint


class OomHistory:
    """`record` belongs to one thread, as does `floor_bytes`."""

    def __init__(self) -> None:
        self.revision = 0
        self._records: dict[tuple[str, str, str], OomRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def record(self, outcome: Outcome) -> None:
        if outcome.ending is not Ending.OOM:
            return
        namespace, _, name = outcome.pod.partition("/")
        key = (namespace, outcome.owner or f"Pod/{name}", outcome.fingerprint)
        before = self._records.pop(key, None)
        short = max(outcome.peak_bytes, outcome.bound_bytes, before.short_bytes if before else 0)
        self._put(OomRecord(*key, short, outcome.ended_at))
        self.revision += 1

    def floor_bytes(self, namespace: str, name: str, owner: str, fingerprint: str) -> int:
        """What the pod must be promised at least; 0 for one that never died."""
        record = self._records.get((namespace, owner or f"Pod/{name}", fingerprint))
        return round(record.short_bytes * ABOVE) if record else 0

    def records(self) -> Iterator[OomRecord]:
        """Oldest first."""
        return iter(list(self._records.values()))

    def put(self, records: Iterable[OomRecord]) -> None:
        """In place of all that was known."""
        self._records = {}
        for record in records:
            self._put(record)
        self.revision += 1

    def _put(self, record: OomRecord) -> None:
        self._records[record.key] = record
        if len(self._records) > MAX_OOM_RECORDS:
            del self._records[next(iter(self._records))]


def oom_json(record: OomRecord) -> list[Any]:
    return [record.namespace, record.owner, record.fingerprint, record.short_bytes, round(record.died_at)]


def read_oom(values: Any) -> OomRecord:
    """Raises ValueError or TypeError."""
    namespace, owner, fingerprint, short_bytes, died_at = values
    return OomRecord(str(namespace), str(owner), str(fingerprint), int(short_bytes), float(died_at))
