"""What all verbs share: the state of the cluster, the way out to the world, and the word that something changed.

Everything under api/ runs on one event loop. Between looking at the ledger and taking from it there is no await, so
no other call can come in between; that, and not a lock, is why nothing is promised twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from vramcast.cluster.seam import Cluster, PodEvent
from vramcast.controllers.candidate import CandidateTrial
from vramcast.controllers.leadership import Leadership, NoElection
from vramcast.controllers.learning import Learner
from vramcast.controllers.persistence import Memory
from vramcast.errors import InvalidTask, NotSynced
from vramcast.forecast import physics
from vramcast.forecast.forecast import Forecast, Forecaster, Source
from vramcast.names import PodUid, Product
from vramcast.observe.accuracy import AccuracyCollector, TelemetryView
from vramcast.observe.calibration import CalibrationCollector, LearnedView, ModelView
from vramcast.observe.comparison import CandidateCollector, CandidateView
from vramcast.observe.detail import DetailCollector, PodView
from vramcast.observe.metrics import Metrics
from vramcast.outcomes.comparison import summarize
from vramcast.outcomes.measuring import Measuring
from vramcast.placement.changes import Change, PodGone, PodSeen, PodsListed
from vramcast.placement.reasons import Reason
from vramcast.placement.state import ClusterState
from vramcast.placement.unschedulable import UnschedulablePods
from vramcast.settings import CalibrationMode, Mode, Settings
from vramcast.task.pod import NO_METADATA, Pod, PodRecord, to_record
from vramcast.task.quantity import MIB
from vramcast.task.task import Task

log = structlog.get_logger("vramcast")

# Runs a blocking call on a worker thread: the event loop never waits for the network.
Offload = Callable[..., Awaitable[Any]]
# Fills the forecaster's memory, some time soon and elsewhere.
ForecastAhead = Callable[[Task, Sequence[Product]], None]
# Pods between their filter and their bind; more than a scheduler has under way at once.
_MOST_UNDERWAY = 20_000


@dataclass(frozen=True, slots=True)
class Reply:
    """A body for the wire, and what the log says about it. `cause` names an error for the metrics."""

    body: bytes
    pod: str = ""
    node: str = ""
    decision: str = ""
    cause: str = ""


class News:
    """Wakes those who wait for the state to change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def spread(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
        self._waiting.clear()

    async def wait(self, timeout_seconds: float) -> bool:
        """False: nothing happened in time."""
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


@dataclass(slots=True)
class Service:
    """One per process."""

    settings: Settings
    state: ClusterState
    forecaster: Forecaster
    cluster: Cluster
    metrics: Metrics
    unschedulable: UnschedulablePods
    news: News
    offload: Offload
    clock: Callable[[], float]
    forecast_ahead: ForecastAhead
    leadership: Leadership
    learner: Learner
    memory: Memory
    measuring: Measuring
    _underway: dict[PodUid, PodRecord]

    def apply(self, changes: Sequence[Change]) -> None:
        """Changes of the cluster, in their order, on the event loop.

        One that meets a defect of ours does not take the rest of its batch along: promises may be among them.
        """
        for change in changes:
            try:
                self._apply(change)
            except Exception:
                self.metrics.defects.inc()
                log.exception("defect: a change of the cluster was not understood", kind=type(change).__name__)
        self.news.spread()

    def _apply(self, change: Change) -> None:
        if self.observes and isinstance(change, PodSeen):
            self._judge_placement(change.pod)
        self.state.apply(change, self.clock())
        self.measuring.note(change, self.forecast_where_it_sits, self.product_of)
        match change:
            case PodGone(uid):
                self.unschedulable.discard(uid)
                self._underway.pop(uid, None)
            case PodSeen(pod) if pod.node is not None or pod.finished:
                self.unschedulable.discard(pod.uid)
                self._underway.pop(pod.uid, None)
            case PodSeen(pod) if pod.task is not None:
                # The scheduler will ask in a moment; by then it is a look-up.
                self.forecast_ahead(pod.task, tuple(self.state.ledger.products))
            case PodsListed(uids, listed_at):
                self.unschedulable.forget_absent(uids, listed_at)

    def _judge_placement(self, pod: PodRecord) -> None:
        """What filter would have said of the node that somebody else has just put the pod on."""
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

    def check_synced(self) -> None:
        """Raises NotSynced: without knowing what is promised, nothing may be promised."""
        if not self.state.synced:
            detail = self.cluster.health().detail
            raise NotSynced(f"vramcast does not know the cluster yet, its first list is under way: {detail}")
        health = self.cluster.health()
        if health.stale_seconds > self.settings.stale_after_seconds:
            raise NotSynced(
                f"vramcast has had no news from the API server for {health.stale_seconds:.0f} s: {health.detail}"
            )

    def forecast(self, pod: PodRecord, product: Product) -> Forecast | None:
        return self.forecaster.forecast(pod.task, product) if pod.task else None

    @property
    def observes(self) -> bool:
        """Forecasts and measures, and keeps no pod from any node."""
        return self.settings.mode is Mode.OBSERVE

    @property
    def may_count(self) -> bool:
        """Outcomes: of several replicas one counts them, once it knows what was counted before."""
        return self.leadership.leading and self.memory.loaded

    def product_of(self, pod: PodRecord) -> Product:
        """Of the GPUs that it sits on; empty where they are not known."""
        node = self.state.ledger.nodes.get(pod.node) if pod.node else None
        pool = node.pool(pod.ask.resource) if node and pod.ask else None
        return pool.product if pool else Product("")

    def forecast_where_it_sits(self, pod: PodRecord) -> Forecast | None:
        try:
            return self.forecast(pod, self.product_of(pod))
        except InvalidTask:
            return None

    def read(self, pod: Pod) -> PodRecord:
        """The pod of a call; as the watch has read it already, where that saw the same version."""
        metadata = pod.metadata or NO_METADATA
        known = self.state.pods.get(PodUid(metadata.uid or ""))
        return known if known is not None and known.resource_version == metadata.resource_version else to_record(pod)

    def remember(self, pod: PodRecord) -> None:
        """What filter decided on is what bind will promise, whatever the pod's annotations say by then."""
        self._underway.pop(pod.uid, None)
        if len(self._underway) >= _MOST_UNDERWAY:
            del self._underway[next(iter(self._underway))]
        self._underway[pod.uid] = pod

    def newest(self, pod: PodRecord) -> PodRecord:
        """With the newest resourceVersion that is known: the scheduler may not have seen a touch of ours yet."""
        known = self.state.pods.get(pod.uid)
        if known is None or _version(known) <= _version(pod):
            return pod
        return replace(pod, resource_version=known.resource_version)

    def recall(self, uid: PodUid) -> PodRecord | None:
        return self._underway.get(uid) or self.state.pods.get(uid)

    def tell_pod(self, pod: PodRecord, reason: str, message: str, *, warning: bool) -> None:
        self.cluster.post_event(PodEvent(pod.uid, pod.namespace, pod.name, warning, reason, message[:1000]))


def new_service(
    settings: Settings, state: ClusterState, forecaster: Forecaster, cluster: Cluster, metrics: Metrics,
    unschedulable: UnschedulablePods, offload: Offload, clock: Callable[[], float],
    forecast_ahead: ForecastAhead = lambda _task, _products: None, learner: Learner | None = None,
    wall: Callable[[], float] = time.time,
) -> Service:  # fmt: skip
    """`leadership` may be replaced before the first call: following a leader needs the service.

    `clock` counts from anywhere and never goes back; `wall` is the time of day, in seconds since the epoch.
    """
    learner = learner or Learner("", CalibrationMode.OFF)
    measuring = Measuring(settings, wall)
    measuring.recorder = learner.record
    memory = Memory(offload, clock, sections={"calibration": learner, "accuracy": measuring.accuracy})
    service = Service(
        settings, state, forecaster, cluster, metrics, unschedulable, News(), offload, clock, forecast_ahead,
        NoElection(), learner, memory, measuring, {},
    )  # fmt: skip
    metrics.registry.register(
        AccuracyCollector(measuring.accuracy, lambda: _telemetry_view(service), lambda: service.may_count)
    )
    metrics.registry.register(CalibrationCollector(lambda: _learned_view(service)))
    metrics.registry.register(CandidateCollector(lambda: _candidate_view(learner.trial)))
    if settings.detail_metrics:
        metrics.registry.register(DetailCollector(state.ledger, lambda: _pod_views(service)))
    return service


def _telemetry_view(service: Service) -> TelemetryView:
    measuring = service.measuring
    return TelemetryView(
        configured=measuring.state.configured,
        age_seconds=measuring.age_seconds,
        polls=measuring.state.polls,
        faults=measuring.state.faults,
        running=len(measuring.runs),
        ended=len(measuring.ended),
    )


def _learned_view(service: Service) -> LearnedView:
    """Of two replicas the one that counts shows what was learned: the other's is as old as its start."""
    learner, memory = service.learner, service.memory
    return LearnedView(
        mode=learner.mode,
        modes=tuple(CalibrationMode),
        cells=tuple(learner.calibrator.cells()) if service.may_count else (),
        records=len(learner.oom_history),
        saves={save.value: count for save, count in memory.saves.items()},
        unsaved_seconds=None if memory.config_maps is None else memory.unsaved_seconds,
        models=tuple(ModelView(version, _source(version), role) for role, version in learner.models()),
    )


def _candidate_view(trial: CandidateTrial | None) -> CandidateView:
    if trial is None:
        return CandidateView()
    compared = trial.candidate.comparison if trial.candidate is not None else None
    figures = {"active": summarize(compared.active), "candidate": summarize(compared.candidate)} if compared else {}
    return CandidateView(trial.standing(), trial.loads, trial.promotions, figures)


def _source(version: str) -> str:
    return Source.PHYSICS if version == physics.VERSION else Source.MODEL


def _pod_views(service: Service) -> Iterator[PodView]:
    for run in service.measuring.runs.values():
        observed = None if run.last_mib is None else run.last_mib * MIB
        yield PodView(run.pod.namespace, run.pod.name, run.median_bytes, run.bound_bytes, observed)


def _version(pod: PodRecord) -> int:
    """The versions of one resource compare as numbers: a promise since Kubernetes 1.35, a fact of etcd's before."""
    return int(pod.resource_version) if pod.resource_version.isascii() and pod.resource_version.isdecimal() else 0
