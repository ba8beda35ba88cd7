"""What would make a task fit a GPU: every combination of options, the cheapest first, until enough of them fit.

Nothing is guessed: what is proposed was forecast, and fits. Nothing cheaper was missed: candidates are forecast in the
order of their cost. The one shortcut is that a combination is not forecast at all if it does not even fit with the
smallest batch, because bounds rise with the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from vramcast.advice.cost import Cost, Effect, cost_of, price_of_gpu
from vramcast.advice.options import ChangedTask, candidates
from vramcast.errors import FieldError, InvalidInput, InvalidTask
from vramcast.forecast.forecast import Forecast, Forecaster
from vramcast.forecast.report import usable_mib
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import KEYS, PREFIX, Level

MOST_PROPOSALS = 5
# Risks that somebody may accept who knows that a run can be started again.
_HIGHER_RISKS = (0.1, 0.2, 0.3, 0.5)
# A proposal that only does without one of these is not worth a line.
_TRIFLES = frozenset({"allocator", "gradient-accumulation"})
_NOT_COUNTED = "is not counted"


@dataclass(frozen=True, slots=True)
class Room:
    """A GPU and what may be taken of it: all that is usable, or what is free now."""

    product: Product
    mib: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change with which the task fits. `changed`: the annotations, empty if only the GPU is another."""

    task: Task
    changed: frozenset[str]
    forecast: Forecast
    room: Room
    cost: Cost


@dataclass(frozen=True, slots=True)
class GpuAdvice:
    """For one GPU. `smallest`: what needs least of all that was tried. `complete`: everything cheaper was tried."""

    task: Task
    room: Room
    forecast: Forecast
    proposals: tuple[Proposal, ...]
    smallest: Proposal
    fits_at_risk: float | None
    tried: int
    complete: bool

    @property
    def fits(self) -> bool:
        return self.forecast.need_mib <= self.room.mib

    @property
    def short_mib(self) -> int:
        """By how much the smallest that was tried misses; 0 if something fits."""
        return max(0, self.smallest.forecast.need_mib - self.room.mib)


def whole(product: Product) -> Room:
    """Raises InvalidInput if the product's memory is unknown."""
    usable = usable_mib(product)
    if usable is None:
        raise InvalidInput(f"GPU {product}: its memory is not known, so nothing can be advised for it")
    return Room(product, usable)


def parse_keep(names: Iterable[str]) -> frozenset[str]:
    """`batch-size,precision`. Raises InvalidInput."""
    keep = {name.strip().removeprefix(PREFIX).replace("_", "-") for text in names for name in text.split(",")} - {""}
    if unknown := sorted(keep - KEYS.keys()):
        raise InvalidInput(f"keep {unknown[0]!r}: no annotation has this name; expected some of {', '.join(KEYS)}")
    return frozenset(keep)


def advise(
    forecaster: Forecaster,
    task: Task,
    room: Room,
    keep: Collection[str] = (),
    others: Sequence[Room] = (),
    most_tried: int | None = None,
) -> GpuAdvice:
    """`others`: GPUs that may be used instead. `most_tried`: stop after so many forecasts, complete or not.

    Raises InvalidTask if the task itself cannot be forecast.
    """
    search = _Search(forecaster, task, room, most_tried)
    asked = search.forecast(task)
    if asked is None:
        raise InvalidTask([FieldError(f"{PREFIX}model", str(task.model), "the task cannot be forecast")])
    proposals: list[Proposal] = []
    if asked.need_mib > room.mib:
        known = [] if task.level is Level.GIVEN else search.run(candidates(task, room.product, keep))
        proposals = sorted([*known, *_elsewhere(forecaster, task, room, others)], key=lambda each: each.cost.points)
    smallest = search.smallest or Proposal(task, frozenset(), asked, room, cost_of(task, task))
    return GpuAdvice(
        task, room, asked, tuple(proposals[:MOST_PROPOSALS]), smallest, _accepted_risk(forecaster, task, room),
        search.tried, search.complete,
    )  # fmt: skip


