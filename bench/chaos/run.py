"""One run: the load, one fault after another, and the verdict."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.controlplane import PATIENCE_SECONDS, eventually

from .audit import Audit
from .faults import KINDS, Over, Scene
from .load import Load
from .stage import Size, Stage

# Longer than the time for which an unconfirmed Binding keeps its room (`unconfirmed_ttl_seconds`, 65 s).
LONGEST_WAIT_SECONDS = 90.0
BACK_SECONDS = 5.0
_GIVE_UP_SECONDS = PATIENCE_SECONDS
_CHECK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Plan:
    """`rounds`: how often every kind of fault comes at least. `gap_seconds`: the longest pause between faults.

    `longest_wait_seconds`: a pod that has had room for longer is stuck.
    """

    seed: int
    binds: int
    rounds: int = 1
    size: Size = field(default_factory=Size)
    gap_seconds: float = 10.0
    pace: float = 1.0
    lease: dict[str, str] | None = None
    longest_wait_seconds: float = LONGEST_WAIT_SECONDS


@dataclass(frozen=True, slots=True)
class Injected:
    """`back_seconds`: from the end of the fault to the next bind; infinite if there was none for minutes."""

    kind: str
    number: int
    lasted_seconds: float
    back_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    plan: Plan
    faults: list[Injected]
    over: list[str]
    stuck: list[str]
    breaches: list[str]
    binds: int
    seconds: float
    refused: dict[int, int]  # Bindings that the API server refused, by status
    wait_seconds: list[float]
    restarts: int
    versions: dict[str, str]

    @property
    def late(self) -> list[Injected]:
        return [fault for fault in self.faults if fault.back_seconds > BACK_SECONDS]

    def failures(self) -> list[str]:
        """Everything that must not happen, except slow recovery, which depends on the machine."""
        return [*self.over, *self.stuck, *self.breaches]


def play(plan: Plan, say: Callable[[str], None]) -> Outcome:
    with Stage(plan.size, plan.seed, plan.longest_wait_seconds, plan.lease) as stage:
        load = Load(stage, plan.seed)
        run = Run(plan, stage, load, say)
        load.start()
        try:
            run.inject()
            run.drain()
        finally:
            load.stop()
        outcome = run.outcome()
        if outcome.failures():
            stage.plane.keep_directory = True
            say(f"all logs are kept in {stage.plane.directory}")
        return outcome


class Run:
    def __init__(self, plan: Plan, stage: Stage, load: Load, say: Callable[[str], None]) -> None:
        self._plan, self._stage, self._load, self._say = plan, stage, load, say
        self._deck_draw = random.Random(plan.seed)
        self._breaches: list[str] = []
        self._faults: list[Injected] = []
        self._checked_at = 0.0
        self._began_at = time.monotonic()

    @property
    def _audit(self) -> Audit:
        return self._stage.audit

    # --- faults

    def inject(self) -> None:
        self._await_binds(time.monotonic())
        for kind in self._deck():
            if self._finished() or self._audit.violations:
                return
            # What a fault draws depends on the pods that are there, so each has its own numbers.
            draw = random.Random(f"{self._plan.seed} {len(self._faults)}")
            rest_seconds = draw.uniform(0.2, self._plan.gap_seconds)
            self._faults.append(self._one(kind, draw))
            self._rest(rest_seconds)

    def _deck(self) -> Iterator[Callable[[Scene], Over]]:
        """Every kind once in each round, in a new order."""
        while True:
            yield from self._deck_draw.sample(KINDS, len(KINDS))

    def _finished(self) -> bool:
        enough = len(self._faults) >= self._plan.rounds * len(KINDS)
        return enough and self._audit.binds >= self._plan.binds

    def _one(self, kind: Callable[[Scene], Over], draw: random.Random) -> Injected:
        began = time.monotonic()
        over = kind(Scene(self._stage, self._load, draw, self._breaches, self._plan.pace))
        bound_at = self._await_binds(over.serving_from)
        back_seconds = float("inf") if bound_at is None else bound_at - over.at
        injected = Injected(kind.__name__, len(self._faults) + 1, over.at - began, back_seconds)
        self._say(
            f"{self._progress()}  {injected.number:4} {injected.kind:22} lasted {injected.lasted_seconds:5.1f} s, "
            f"back after {back_seconds:5.2f} s"
        )
        return injected

    def _await_binds(self, moment: float) -> float | None:
        deadline = time.monotonic() + _GIVE_UP_SECONDS
        while (bound_at := self._audit.first_bind_after(moment)) is None and time.monotonic() < deadline:
            self._check()
            time.sleep(0.01)
        return bound_at

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._check()
            time.sleep(0.05)

    def _check(self) -> None:
        for failure in (self._stage.watch.failure, self._load.failure):
            if failure is not None:
                raise RuntimeError("the run cannot go on") from failure
        if time.monotonic() - self._checked_at >= _CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self._audit.check_waiting()

    def _progress(self) -> str:
        seconds = time.monotonic() - self._began_at
        pending, bound = self._audit.pods()
        binds, roomy_seconds = self._audit.binds, self._audit.longest_roomy_seconds()
        return (
            f"{seconds:6.0f} s {binds:7} binds ({binds / seconds:3.0f}/s) "
            f"{len(bound):4} bound {len(pending):3} pending, waiting with room {roomy_seconds:3.0f} s"
        )

    # --- the end

    def drain(self) -> None:
        """No new pods and no more faults: what is pending is bound as room appears."""
        self._load.keeps_creating = False
        ended_at = time.monotonic()

        def nothing_waits() -> bool:
            self._check()
            return not self._audit.pods()[0] or bool(self._audit.stuck)

        try:
            eventually(
                nothing_waits, 3 * self._plan.longest_wait_seconds, "every pod to be bound", interval_seconds=0.1
            )
        except AssertionError:
            names = [str(pod) for pod in self._audit.pods()[0]]
            self._breaches.append(f"{len(names)} pods were never bound on an empty cluster: {names[:5]}")
        self._say(f"{self._progress()}  drained in {time.monotonic() - ended_at:.1f} s")

    def outcome(self) -> Outcome:
        stage, audit = self._stage, self._audit
        breaches = [
            *self._breaches,
            *(f"vramcast ended by itself:\n{tail}" for tail in stage.kubelet.own_ends),
            *(f"vramcast reported a defect: {line}" for line in stage.defects()[:10]),
        ]
        answers = sum((proxy.bindings for proxy in stage.proxies), start=stage.proxies[0].bindings.__class__())
        return Outcome(
            plan=self._plan,
            faults=self._faults,
            over=[str(violation) for violation in audit.violations],
            stuck=[str(stuck) for stuck in audit.stuck.values()],
            breaches=breaches,
            binds=audit.binds,
            seconds=time.monotonic() - self._began_at,
            refused={status: count for status, count in sorted(answers.items()) if status >= 300},
            wait_seconds=audit.wait_seconds,
            restarts=stage.kubelet.restarts,
            versions=stage.versions(),
        )


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=1000)[round(share * 1000) - 1] if len(values) > 1 else float("nan")
