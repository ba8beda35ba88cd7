"""What finished runs took, by task: most jobs run again, and the last run says more about the next than any model.

Two levels, the more certain first:

    the same task       the peak of its last run
    the same network    runs at other batch sizes or lengths: a straight line through two batch sizes, or the forecast,
                        shifted by how far it was off there

The bound lies above that by how much such runs were seen to scatter: in published repeats at first, and in this
namespace's own runs once there are enough. OOMs, failures and stopped runs only say that a run needs at least so much.

Runs are facts, so they outlive the artifact. A namespace is one trust domain: its runs speak for its own tasks only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from vramcast.errors import InvalidTask
from vramcast.forecast.forecast import RISKS, Adjustment, Basis, Forecast
from vramcast.names import Product
from vramcast.outcomes.oom_history import ABOVE
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_scores import Floats, believable, upper_quantile
from vramcast.task.quantity import MIB, ceil_mib
from vramcast.task.run_point import RunPoint, run_point
from vramcast.task.run_status import Ending
from vramcast.task.task import Task, network_fingerprint, task_fingerprint

MOST_TASKS: Final = 10_000
KEPT_PEAKS: Final = 4
# How far above the anchor the next run may lie, as logarithms, at each of RISKS: docs/benchmarks/run-memory.md. Within
# a month a task repeats almost exactly. Later, libraries have changed.
_DAY: Final = 86_400.0
SCATTER_BY_AGE: Final = (
    (31 * _DAY, (0.0, 0.023, 0.045, 0.079, 0.118)),
    (61 * _DAY, (0.0, 0.067, 0.116, 0.174, 0.261)),
    (math.inf, (0.0, 0.179, 0.179, 0.268, 0.402)),
)
SCATTER_OF_NETWORK: Final = (0.0, 0.043, 0.065, 0.216, 0.799)
# A namespace's own scatter replaces the published one as its tasks become this many.
_TRUSTED_TASKS: Final = 20
_SCATTER_RANGE: Final = (0.4, 3.0)  # of the published one
_WILD: Final = math.log(1.2)
_STEP_MARGIN: Final = 1.1
# How far beyond its two runs a line holds, by the size along which it runs. Attention may grow with the square.
_SIZES_AND_REACH: Final = (("batch", 2.0), ("length", 1.25), ("elements", 1.25))
# Of the same network, the runs nearest to the task count.
_MOST_RELATIVES: Final = 8
_LOG_RISKS: Final = tuple(math.log(risk) for risk in reversed(RISKS))

_FINGERPRINT: Final = 12  # hexadecimal digits: enough to tell ten thousand tasks apart, and half as much to store

Forecasts = Callable[[Task], Forecast]
Scatter = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TaskHere:
    namespace: str
    product: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Remembered:
    """One task. `surprise`: log(last peak / what memory said).

    `peaks_mib`: of its last whole runs, newest last. A run that died of OOM counts with what it needed at least.
    """

    key: TaskHere
    network: str
    point: RunPoint
    peaks_mib: tuple[int, ...] = ()
    runs: int = 0
    floor_mib: int = 0
    surprise: float | None = None
    last_at: float = 0.0  # seconds since the epoch
    died: bool = False  # the last run, of OOM

    @property
    def speaks(self) -> bool:
        """After an OOM the artifact does, until the next whole run."""
        return bool(self.peaks_mib) and not self.died

    @property
    def anchor_mib(self) -> int:
        """The last run, unless it is wild: then the middle one of three. Of two, nobody can tell which is wild."""
        last, usual = self.peaks_mib[-1], median(self.peaks_mib[-3:])
        if abs(math.log(last / usual)) <= _WILD:
            return last
        return round(usual) if len(self.peaks_mib) > 2 else max(self.peaks_mib)

    @property
    def largest_step(self) -> float:
        """A job that grows from run to run keeps growing."""
        steps = [math.log(later / earlier) for earlier, later in zip(self.peaks_mib, self.peaks_mib[1:], strict=False)]
        return max(0.0, *steps) if steps else 0.0


class RunMemory:
    """Belongs to one thread, except for `recall`. `wall`: seconds since the epoch."""

    def __init__(self, wall: Callable[[], float], most: int = MOST_TASKS) -> None:
        self.revision = 0
        self.disbelieved = 0  # runs whose peak was too far from any forecast
        self._wall = wall
        self._most = most
        self._tasks: dict[TaskHere, Remembered] = {}  # in the order of the last run
        self._relatives: dict[tuple[str, str, str], dict[TaskHere, None]] = {}
        self._surprises: dict[str, dict[TaskHere, float]] = {}  # by namespace
        self._margins: dict[str, dict[tuple[Scatter, float], float]] = {}  # by namespace, until its next run

    def __len__(self) -> int:
        return len(self._tasks)

    # ------------------------------------------------------------------ learning

    def record(self, outcome: Outcome, task: Task) -> None:
        """Once per measured run."""
        key = _here(outcome.pod.partition("/")[0], outcome.product, task)
        if outcome.peak_bytes <= 0 or not believable(outcome):
            self.disbelieved += 1
            return
        before = self._tasks.get(key) or Remembered(key, _network(task), run_point(task))
        self._put(_after(before, outcome))
        self.revision += 1

    def _put(self, task: Remembered) -> None:
        self._drop(task.key)
        self._tasks[task.key] = task
        self._relatives.setdefault(_relation(task), {})[task.key] = None
        if task.surprise is not None:
            self._surprises.setdefault(task.key.namespace, {})[task.key] = task.surprise
        self._margins.pop(task.key.namespace, None)
        if len(self._tasks) > self._most:
            self._drop(next(iter(self._tasks)))

    def _drop(self, key: TaskHere) -> None:
        gone = self._tasks.pop(key, None)
        if gone is None:
            return
        relatives = self._relatives[_relation(gone)]
        del relatives[key]
        if not relatives:
            del self._relatives[_relation(gone)]
        if gone.surprise is not None:
            del self._surprises[key.namespace][key]
            self._margins.pop(key.namespace, None)

    # ------------------------------------------------------------------ recalling

    def recall(self, task: Task, product: Product, forecast: Forecast, at: Forecasts) -> Adjustment | None:
        """How runs here move the artifact's forecast; None: nothing like it has run. `at`: of the same network."""
        key = _here(task.namespace, product, task)
        own = self._tasks.get(key)
        if own is not None and own.speaks:
            age = self._wall() - own.last_at
            scatter = next(scatter for limit, scatter in SCATTER_BY_AGE if age <= limit)
            spread = max(self._margin(key.namespace, scatter, forecast.risk), _STEP_MARGIN * own.largest_step)
            return _adjustment(forecast, own.anchor_mib, spread, own.floor_mib, Basis.SAME_TASK, own.runs)
        floor_mib = own.floor_mib if own is not None else 0
        relatives = self._nearest(task, key)
        if not relatives:
            return None
        point = run_point(task)
        found = _on_line(relatives, point) or _shifted(relatives, task, forecast, at)
        if found is None:
            return None
        expected_mib, disagreement = found
        spread = max(self._margin(key.namespace, SCATTER_OF_NETWORK, forecast.risk), disagreement)
        floor_mib = max([floor_mib, *(r.anchor_mib for r in relatives if r.point.within(point))])
        runs = sum(relative.runs for relative in relatives)
        return _adjustment(forecast, expected_mib, spread, floor_mib, Basis.SAME_NETWORK, runs)

    def floor_mib(self, task: Task, product: Product) -> int:
        """What a run of this task is known to need at least."""
        own = self._tasks.get(_here(task.namespace, product, task))
        return own.floor_mib if own is not None else 0

    def _nearest(self, task: Task, key: TaskHere) -> list[Remembered]:
        family = self._relatives.get((key.namespace, key.product, _network(task)), {})
        point = run_point(task)
        # Another thread may drop one meanwhile.
        known = [found for each in list(family) if each != key and (found := self._tasks.get(each)) is not None]
        return sorted((r for r in known if r.speaks), key=lambda r: r.point.distance(point))[:_MOST_RELATIVES]

    def _margin(self, namespace: str, scatter: Scatter, risk: float) -> float:
        margins = self._margins.setdefault(namespace, {})
        known = margins.get((scatter, risk))
        if known is None:
            published = scatter_at(scatter, risk)
            own = self._surprises.get(namespace, {}) if scatter is not SCATTER_OF_NETWORK else {}
            known = margins[scatter, risk] = _blended(published, np.array(list(own.values())), risk)
        return known

    # ------------------------------------------------------------------ over a restart

    def tasks(self) -> Iterator[Remembered]:
        """The longest unused first."""
        return iter(list(self._tasks.values()))

    def put(self, tasks: Sequence[Remembered]) -> None:
        """Replace everything."""
        self._tasks.clear()
        self._relatives.clear()
        self._surprises.clear()
        self._margins.clear()
        for task in tasks[-self._most :]:
            self._put(task)
        self.revision += 1