@dataclass(slots=True)
class _Search:
    forecaster: Forecaster
    asked: Task
    room: Room
    most_tried: int | None
    tried: int = 0
    complete: bool = True
    smallest: Proposal | None = None
    _hopeless: dict[Task, bool] = field(default_factory=dict)

    def run(self, given: Iterable[ChangedTask]) -> list[Proposal]:
        """The cheapest that fit, each with changes that no cheaper one does with fewer of."""
        ordered = sorted(
            ((cost_of(self.asked, each.task), len(each.changed), each) for each in given),
            key=lambda found: (found[0].points, found[1]),
        )
        least_batch = _smallest_batches(each for _, _, each in ordered)
        found: list[Proposal] = []
        for cost, _, candidate in ordered:
            if any(better.changed - _TRIFLES <= candidate.changed for better in found):
                continue
            if len(found) == MOST_PROPOSALS or not self._may_try():
                break
            proposal = self._proposal(candidate, cost, least_batch)
            if proposal is not None:
                found.append(proposal)
        return found

    def _proposal(self, candidate: ChangedTask, cost: Cost, least_batch: dict[Task, ChangedTask]) -> Proposal | None:
        group = _without_batch(candidate.task)
        if group not in self._hopeless:
            least = least_batch[group]
            self._hopeless[group] = self._fitting(least, cost_of(self.asked, least.task)) is None
        return None if self._hopeless[group] else self._fitting(candidate, cost)

    def _fitting(self, candidate: ChangedTask, cost: Cost) -> Proposal | None:
        forecast = self.forecast(candidate.task)
        if forecast is None or any(_NOT_COUNTED in note for note in forecast.assumptions):
            return None
        proposal = Proposal(candidate.task, candidate.changed, forecast, self.room, cost)
        if self.smallest is None or forecast.need_mib < self.smallest.forecast.need_mib:
            self.smallest = proposal
        return proposal if forecast.need_mib <= self.room.mib else None

    def forecast(self, task: Task) -> Forecast | None:
        """None: the description does not allow it, such as the recording of a loop that decides a setting."""
        self.tried += 1
        try:
            return self.forecaster.forecast(task, self.room.product)
        except InvalidTask:
            if task == self.asked:
                raise
            return None

    def _may_try(self) -> bool:
        self.complete = self.most_tried is None or self.tried < self.most_tried
        return self.complete


def _without_batch(task: Task) -> Task:
    return replace(task, batch_size=1, gradient_accumulation=1)


def _smallest_batches(given: Iterable[ChangedTask]) -> dict[Task, ChangedTask]:
    least: dict[Task, ChangedTask] = {}
    for candidate in given:
        group = _without_batch(candidate.task)
        if group not in least or candidate.task.batch_size < least[group].task.batch_size:
            least[group] = candidate
    return least


def _elsewhere(forecaster: Forecaster, task: Task, room: Room, others: Sequence[Room]) -> list[Proposal]:
    """The smallest GPU that holds the task as it is."""
    for other in sorted(others, key=lambda each: each.mib):
        if other.mib <= room.mib:
            continue
        forecast = forecaster.forecast(task, other.product)
        if forecast.need_mib <= other.mib:
            effect: Effect = price_of_gpu(room.mib, other.mib)
            return [Proposal(task, frozenset(), forecast, other, Cost((effect,), task.data_parallel_size, 1.0))]
    return []


def _accepted_risk(forecaster: Forecaster, task: Task, room: Room) -> float | None:
    """The lowest usual risk at which the task fits as it is; None if it does not fit at even odds."""
    if task.level is Level.GIVEN:
        return None
    asked = forecaster.forecast(task, room.product)
    for risk in _HIGHER_RISKS:
        if risk <= asked.risk:
            continue
        if forecaster.forecast(replace(task, max_oom_risk=risk), room.product).need_mib <= room.mib:
            return risk
    return None
