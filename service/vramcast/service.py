"""What the verbs and the controllers share. `app.build` makes it once; nothing in it is replaced afterwards.

Verbs and controllers run on one event loop. There is no await between reading the ledger and writing to it, so no
other call can come in between. That, and not a lock, is why nothing is promised twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from vramcast.cluster.seam import Cluster, PodEvent
from vramcast.errors import InvalidTask, NotSynced
from vramcast.forecast.forecaster import CalibratedForecaster
from vramcast.names import Product
from vramcast.observe.calibration import LearnedView
from vramcast.observe.metrics import Metrics
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_tracker import RunTracker
from vramcast.placement.changes import Change, PodSeen
from vramcast.placement.reasons import Reason
from vramcast.placement.state import ClusterState
from vramcast.settings import Mode, Settings
from vramcast.task.pod import PodRecord
from vramcast.task.task import Task
from vramcast.workers import Offload, Workers

log = structlog.get_logger("vramcast")

# Fills the forecaster's cache soon, on another thread.
ForecastAhead = Callable[[Task, Sequence[Product]], None]
# Learns from a measured run that was forecast. Called once per run, on the event loop.
Learn = Callable[[Outcome, Task], None]


class Leadership(Protocol):
    """Which replica decides. `fenced`: Bindings must carry a resourceVersion."""

    fenced: bool

    @property
    def leading(self) -> bool: ...

    async def await_lead(self) -> None:
        """For a scheduler that asks, and so must lead. Raises NotLeading if that is not confirmed soon."""
        ...

    def check(self) -> None:
        """Raises NotLeading. Read everything that a decision rests on before this."""
        ...


class NoElection:
    """The only replica always leads."""

    fenced = False
    leading = True

    async def await_lead(self) -> None: ...

    def check(self) -> None: ...


class News:
    """Wakes tasks that wait for the state to change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def spread(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, timeout_seconds: float) -> bool:
        """False on timeout."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout(timeout_seconds):
                await future
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(future)
        return True


class RightOfWay:
    """Work for people is done in short slices, and none begins while a call of the scheduler arrives.

    A large body arrives in several turns of the event loop. A slice in each of them would add up: with two open pages
    the slowest percent of filter calls took twice as long.
    """

    def __init__(self, most_wait_seconds: float = 0.02) -> None:
        self._most_wait_seconds = most_wait_seconds
        self._arriving = 0
        self._clear = News()

    @contextmanager
    def arriving(self) -> Iterator[None]:
        self._arriving += 1
        try:
            yield
        finally:
            self._arriving -= 1
            if not self._arriving:
                self._clear.spread()

    async def wait(self) -> None:
        """Between two slices. A body that never ends holds up each slice for a limited time."""
        # A call that has just arrived starts in the turn after the one in which its first bytes are read.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if self._arriving:
            await self._clear.wait(self._most_wait_seconds)


@dataclass(frozen=True, slots=True)
class Service:
    settings: Settings
    cluster: Cluster
    state: ClusterState
    forecaster: CalibratedForecaster
    tracker: RunTracker
    metrics: Metrics
    leadership: Leadership
    news: News
    workers: Workers
    clock: Callable[[], float]  # monotonic
    forecast_ahead: ForecastAhead
    learn: Learn
    learned: Callable[[], LearnedView]
    # Of several replicas, one counts outcomes, once it has read what was counted before.
    may_count: Callable[[], bool]
    right_of_way: RightOfWay = field(default_factory=RightOfWay)

    @property
    def observes(self) -> bool:
        """Forecast and measure, but keep no pod off any node."""
        return self.settings.mode is Mode.OBSERVE

    def check_synced(self) -> None:
        """Raises NotSynced: without knowing what is promised, nothing may be promised."""
        health = self.cluster.health()
        if not self.state.synced:
            raise NotSynced(f"vramcast does not know the cluster yet: its first list is not complete: {health.detail}")
        if health.stale_seconds > self.settings.stale_after_seconds:
            raise NotSynced(
                f"vramcast has not heard from the API server for {health.stale_seconds:.0f} s: {health.detail}"
            )

    async def make_forecasts(self, pod: PodRecord, offload: Offload | None = None) -> None:
        """On a worker, so that deciding only reads the cache. Raises InvalidTask."""
        task, offload = pod.task, offload or self.workers.forecasts
        while task is not None and (missing := self._missing(task)):
            await offload(self._forecast_all, task, missing)

    def _missing(self, task: Task) -> list[Product]:
        return [product for product in self.state.ledger.products if not self.forecaster.is_cached(task, product)]

    def _forecast_all(self, task: Task, products: Sequence[Product]) -> None:
        for product in products:
            self.forecaster.forecast(task, product)

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes of the cluster in order, on the event loop.

        A defect in one change must not lose the rest of its batch: there may be promises among them.
        """
        for change in changes:
            try:
                self._apply(change)
            except Exception:
                self.metrics.defects.inc()
                log.exception("defect: could not apply a change of the cluster", kind=type(change).__name__)
        self.news.spread()

    def _apply(self, change: Change) -> None:
        if isinstance(change, PodSeen):
            if self.state.ledger.is_gone(change.pod.uid):
                return  # UIDs never return: this read began before the pod ended
            if self.observes:
                self._judge_placement(change.pod)
        self.state.apply(change)
        self.tracker.note(change)
        match change:
            case PodSeen(pod) if pod.node is None and not pod.finished and pod.task is not None:
                # The scheduler is about to ask. By then the forecast is a cache hit.
                self.forecast_ahead(pod.task, tuple(self.state.ledger.products))

    def expire_holds(self) -> None:
        expired = self.state.ledger.expire_holds(self.clock())
        if expired:
            self.metrics.hold_expirations.inc(len(expired))
            log.info("holds expired", pods=[hold.pod for hold in expired[:10]], count=len(expired))
            self.news.spread()

    def _judge_placement(self, pod: PodRecord) -> None:
        """Count what filter would have answered for the node that another scheduler chose."""
        if pod.node is None or pod.task is None or pod.finished or not self.state.synced:
            return
        ledger = self.state.ledger
        if ledger.promise_of(pod.uid) is not None:
            return
        try:
            demand = self.state.demand(pod)
        except InvalidTask:
            return
        if demand is not None:
            reason = Reason(int(ledger.decide(demand, ledger.board.columns([pod.node])).reasons[0]))
            self.metrics.observed_placements.labels(reason.label).inc()

    def post_event(self, pod: PodRecord, reason: str, message: str, *, warning: bool) -> None:
        self.cluster.post_event(PodEvent(pod.uid, pod.namespace, pod.name, warning, reason, message[:1000]))
