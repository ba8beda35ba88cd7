"""The runs under way, and what telemetry has shown of them.

Changes of the cluster begin and end runs here at once. Telemetry polls add what they saw, and turn ended runs into
outcomes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from vramcast.forecast.forecast import Forecast, parse_adjustment
from vramcast.hardware.utilization import UtilizationCounter
from vramcast.names import NodeName, PodUid, Product
from vramcast.outcomes.accuracy import Accuracy
from vramcast.outcomes.observation import Findings, Observer, Sighting
from vramcast.outcomes.readings import Fault, PodValues
from vramcast.outcomes.records import ObservedRuns
from vramcast.outcomes.runs import Run
from vramcast.outcomes.tenancy import Tenancy, Tenant
from vramcast.placement.changes import Change, PodGone, PodSeen, PodsListed
from vramcast.placement.promises import Promise
from vramcast.task.pod import PodRecord
from vramcast.task.quantity import MIB
from vramcast.task.run_status import RunFacts


@dataclass(slots=True)
class EndedRun:
    """A run whose pod is gone or finished. `facts` None: how it ended is not known yet."""

    run: Run
    gone_at: float
    facts: RunFacts | None = None

    @property
    def ended_at(self) -> float:
        return self.facts.ended_at if self.facts is not None and self.facts.ended_at is not None else self.gone_at


@dataclass(slots=True)
class TelemetryState:
    """How polling goes. `covered_until`: every sample up to then has been read."""

    configured: bool = False
    newest_at: float | None = None
    covered_until: float | None = None
    polls: Counter[str] = field(default_factory=lambda: Counter({"ok": 0, "failed": 0}))
    faults: Counter[Fault] = field(default_factory=lambda: Counter(dict.fromkeys(Fault, 0)))
    last_error: str = ""
    scraped_at: dict[UtilizationCounter, float] = field(default_factory=dict)  # the newest sample of each


class RunTracker:
    """`wall` is seconds since the epoch, as in samples and pods.

    `product_of` is the product of the GPUs that a pod sits on, `forecast_of` its forecast there, or None.
    """

    def __init__(
        self, wall: Callable[[], float], product_of: Callable[[PodRecord], Product],
        forecast_of: Callable[[PodRecord], Forecast | None], *, gap_seconds: float, lag_seconds: float,
        pod_values: PodValues, records_kept: int,
    ) -> None:  # fmt: skip
        self.wall = wall
        self.product_of = product_of
        self.telemetry = TelemetryState()
        self.tenancy = Tenancy(lag_seconds)
        self.observer = Observer(pod_values, gap_seconds)
        self.accuracy = Accuracy()
        self.observed = ObservedRuns(records_kept)
        self.runs: dict[PodUid, Run] = {}
        self.ended: dict[PodUid, EndedRun] = {}
        # When telemetry last saw unmanaged memory on a node. Entries that are too old are removed.
        self.unmanaged_at: dict[NodeName, float] = {}
        # False: runs that ended before this process started, or before it led, still have to be read.
        self.caught_up = False
        self._forecast_of = forecast_of
        self._gap_seconds = gap_seconds

    # ------------------------------------------------------------------ changes of the cluster

    def note(self, change: Change) -> None:
        match change:
            case PodSeen(pod) if pod.finished:
                self._end(pod.uid, pod.run)
            case PodSeen(pod) if pod.node is not None and pod.task is not None:
                self._continue(pod)
            case PodGone(uid):
                self._end(uid, None)
            case PodsListed(uids, _):
                for uid in self.runs.keys() - uids:
                    self._end(uid, None)

    def begin(self, pod: PodRecord) -> Run:
        """From what bind wrote onto the pod, or from its forecast now if another scheduler bound it."""
        facts, now = pod.run or RunFacts(), self.wall()
        run = Run(pod, min(facts.started_at or now, now), self._gap_seconds, self.product_of(pod))
        if pod.assignment is not None and facts.median_mib is not None:
            run.median_bytes, run.bound_bytes = facts.median_mib * MIB, pod.assignment.reserved_mib * MIB
            run.adjustment = parse_adjustment(facts.adjustment)
        elif (forecast := self._forecast_of(pod)) is not None:
            run.median_bytes, run.bound_bytes = forecast.median_bytes, forecast.bound_bytes
            run.adjustment = forecast.adjustment
        return run

    def _continue(self, pod: PodRecord) -> None:
        known = self.runs.get(pod.uid)
        if known is not None:
            known.pod = pod
        elif pod.uid not in self.accuracy.counted and pod.uid not in self.ended:
            self.runs[pod.uid] = self.begin(pod)

    def _end(self, uid: PodUid, facts: RunFacts | None) -> None:
        now = self.wall()
        self.tenancy.leave(uid, now)
        run = self.runs.pop(uid, None)
        if run is not None:
            self.ended[uid] = EndedRun(run, now, facts if facts is not None and facts.ending is not None else None)

    # ------------------------------------------------------------------ telemetry

    def update_tenants(self, promises: Iterable[Promise], since: Callable[[Promise], float]) -> None:
        self.tenancy.update(promises, self.wall(), since)

    def add_past_tenant(self, tenant: Tenant, until: float) -> None:
        """For a run that ended before this process started."""
        self.tenancy.enter(tenant)
        self.tenancy.leave(tenant.uid, until)

    def add_findings(self, findings: Findings) -> None:
        for sighting in findings.sightings:
            run = self._run_at(sighting)
            if run is not None and sighting.used_mib is None:
                run.miss(sighting.at)
            elif run is not None and sighting.used_mib is not None:
                run.observe(sighting.at, sighting.used_mib, sighting.utilization, sighting.truth)
        for opinion in findings.second_opinions:
            run = self._run_at(opinion)
            if run is not None and opinion.used_mib is not None:
                run.compare(opinion.at, opinion.used_mib, opinion.truth)
        self.telemetry.faults.update(findings.faults)
        if findings.newest_at is not None:
            self.telemetry.newest_at = max(findings.newest_at, self.telemetry.newest_at or findings.newest_at)
        for counter, at in findings.scraped_at.items():
            self.telemetry.scraped_at[counter] = max(at, self.telemetry.scraped_at.get(counter, at))

    def _run_at(self, sighting: Sighting) -> Run | None:
        ended = self.ended.get(sighting.uid)
        if ended is not None:
            return ended.run if sighting.at <= ended.ended_at else None
        return self.runs.get(sighting.uid)

    @property
    def telemetry_age_seconds(self) -> float | None:
        """Of the newest sample; None before the first one."""
        newest_at = self.telemetry.newest_at
        return None if newest_at is None else max(0.0, self.wall() - newest_at)

    def is_scraped(self, counter: UtilizationCounter) -> bool:
        """Has telemetry shown it lately, of any GPU?"""
        at = self.telemetry.scraped_at.get(counter)
        return at is not None and at >= self.wall() - self._gap_seconds
