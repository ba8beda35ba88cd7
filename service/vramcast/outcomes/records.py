"""The latest measured runs with their tasks: training data for a model.

Their number and the size of their profiles are bounded; the oldest are dropped first. Nothing is stored: after a
restart they are measured again, if the API server still has the pods and Prometheus their history.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from vramcast.hardware.utilization import FORECAST_COUNTERS
from vramcast.outcomes.outcome import Outcome
from vramcast.task.task import Task
from vramcast.task.vocabulary import Level
from vramcast.task.words import task_words

MOST_PROFILE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class ObservedRun:
    outcome: Outcome
    task: Task

    @property
    def key(self) -> str:
        """Distinguishes runs without naming their owner."""
        return short_hash(self.outcome.uid)


class ObservedRuns:
    """Belongs to one thread. `most` 0: keep nothing."""

    def __init__(self, most: int, most_profile_bytes: int = MOST_PROFILE_BYTES) -> None:
        self._most, self._most_profile_bytes = most, most_profile_bytes
        self._runs: dict[str, ObservedRun] = {}
        self._profiles: dict[str, str] = {}  # shared by many runs
        self._uses: Counter[str] = Counter()
        self._profile_bytes = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, uid: str) -> bool:
        return uid in self._runs

    def __iter__(self) -> Iterator[ObservedRun]:
        """Oldest first."""
        return iter(list(self._runs.values()))

    @property
    def keeps(self) -> bool:
        return self._most > 0

    def add(self, outcome: Outcome, task: Task) -> None:
        """Once per pod. A task with only the user's own number describes no network, so it is left out."""
        if not self.keeps or outcome.uid in self._runs or task.level is Level.GIVEN:
            return
        if task.profile is not None:
            task = replace(task, profile=self._profiles.setdefault(task.profile, task.profile))
            self._use(task.profile, 1)
        self._runs[outcome.uid] = ObservedRun(outcome, task)
        while len(self._runs) > self._most or self._profile_bytes > self._most_profile_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        gone = self._runs.pop(next(iter(self._runs)))
        self._use(gone.task.profile, -1)

    def _use(self, profile: str | None, change: int) -> None:
        if profile is None:
            return
        before = self._uses[profile]
        self._uses[profile] = now = before + change
        self._profile_bytes += len(profile) * (bool(now) - bool(before))
        if not now:
            del self._uses[profile], self._profiles[profile]


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_json(run: ObservedRun, *, named: bool) -> dict[str, Any]:
    """`named`: include the pod's namespace and name."""
    outcome, task = run.outcome, run.task
    return {
        "run": run.key,
        "product": outcome.product,
        "level": outcome.level,
        "task": task_words(task),
        "profile": short_hash(task.profile) if task.profile else "",
        "shared": task.share,
        "ending": outcome.ending.value,
        "peak_bytes": outcome.peak_bytes,
        "promised_bytes": outcome.bound_bytes,
        "median_bytes": outcome.median_bytes,
        **{counter.value: outcome.utilization_observed.of(counter) for counter in FORECAST_COUNTERS},
        "ended_at": outcome.ended_at,
        "model_version": outcome.model_version,
        **({"pod": outcome.pod} if named else {}),
    }
