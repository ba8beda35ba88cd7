"""Jobs come, are placed by the real core, slow each other as measured, die where memory really runs out, and end.

Time is virtual. A job's memory reaches its measured peak a minute after it starts. If the GPU cannot hold that beside
what its neighbours really use, the job dies, has lost that time, and comes again. Telemetry then shows a policy that
sees it what is used beyond promises; a job's exit report tells its peak.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

import numpy as np
from bench.cluster.jobs import Job, Measured
from bench.cluster.policies import GPU_MIB, Policy

from vramcast.forecast.forecast import Forecast
from vramcast.forecast.forecaster import CachingForecaster, CalibratedForecaster
from vramcast.hardware.vendors import SHARED_GPU
from vramcast.names import NodeName, PodUid, Product
from vramcast.outcomes.calibration import Calibrator
from vramcast.outcomes.oom_history import OomHistory
from vramcast.outcomes.outcome import Outcome, Truth
from vramcast.outcomes.run_memory import RunMemory
from vramcast.placement import fit
from vramcast.placement.changes import NodeSeen, PodGone, PodSeen, UnmanagedSeen, UtilizationSeen
from vramcast.placement.gpus import NodeGpus, Pool
from vramcast.placement.ledger import Ledger
from vramcast.placement.promises import Demand, Promise, State
from vramcast.placement.state import ClusterState
from vramcast.task.pod import PodRecord, read_pod
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending
from vramcast.task.task import Task, task_fingerprint

PRODUCT = Product("NVIDIA-GeForce-RTX-3090")
GPUS_PER_NODE = 8
PEAK_SECONDS = 60.0
RETRY_SECONDS = 60.0
TEAMS = 8
TOO_SLOW = 1.3

Gpu = tuple[NodeName, int]


class Memory:
    """What a policy learns."""

    def __init__(self, base: CachingForecaster, clock: Callable[[], float]) -> None:
        self._calibrator = Calibrator(base.version)
        self._runs = RunMemory(clock)
        self.forecaster = CalibratedForecaster(base, self._calibrator, self._runs)
        self.oom_history = OomHistory()

    def record(self, outcome: Outcome, task: Task) -> None:
        self.oom_history.record(outcome)
        self._calibrator.record(outcome)
        self._runs.record(outcome, task)


@dataclass(slots=True)
class Running:
    job: Job
    pod: PodRecord
    promise: Promise
    forecast: Forecast | None
    started: float
    left: float  # seconds alone
    rate: float = 1.0
    since: float = 0.0
    version: int = 0
    peaked: bool = False


@dataclass(slots=True)
class Tally:
    """Sums over a run. Times in seconds."""

    jobs: int = 0
    gpu_seconds: float = 0.0
    makespan: float = 0.0
    times: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    slowdowns: list[float] = field(default_factory=list)
    ooms: int = 0
    jobs_with_oom: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # the forecast was larger than any GPU
    lost_seconds: float = 0.0
    promised_mib_seconds: float = 0.0
    used_mib_seconds: float = 0.0

    @property
    def slowed(self) -> float:
        return float(np.mean(np.array(self.slowdowns) > TOO_SLOW))


class Simulation:
    def __init__(self, measured: Measured, policy: Policy, base: CachingForecaster, gpus: int) -> None:
        memory = Memory(base, lambda: self._now)
        self._measured, self._policy, self._memory = measured, policy, memory
        floors = memory.oom_history.floors_mib if policy.learns else None
        self._state = ClusterState(Ledger(ranking=policy.ranking), memory.forecaster, floors)
        self._ledger = self._state.ledger
        names = [NodeName(f"node-{number}") for number in range(-(-gpus // GPUS_PER_NODE))]
        for name in names:
            pool = Pool(SHARED_GPU, PRODUCT, (GPU_MIB,) * GPUS_PER_NODE, GPUS_PER_NODE)
            self._state.apply(NodeSeen(NodeGpus(name, True, (pool,))))
        self._names = names
        self._columns = self._ledger.board.columns(names)
        self._on: dict[Gpu, list[Running]] = {(name, gpu): [] for name in names for gpu in range(GPUS_PER_NODE)}
        self._beyond_mib = {name: [0] * GPUS_PER_NODE for name in names}
        self._busy_since: dict[Gpu, float] = {}
        self._pending: list[tuple[Job, PodRecord]] = []
        self._deaths: dict[str, int] = {}
        self._events: list[tuple[float, int, str, object, int]] = []
        self._sequence = 0
        self._now = 0.0
        self.tally = Tally()

    def run(self, jobs: Sequence[Job]) -> Tally:
        """May be called again: what was learned stays, and time goes on."""
        begin = self._now
        self.tally = Tally(jobs=len(jobs))
        for job in jobs:
            self._push(begin + job.arrives, "arrives", replace(job, arrives=begin + job.arrives))
        while self._events:
            now, _, what, who, version = heapq.heappop(self._events)
            self._now = now
            if isinstance(who, Job):
                self._pending.append((who, self._pod(who)))
                self._place_pending(now, newest_only=what == "arrives" and len(self._pending) > 1)
            elif isinstance(who, Running):
                if what == "peaks" and who.version >= 0:
                    self._peak(who, now)
                elif what == "ends" and version == who.version:
                    self._end(who, now)
        self.tally.makespan -= begin
        return self.tally

    def _push(self, at: float, what: str, who: object, version: int = 0) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (at, self._sequence, what, who, version))

    def _pod(self, job: Job) -> PodRecord:
        deaths = self._deaths.get(job.name, 0)
        asked = self._policy.ask(self._measured.kinds[job.kind], deaths, job.name)
        uid = PodUid(f"{job.name}.{deaths}")
        # What one team's runs teach, no other team learns.
        team = f"team-{crc32(job.name.encode()) % TEAMS}"
        pod = read_pod(uid, team, f"{job.name}-{deaths}", asked, (), owner=f"Job/{job.name}")
        self._state.apply(PodSeen(pod))
        return pod

    # ------------------------------------------------------------------ placing

    def _place_pending(self, now: float, *, newest_only: bool) -> None:
        """First come, first served, but a job that fits may overtake one that does not.

        What did not fit stays so for everything that needs as much and presses as hard, so that is not tried again.
        While jobs wait, a new one cannot change what fits: only it is tried.
        """
        failed: list[tuple[int, float]] = []
        waiting = []
        tried = self._pending[-1:] if newest_only else self._pending
        for job, pod in tried:
            demand = self._demand(job, pod)
            need, load = demand.needs_mib[PRODUCT], demand.loads[PRODUCT]
            presses = load.pressure if np.isfinite(load.most_slowdown) else 0.0
            hopeless = any(need >= least and presses >= lightest for least, lightest in failed)
            if hopeless or not self._place(job, pod, demand, now):
                waiting.append((job, pod))
                if not hopeless:
                    failed.append((need, presses))
        self._pending = self._pending[:-1] + waiting if newest_only else waiting

    def _demand(self, job: Job, pod: PodRecord) -> Demand:
        demand = self._state.demand(pod)
        assert demand is not None, pod.invalid
        if self._policy.number is not None:
            deaths = self._deaths.get(job.name, 0)
            given = read_pod(pod.uid, "", "", self._policy.number(self._measured.kinds[job.kind], deaths, job.name), ())
            assert given.task is not None
            return replace(demand, needs_mib={PRODUCT: given.task.gpu_memory_mib or GPU_MIB})
        if demand.needs_mib[PRODUCT] <= GPU_MIB:
            return demand
        # The pod's Event says that every GPU is too small. Its owner knows better, and gives it a whole one.
        self.tally.refused.add(job.name)
        return replace(demand, needs_mib={PRODUCT: GPU_MIB})

    def _place(self, job: Job, pod: PodRecord, demand: Demand, now: float) -> bool:
        promise = self._promise(job, demand, now)
        if promise is None:
            return False
        forecast = self._memory.forecaster.forecast(pod.task, PRODUCT) if pod.task and self._policy.learns else None
        run = Running(job, pod, promise, forecast, now, job.seconds, since=now)
        gpu = promise.node, promise.gpu_indices[0]
        if not self._on[gpu]:
            self._busy_since[gpu] = now
        self._on[gpu].append(run)
        self._settle(gpu, now)
        self._push(now + PEAK_SECONDS, "peaks", run)
        return True

    def _promise(self, job: Job, demand: Demand, now: float) -> Promise | None:
        ledger = self._ledger
        decision = ledger.decide(demand, self._columns)
        if not decision.fits.any():
            return None
        if self._policy.harmless_loss is not None:
            return self._promise_by_truth(job, demand, now, self._policy.harmless_loss)
        # The node that would score 10.
        best = int(fit.worths(ledger.board, demand, decision.sweep, self._columns).argmax())
        promise = ledger.assign(demand, self._names[best], now)
        assert isinstance(promise, Promise), promise
        ledger.confirm(promise, now)
        return ledger.promise_of(demand.uid) or promise

    def _promise_by_truth(self, job: Job, demand: Demand, now: float, harmless: float) -> Promise:
        """Beside jobs that it hardly harms, the fullest first; else an empty GPU; else where it harms least."""
        need, choices = demand.needs_mib[PRODUCT], []
        for gpu, runs in self._on.items():
            room = GPU_MIB - sum(run.promise.need_mib or 0 for run in runs)
            if room >= need:
                harm = sum(
                    self._measured.slowdowns[job.kind][run.job.kind]
                    + self._measured.slowdowns[run.job.kind][job.kind]
                    - 2
                    for run in runs
                )
                rank = 0 if runs and harm <= harmless else 1 if not runs else 2
                choices.append((rank, harm if rank == 2 else 0.0, room, gpu))
        node, index = min(choices)[3]
        promise = Promise(
            demand.uid, demand.pod, node, SHARED_GPU, 1, need, (index,), State.BOUND, now, load=demand.loads[PRODUCT]
        )
        self._ledger.promise(promise)
        return promise

    # ------------------------------------------------------------------ running

    def _settle(self, gpu: Gpu, now: float) -> None:
        """Who is on the GPU has changed: every job there goes on at another speed."""
        runs = self._on[gpu]
        kinds = [run.job.kind for run in runs]
        for position, run in enumerate(runs):
            run.left -= (now - run.since) * run.rate
            run.since = now
            others = kinds[:position] + kinds[position + 1 :]
            run.rate = 1.0 / self._measured.slowdown(run.job.kind, others)
            run.version += 1
            self._push(now + max(0.0, run.left) / run.rate, "ends", run, run.version)

    def _peak(self, run: Running, now: float) -> None:
        gpu = run.promise.node, run.promise.gpu_indices[0]
        used = sum(self._used_mib(other) for other in self._on[gpu] if other.peaked or other is run)
        if used > GPU_MIB:
            self._leave(run, now)
            self.tally.ooms += 1
            self.tally.jobs_with_oom.add(run.job.name)
            self.tally.lost_seconds += now - run.started
            self._deaths[run.job.name] = self._deaths.get(run.job.name, 0) + 1
            self._learn(run, now, Ending.OOM)
            self._push(now + RETRY_SECONDS, "again", run.job)
            self._place_pending(now, newest_only=False)
            return
        run.peaked = True
        if self._policy.sees:
            self._show(gpu)
            self._see_alone(gpu)

    def _end(self, run: Running, now: float) -> None:
        if not run.peaked:
            self._peak(run, now)
            if not run.peaked:
                return
        self._leave(run, now)
        tally = self.tally
        tally.makespan = max(tally.makespan, now)
        tally.times.append(now - run.job.arrives)
        tally.waits.append(run.started - run.job.arrives)
        tally.slowdowns.append((now - run.started) / run.job.seconds)
        self._learn(run, now, Ending.SUCCEEDED)
        self._place_pending(now, newest_only=False)

    def _leave(self, run: Running, now: float) -> None:
        gpu = run.promise.node, run.promise.gpu_indices[0]
        self._on[gpu].remove(run)
        run.version = -1
        seconds = now - run.started
        self.tally.promised_mib_seconds += (run.promise.need_mib or 0) * seconds
        self.tally.used_mib_seconds += self._used_mib(run) * seconds
        self._state.apply(PodGone(run.promise.uid))
        if not self._on[gpu]:
            self.tally.gpu_seconds += now - self._busy_since.pop(gpu)
        self._settle(gpu, now)
        if self._policy.sees:
            self._show(gpu)
            self._see_alone(gpu)

    def _see_alone(self, gpu: Gpu) -> None:
        """The utilization of a GPU with one job is that job's."""
        runs = self._on[gpu]
        if len(runs) == 1 and runs[0].peaked:
            kind = self._measured.kinds[runs[0].job.kind]
            memory = kind.traffic if self._policy.sees_memory else None
            self._state.apply(UtilizationSeen(runs[0].promise.uid, kind.busy, memory))

    def _used_mib(self, run: Running) -> int:
        return self._measured.kinds[run.job.kind].memory_mib

    def _show(self, gpu: Gpu) -> None:
        """Telemetry shows each GPU's memory, and not whose it is."""
        node, index = gpu
        runs, beyond = self._on[gpu], self._beyond_mib[node]
        used = sum(self._used_mib(run) for run in runs if run.peaked)
        more = max(0, used - sum(run.promise.need_mib or 0 for run in runs))
        if more != beyond[index]:
            beyond[index] = more
            self._state.apply(UnmanagedSeen(node, tuple(beyond)))

    def _learn(self, run: Running, now: float, ending: Ending) -> None:
        task, forecast = run.pod.task, run.forecast
        if task is None or forecast is None:
            return
        promised = (run.promise.need_mib or 0) * MIB
        peak = promised if ending is Ending.OOM else self._used_mib(run) * MIB
        outcome = Outcome(
            run.promise.uid, run.promise.pod, run.pod.owner, task_fingerprint(task), forecast.family, task.level,
            PRODUCT, forecast.model_version, forecast.risk, forecast.median_bytes, max(forecast.bound_bytes, promised),
            peak, ending, now, adjustment=forecast.adjustment, truth=Truth.REPORT,
        )  # fmt: skip
        self._memory.record(outcome, task)
