"""A forecast, and how its bound keeps the stated risk: one-sided conformal factors.

A run's score is how many spreads it exceeded its median forecast by, in logarithms. The factor for a risk is the
quantile of the scores of runs that the model had not seen. Runs of one architecture err alike, so the quantile over all
runs says little about the next architecture. Where enough of them were measured, the factor must also suit most of them
one by one. A run killed by OOM has the score that its GPU's size implies, which is a lower limit. Cells are (product,
family, regime). A cell with too few scores is left out, and the next wider one is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Protocol

from vramcast.errors import InvalidTask
from vramcast.forecast.counters import Counter, CounterForecast
from vramcast.hardware.products import PRODUCTS
from vramcast.hardware.utilization import UNKNOWN_UTILIZATION, Utilization
from vramcast.names import Product
from vramcast.task.quantity import MIB
from vramcast.task.task import Task

_ADJUSTMENT_DIGITS = 4


class Source(StrEnum):
    """What a forecast rests on; a metric label, so the set is closed."""

    GIVEN = "given"
    PHYSICS = "physics"
    MODEL = "model"
    RECORDING = "recording"


@dataclass(frozen=True, slots=True)
class Part:
    """One addend of the explanation, with the numbers behind it."""

    name: str
    size_bytes: int
    because: str


class Basis(StrEnum):
    """Which of this cluster's runs moved a forecast."""

    CLUSTER = "cluster"  # of the same family on the same product
    SAME_NETWORK = "same-network"  # at other batch sizes or lengths
    SAME_TASK = "same-task"


@dataclass(frozen=True, slots=True)
class Adjustment:
    """How runs here moved a forecast: the artifact's median and bound were multiplied by these factors."""

    median: float = 1.0
    bound: float = 1.0
    outcomes: int = 0  # that the factors rest on
    basis: Basis = Basis.CLUSTER

    def __str__(self) -> str:
        """As written onto a pod, so that its run can be judged by the promise of its time."""
        digits = _ADJUSTMENT_DIGITS
        basis = "" if self.basis is Basis.CLUSTER else f",{self.basis}"
        return f"{self.median:.{digits}f},{self.bound:.{digits}f},{self.outcomes}{basis}"


UNADJUSTED = Adjustment()
CONTEXT_PART = "CUDA context"
_UNKNOWN_CONTEXT_MIB = 500


def parse_adjustment(text: str | None) -> Adjustment:
    """Never raises. Anybody may edit an annotation, so an unreadable one counts as absent."""
    try:
        median, bound, outcomes, *basis = (text or "").split(",")
        adjustment = Adjustment(float(median), float(bound), int(outcomes), *map(Basis, basis[:1]))
    except ValueError:
        return UNADJUSTED
    usable = all(math.isfinite(factor) and 0.01 <= factor <= 100.0 for factor in (adjustment.median, adjustment.bound))
    return adjustment if usable and adjustment.outcomes >= 0 else UNADJUSTED