def scatter_at(scatter: Scatter, risk: float) -> float:
    """Interpolated linearly in log(risk)."""
    return float(np.interp(math.log(risk), _LOG_RISKS, scatter[::-1]))


def _here(namespace: str, product: Product, task: Task) -> TaskHere:
    return TaskHere(namespace, str(product), task_fingerprint(task)[:_FINGERPRINT])


def _network(task: Task) -> str:
    return network_fingerprint(task)[:_FINGERPRINT]


def _after(before: Remembered, outcome: Outcome) -> Remembered:
    peak_mib = ceil_mib(outcome.peak_bytes)
    if outcome.ending is Ending.OOM:
        floor_mib = max(before.floor_mib, math.ceil(peak_mib * ABOVE))
        # Of several in a row, the last says the most. Forgotten, a job that dies every other time would go on dying.
        former = before.peaks_mib[:-1] if before.died else before.peaks_mib
        peaks_mib = (*former, floor_mib)[-KEPT_PEAKS:]
        return replace(before, peaks_mib=peaks_mib, floor_mib=floor_mib, surprise=None, died=True)
    if outcome.ending is not Ending.SUCCEEDED:
        return replace(before, floor_mib=max(before.floor_mib, peak_mib))
    surprise = round(math.log(peak_mib / before.anchor_mib), 4) if before.speaks else before.surprise
    peaks_mib = (*before.peaks_mib, peak_mib)[-KEPT_PEAKS:]
    runs, last_at = before.runs + 1, max(before.last_at, outcome.ended_at)
    return replace(before, peaks_mib=peaks_mib, runs=runs, floor_mib=0, surprise=surprise, last_at=last_at, died=False)


