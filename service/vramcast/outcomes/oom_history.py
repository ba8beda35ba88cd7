"""Runs that died of OOM and come back: the same owner, the same task, and a bound above what killed them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vramcast.outcomes.outcome import Ending, Outcome

# Above what killed it. A third death of a job that needs half as much again is rarer than a GPU half empty.
ABOVE = 1.2
# Jobs that die and come back are few; past this the one whose death is oldest is forgotten.
MAX_RETURNS = 500


@dataclass(frozen=True, slots=True)
class Death:
    """Who it was, and with how much it did not get by."""

    namespace: str
    owner: str  # Job/train-7, or Pod/name for a pod that nothing owns
    fingerprint: str
    short_bytes: int
    died_at: float  # seconds since the epoch

    @property
    def key(self) -> tuple[str, str, str]:
        return self.namespace, self.owner, self.fingerprint


class Returns:
    """`record` belongs to one thread, as does `floor_bytes`."""

    def __init__(self) -> None:
        self.revision = 0
        self._deaths: dict[tuple[str, str, str], Death] = {}

    def __len__(self) -> int:
        return len(self._deaths)

    def record(self, outcome: Outcome) -> None:
        if outcome.ending is not Ending.OOM:
            return
        namespace, _, name = outcome.pod.partition("/")
        key = (namespace, outcome.owner or f"Pod/{name}", outcome.fingerprint)
        before = self._deaths.pop(key, None)
        short = max(outcome.peak_bytes, outcome.bound_bytes, before.short_bytes if before else 0)
        self._put(Death(*key, short, outcome.ended_at))
        self.revision += 1

    def floor_bytes(self, namespace: str, name: str, owner: str, fingerprint: str) -> int:
        """What the pod must be promised at least; 0 for one that never died."""
        death = self._deaths.get((namespace, owner or f"Pod/{name}", fingerprint))
        return round(death.short_bytes * ABOVE) if death else 0

    def deaths(self) -> Iterator[Death]:
        """Oldest first."""
        return iter(list(self._deaths.values()))

    def put(self, deaths: Iterable[Death]) -> None:
        """In place of all that was known."""
        self._deaths = {}
        for death in deaths:
            self._put(death)
        self.revision += 1

    def _put(self, death: Death) -> None:
        self._deaths[death.key] = death
        if len(self._deaths) > MAX_RETURNS:
            del self._deaths[next(iter(self._deaths))]