@dataclass(frozen=True, slots=True)
class Forecast:
    """The memory that a task takes on one GPU of one product, as the driver reports it: context included."""

    product: Product
    median_bytes: int
    bound_bytes: int
    risk: float
    source: Source
    model_version: str
    parts: tuple[Part, ...] = ()
    assumptions: tuple[str, ...] = ()
    utilization: Utilization = UNKNOWN_UTILIZATION
    family: str = ""  # of the network, as calibration cells name it
    adjustment: Adjustment = UNADJUSTED  # already applied to median and bound
    # What torch's own counters will show, where recorded steps tell them apart.
    allocated: CounterForecast | None = None
    reserved: CounterForecast | None = None
    need_mib: int = field(init=False)  # what is promised: the bound in whole MiB

    def __post_init__(self) -> None:
        object.__setattr__(self, "need_mib", -(-self.bound_bytes // MIB))

    def counted(self, counter: Counter) -> CounterForecast:
        """As this counter will show it. A forecast without recorded steps knows the device's only."""
        known = {Counter.ALLOCATED: self.allocated, Counter.RESERVED: self.reserved}.get(counter)
        if known is not None:
            return known
        context = 0 if counter is Counter.DEVICE else self.context_bytes
        return CounterForecast(max(0, self.median_bytes - context), max(0, self.bound_bytes - context))

    @property
    def context_bytes(self) -> int:
        """Of one process. A number that a person gave has no parts, so its product's usual context counts."""
        usual_mib = PRODUCTS[self.product].context_mib if self.product in PRODUCTS else _UNKNOWN_CONTEXT_MIB
        return next((part.size_bytes for part in self.parts if part.name == CONTEXT_PART), usual_mib * MIB)


class Forecaster(Protocol):
    def forecast(self, task: Task, product: Product) -> Forecast: ...


# ------------------------------------------------------------------ bounds

RISKS = (0.5, 0.1, 0.05, 0.01, 0.001)
# The finite-sample correction keeps the risk with any number of scores, but fewer come from only one or two networks.
MIN_SCORES = 40
# One new group in so many may have a larger share of its runs above the bound than `_GROUP_RISKS` times the stated
# risk, or than a tenth: of a few dozen runs, no smaller share can be told. Groups of fewer scores say nothing about
# their own quantile, and fewer groups nothing about the next.
_GROUPS_MISSED = 0.1
_GROUP_RISKS = 2.75
_LEAST_GROUP_RISK = 0.1
_GROUP_SCORES = 10
_MIN_GROUPS = 20
# Anything narrower is rounding: one allocator block of a small run.
MIN_SPREAD = 0.0008
# From here on a forecast warns that the task is unlike the training data.
NOVEL = 0.5
NOVEL_MARGIN = 0.3
_ANY = "*"


@dataclass(frozen=True, slots=True)
class Cell:
    """The group of runs that a run is calibrated with."""

    product: str
    family: str
    knowledge: str

    def widening(self) -> Iterable[str]:
        yield f"{self.product}/{self.family}/{self.knowledge}"
        yield f"{self.product}/{_ANY}/{self.knowledge}"
        yield f"{_ANY}/{self.family}/{self.knowledge}"
        yield f"{_ANY}/{_ANY}/{self.knowledge}"
        yield f"{_ANY}/{_ANY}/{_ANY}"


@dataclass(frozen=True, slots=True)
class Factors:
    """By risk, the bound's distance from the median in spreads; `scores` is the number of runs behind it."""

    scores: int
    by_risk: Mapping[float, float]

    def margin(self, spreads: Spreads, risk: float) -> float:
        """In logarithms, interpolated linearly in log(risk). A lower risk never has a smaller margin."""
        risks = sorted(self.by_risk, reverse=True)
        margins = list(accumulate((spreads.at(known) * self.by_risk[known] for known in risks), max))
        clamped = min(max(risk, risks[-1]), risks[0])
        for (high, less), (low, more) in pairwise(zip(risks, margins, strict=True)):
            if clamped >= low:
                return less + math.log(high / clamped) / math.log(high / low) * (more - less)
        return margins[-1]


@dataclass(frozen=True, slots=True)
class Calibration:
    cells: Mapping[str, Factors]

    def factors(self, cell: Cell) -> Factors:
        """From the narrowest cell that has enough scores."""
        for key in cell.widening():
            found = self.cells.get(key)
            if found is not None:
                return found
        raise KeyError(f"no calibration for {cell}, not even a pooled one")


@dataclass(frozen=True, slots=True)
class Spreads:
    """Widths of the upper tail in logarithms, by risk; other risks use the nearest one."""

    by_risk: Mapping[float, float]

    def at(self, risk: float) -> float:
        nearest = min(self.by_risk, key=lambda known: abs(math.log(known) - math.log(max(risk, 1e-6))))
        return max(self.by_risk[nearest], MIN_SPREAD)


def bound(median_bytes: float, spreads: Spreads, factors: Factors, risk: float, novelty: float) -> float:
    """Never below the median. The further a task is from the training data, the wider its spread.

    Beyond `NOVEL` a fixed margin is added: where replays are exact the spread is nearly zero, and so is any multiple
    of it.
    """
    log_margin = factors.margin(spreads, risk) * (1.0 + novelty) + NOVEL_MARGIN * max(0.0, novelty - NOVEL)
    return median_bytes * math.exp(max(0.0, log_margin))


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run that was not trained on: by how many spreads it exceeded its median, at each risk's spread."""

    cell: Cell
    by_risk: Mapping[float, float]
    group: str  # architecture: runs of one err alike


def calibrate(scored: Iterable[ScoredRun]) -> Calibration:
    gathered: dict[str, list[ScoredRun]] = {}
    for one in scored:
        for key in one.cell.widening():
            gathered.setdefault(key, []).append(one)
    pooled = f"{_ANY}/{_ANY}/{_ANY}"
    return Calibration({
        key: Factors(len(scores), {risk: _factor(scores, risk) for risk in RISKS})
        for key, scores in gathered.items()
        if len(scores) >= MIN_SCORES or key == pooled
    })  # fmt: skip


def _factor(scored: Sequence[ScoredRun], risk: float) -> float:
    """Covers runs on the whole at this risk, and most groups on their own at a few times the risk."""
    own = [
        conformal_quantile(scores, min(0.5, max(_GROUP_RISKS * risk, _LEAST_GROUP_RISK)))
        for scores in _by_group(scored, risk).values()
        if len(scores) >= _GROUP_SCORES
    ]
    runs = conformal_quantile([one.by_risk[risk] for one in scored], risk)
    return max(runs, conformal_quantile(own, _GROUPS_MISSED)) if len(own) >= _MIN_GROUPS else runs


def _by_group(scored: Sequence[ScoredRun], risk: float) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for one in scored:
        groups.setdefault(one.group, []).append(one.by_risk[risk])
    return groups


def conformal_quantile(scores: Sequence[float], risk: float) -> float:
    """The score that a new run exceeds with probability at most `risk`; the largest if there are too few scores."""
    ordered = sorted(scores)
    rank = math.ceil((len(ordered) + 1) * (1.0 - risk))
    return ordered[min(rank, len(ordered)) - 1]


# ------------------------------------------------------------------ bounds that rise

# The learned trees jump up and down from one batch to the next. A bound that falls when the batch grows is of no use to
# somebody who wants the largest one that fits. So learned bounds are forecast at the powers of two, and lie on the
# straight line between them for every other size, or next to it.
_SIZES = ("batch_size", "sequence_length")
# A bound so near to the line stays as it is: small networks are forecast within less.
_CLOSE = 0.005


def steady_bound(task: Task, found: Forecast, forecast: Callable[[Task], Forecast]) -> Forecast:
    """`found` is the task's own forecast, and `forecast` makes the steady one of the same task at another size."""
    if found.source is not Source.MODEL:
        return found
    for name in _SIZES:
        try:
            around = [(share, forecast(other)) for share, other in _around(task, name)]
        except InvalidTask:
            continue  # the profile was made for this size only
        if around and all(other.source is found.source for _, other in around):
            line = sum(share * other.bound_bytes for share, other in around)
            steady = min(max(found.bound_bytes, (1 - _CLOSE) * line), (1 + _CLOSE) * line)
            return replace(found, bound_bytes=max(found.median_bytes, round(steady)))
    return found


def _around(task: Task, name: str) -> Iterator[tuple[float, Task]]:
    """The task at the powers of two below and above its size, with how much each counts; nothing at a power of two."""
    size = getattr(task, name)
    if size is None or size & (size - 1) == 0:
        return
    below = 1 << (size.bit_length() - 1)
    share = (size - below) / below
    yield 1 - share, replace(task, **{name: below})
    yield share, replace(task, **{name: 2 * below})