def _blended(published: float, surprises: Floats, risk: float) -> float:
    """One surprise per task, so that a single job cannot set the margin of others."""
    if len(surprises) < _TRUSTED_TASKS:
        return published
    reach = max(risk, 1.0 / (len(surprises) + 1.0))
    own = upper_quantile(surprises, np.zeros(len(surprises), dtype=np.bool_), reach)
    low, high = (share * published for share in _SCATTER_RANGE)
    trust = len(surprises) / (len(surprises) + _TRUSTED_TASKS)
    return min(max(trust * own + (1.0 - trust) * published, low), high)


def _relation(task: Remembered) -> tuple[str, str, str]:
    return task.key.namespace, task.key.product, task.network


def _shift(relative: Remembered, task: Task, at: Forecasts) -> float | None:
    """log(what the relative took / what the artifact says that it takes); None where it says nothing."""
    try:
        said_bytes = at(relative.point.of(task)).median_bytes
    except InvalidTask:
        return None
    return math.log(relative.anchor_mib * MIB / max(said_bytes, 1))


def _shifted(
    relatives: Sequence[Remembered], task: Task, forecast: Forecast, at: Forecasts
) -> tuple[float, float] | None:
    """The forecast, moved by what the relatives took: MiB, and how far they disagree, as a logarithm."""
    shifts = [shift for relative in relatives if (shift := _shift(relative, task, at)) is not None]
    if not shifts:
        return None
    return forecast.median_bytes * math.exp(median(shifts)) / MIB, max(shifts) - min(shifts)


def _on_line(relatives: Sequence[Remembered], point: RunPoint) -> tuple[float, float] | None:
    """Through the two nearest runs that differ from the task, and from each other, in one size only.

    MiB, and how far the next run lies off that line, as a logarithm. A step's memory grows in proportion to the batch,
    and nearly so to the length between two lengths that are known.
    """
    for size, reach in _SIZES_AND_REACH:
        alike = [r for r in relatives if r.point.differs_only_in(size, point)]
        known: dict[int, int] = {}
        for relative in alike:
            known.setdefault(relative.point.size(size), relative.anchor_mib)
        if len(known) < 2:
            continue
        nearest, others = list(known.items())[:2], list(known.items())[2:3]
        line = _Line(*sorted(nearest))
        if line.reaches(point.size(size), reach):
            disagreement = [abs(math.log(mib / line.at(there))) for there, mib in others if line.reaches(there, reach)]
            return line.at(point.size(size)), max(disagreement, default=0.0)
    return None


@dataclass(frozen=True, slots=True)
class _Line:
    """Through two runs: (size, MiB)."""

    start: tuple[int, int]
    end: tuple[int, int]

    def at(self, size: int) -> float:
        (low, low_mib), (high, high_mib) = self.start, self.end
        slope = (high_mib - low_mib) / (high - low)
        return max(low_mib + max(slope, 0.0) * (size - low), 0.5 * low_mib)

    def reaches(self, size: int, reach: float) -> bool:
        return self.start[0] / reach <= size <= self.end[0] * reach


def _adjustment(
    forecast: Forecast, expected_mib: float, spread: float, floor_mib: int, basis: Basis, runs: int
) -> Adjustment:
    bound_mib = max(expected_mib * math.exp(spread if forecast.risk < RISKS[0] else 0.0), floor_mib)
    return Adjustment(
        median=round(expected_mib * MIB / forecast.median_bytes, 4),
        bound=round(bound_mib * MIB / forecast.bound_bytes, 4),
        outcomes=runs,
        basis=basis,
    )
