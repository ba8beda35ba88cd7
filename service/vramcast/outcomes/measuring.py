"""What is known of the runs under way and of telemetry, between two looks at it.

Changes of the cluster begin and end runs here, at once; looks (looking.py) fill them with what was seen, and turn
the ended ones into outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vramcast.forecast.adjustment import parse_adjustment
from vramcast.forecast.forecast import Forecast
from vramcast.names import NodeName, PodUid, Product
from vramcast.outcomes.accuracy import Accuracy
from vramcast.outcomes.observation import Findings, Observer
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.readings import Fault
from vramcast.outcomes.records import ObservedRuns
from vramcast.outcomes.runs import Run
from vramcast.outcomes.tenancy import Tenancy, Tenant
from vramcast.placement.changes import Change, PodGone, PodSeen, PodsListed
from vramcast.placement.promises import Promise
from vramcast.settings import Settings
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB
from vramcast.task.run_status import RunFacts
from vramcast.task.task import Task

# What calibration learns from; called on the event loop, once for every measured run that was forecast.
Recorder = Callable[[Outcome, Task], None]
# A pod's forecast where it sits; None where nothing can be said of it. Quick: it was made when the pod was seen.
ForecastOf = Callable[[PodRecord], Forecast | None]
ProductOf = Callable[[PodRecord], Product]


@dataclass(slots=True)
class EndedRun:
    """A run whose pod is gone or finished. `facts` None: it is not known yet how it ended."""

    run: Run
    gone_at: float
    facts: RunFacts | None = None

    @property
    def ended_at(self) -> float:
        return self.facts.ended_at if self.facts is not None and self.facts.ended_at is not None else self.gone_at


@dataclass(slots=True)
class TelemetryState:
    """What the metrics say about telemetry. `covered_until`: up to then everything that was seen has been read."""

    configured: bool = False
    newest_at: float | None = None
    covered_until: float | None = None
    polls: Counter[str] = field(default_factory=lambda: Counter({"ok": 0, "failed": 0}))
    faults: Counter[Fault] = field(default_factory=lambda: Counter(dict.fromkeys(Fault, 0)))
    last_error: str = ""


class Measuring:
    """`wall`: seconds since the epoch, as samples and pods have it."""

    def __init__(self, settings: Settings, wall: Callable[[], float]) -> None:
        self.wall = wall
        self.state = TelemetryState()
        self.tenancy = Tenancy(settings.telemetry_lag_seconds)
        self.observer = Observer(settings.telemetry_pod_values)
        self.accuracy = Accuracy()
        self.observed = ObservedRuns(settings.records_kept)
        self.runs: dict[PodUid, Run] = {}
        self.ended: dict[PodUid, EndedRun] = {}
        self.recorder: Recorder = lambda _outcome, _task: None
        # Where telemetry found unmanaged memory, and when: what is too old is taken back.
        self.unmanaged_at: dict[NodeName, float] = {}
        # False: what ended before this process came, or before it took the lead, has to be looked for.
        self.caught_up = False
        self._gap_seconds = settings.telemetry_stale_seconds

    # ------------------------------------------------------------------ changes of the cluster

    def note(self, change: Change, forecast_of: ForecastOf, product_of: ProductOf) -> None:
        match change:
            case PodSeen(pod) if pod.finished:
                self._end(pod.uid, pod.run)
            case PodSeen(pod) if pod.node is not None and pod.task is not None:
                self._go_on(pod, forecast_of, product_of)
            case PodGone(uid):
                self._end(uid, None)
            case PodsListed(uids, _):
                for uid in self.runs.keys() - uids:
                    self._end(uid, None)

    def begin(self, pod: PodRecord, forecast_of: ForecastOf, product_of: ProductOf) -> Run:
        """From what bind wrote onto the pod; from the forecast of now where somebody else bound it."""
        facts, now = pod.run or RunFacts(), self.wall()
        run = Run(pod, min(facts.started_at or now, now), self._gap_seconds, product_of(pod))
        if pod.assignment is not None and facts.median_mib is not None:
            run.median_bytes, run.bound_bytes = facts.median_mib * MIB, pod.assignment.reserved_mib * MIB
            run.adjustment = parse_adjustment(facts.adjustment)
        elif (forecast := forecast_of(pod)) is not None:
            run.median_bytes, run.bound_bytes = forecast.median_bytes, forecast.bound_bytes
            run.adjustment = forecast.adjustment
        return run

    def _go_on(self, pod: PodRecord, forecast_of: ForecastOf, product_of: ProductOf) -> None:
        known = self.runs.get(pod.uid)
        if known is not None:
            known.pod = pod
        elif pod.uid not in self.accuracy.counted and pod.uid not in self.ended:
            self.runs[pod.uid] = self.begin(pod, forecast_of, product_of)

    def _end(self, uid: PodUid, facts: RunFacts | None) -> None:
        now = self.wall()
        self.tenancy.leave(uid, now)
        run = self.runs.pop(uid, None)
        if run is not None:
            self.ended[uid] = EndedRun(run, now, facts if facts is not None and facts.ending is not None else None)

    # ------------------------------------------------------------------ telemetry polls

    def update_tenants(self, promises: Iterable[Promise], since: Callable[[Promise], float]) -> None:
        self.tenancy.update(promises, self.wall(), since)

    def remember_past(self, tenant: Tenant, until: float) -> None:
        """One that ended before this process came."""
        self.tenancy.enter(tenant)
        self.tenancy.leave(tenant.uid, until)

    def take(self, findings: Findings) -> None:
        """What a look found of the runs."""
        for sighting in findings.sightings:
            run = self.runs.get(sighting.uid)
            ended = self.ended.get(sighting.uid)
            if run is None and ended is not None and sighting.at <= ended.ended_at:
                run = ended.run
            if run is None:
                continue
            if sighting.used_mib is None:
                run.miss(sighting.at)
            else:
                run.observe(sighting.at, sighting.used_mib, sighting.utilization)
        self.state.faults.update(findings.faults)
        if findings.newest_at is not None:
            self.state.newest_at = max(findings.newest_at, self.state.newest_at or findings.newest_at)

    @property
    def age_seconds(self) -> float | None:
        """Of the newest sample; before the first one, None."""
        return None if self.state.newest_at is None else max(0.0, self.wall() - self.state.newest_at)
