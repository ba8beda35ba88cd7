"""How well adaptive bounds keep their risk, and at what price: variants against the artifact alone and an oracle.

python -m bench.adaptive --out docs/benchmarks/adaptive.md
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
from tests.outcomes.laws import LAWS, MODEL, NEW_KINDS, RISK, Law, finish, runs

from vramcast.forecast.forecast import UNADJUSTED, Adjustment
from vramcast.outcomes.calibration import DEFAULT_TUNING, Calibrator
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_scores import margin_of

GROUPS = 60
RUNS = 300
NEW_KIND_GROUPS = 60


class Learner(Protocol):
    def adjustment(
        self, product: str, family: str, risk: float, regime: str = "", margin: float = 0.0
    ) -> Adjustment: ...

    def record(self, outcome: Outcome) -> bool: ...


class ArtifactAlone:
    """Does not learn."""

    def adjustment(self, product: str, family: str, risk: float, regime: str = "", margin: float = 0.0) -> Adjustment:
        return UNADJUSTED

    def record(self, outcome: Outcome) -> bool:
        return False


class StepsAlone:
    """An online quantile: a miss raises the bound by a step, a covered run lowers it by a smaller one."""

    def __init__(self, step: float) -> None:
        self._step, self._correction = step, 0.0

    def adjustment(self, product: str, family: str, risk: float, regime: str = "", margin: float = 0.0) -> Adjustment:
        return Adjustment(1.0, math.exp(self._correction), 0)

    def record(self, outcome: Outcome) -> bool:
        self._correction += self._step * ((not outcome.covered) - outcome.risk)
        return True


class ScaledMargin:
    """Scales the margin by a quantile of ratio / margin, as the artifact's own calibration does."""

    def __init__(self) -> None:
        self._scores: list[float] = []
        self._margins: dict[int, float] = {}

    def adjustment(self, product: str, family: str, risk: float, regime: str = "", margin: float = 0.0) -> Adjustment:
        return UNADJUSTED

    def scale(self, risk: float) -> float:
        if len(self._scores) < 20:
            return 1.0
        return float(np.quantile(self._scores[-200:], 1 - risk, method="higher"))

    def record(self, outcome: Outcome) -> bool:
        return False

    def note(self, score: float) -> None:
        self._scores.append(score)


VARIANTS: dict[str, Callable[[], Learner]] = {
    "the artifact alone": ArtifactAlone,
    "steps alone (0.1)": lambda: StepsAlone(0.1),
    "margin scaled": ScaledMargin,
    "scores, window 60": lambda: _tuned(window=60, gain=0.0, shift_runs=10_000),
    "scores, window 200": lambda: _tuned(gain=0.0, shift_runs=10_000),
    "+ level": lambda: _tuned(shift_runs=10_000),
    "+ shifts": lambda: _tuned(gain=0.0),
    "+ level + shifts (chosen)": lambda: Calibrator(MODEL),
    "chosen, 3 % down a run": lambda: _tuned(tightest_share=0.0, clear_runs=10_000),
    "chosen, gain 0.02": lambda: _tuned(gain=0.02),
    "chosen, window 100": lambda: _tuned(window=100),
}


def _tuned(**values: float) -> Calibrator:
    return Calibrator(MODEL, replace(DEFAULT_TUNING, **values))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Judgement:
    early: float  # coverage of the first 60 runs
    coverage: float
    worst: float  # coverage in the worst tenth of the groups
    over: float  # median over-reservation
    oracle_over: float


def judge(variant: Callable[[], Learner], law: Law, groups: int = GROUPS, count: int = RUNS) -> Judgement:
    early, covered, by_group, over, oracle_over = [], [], [], [], []
    for seed in range(groups):
        learner = variant()
        mine = []
        for run in runs(law, seed, count):
            if isinstance(learner, ScaledMargin):
                margin = math.log(run.bound_bytes / run.median_bytes)
                bound = run.median_bytes * math.exp(margin * learner.scale(RISK))
                learner.note(math.log(run.need_bytes / run.median_bytes) / margin)
            else:
                margin = margin_of(run.median_bytes, run.bound_bytes, RISK)
                adjustment = learner.adjustment("NVIDIA-A100-SXM4-40GB", "cnn", RISK, "", margin)
                outcome = finish(run, law, adjustment)
                bound = outcome.bound_bytes
                learner.record(outcome)
            if run.number < 60:
                early.append(run.need_bytes <= bound)
            if run.number >= law.settled_at:
                mine.append(run.need_bytes <= bound)
                over.append(bound / run.need_bytes - 1)
                oracle_over.append(run.oracle_bytes / run.need_bytes - 1)
        covered += mine
        by_group.append(float(np.mean(mine)))
    return Judgement(
        float(np.mean(early)),
        float(np.mean(covered)),
        float(np.quantile(by_group, 0.1)),
        float(np.median(over)),
        float(np.median(oracle_over)),
    )


def judge_new_kind(law: Law, groups: int) -> tuple[float, float, float]:
    """Median over-reservation of the eleventh run, an oracle's, and the coverage of the 50 runs from then on."""
    over, oracle_over, covered = [], [], []
    for seed in range(groups):
        calibrator = Calibrator(MODEL)
        for run in runs(law, seed, 60):
            margin = margin_of(run.median_bytes, run.bound_bytes, RISK)
            outcome = finish(run, law, calibrator.adjustment("NVIDIA-A100-SXM4-40GB", "cnn", RISK, "", margin))
            if run.number == 10:
                over.append(outcome.bound_bytes / run.need_bytes - 1)
                oracle_over.append(run.oracle_bytes / run.need_bytes - 1)
            if run.number >= 10:
                covered.append(run.need_bytes <= outcome.bound_bytes)
            calibrator.record(outcome)
    return float(np.median(over)), float(np.median(oracle_over)), float(np.mean(covered))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--groups", type=int, default=GROUPS)
    arguments = parser.parse_args()
    kinds = []
    for law in NEW_KINDS:
        over, oracle_over, coverage = judge_new_kind(law, NEW_KIND_GROUPS)
        kinds.append(f"| {law.name} | {over:.0%} | {oracle_over:.0%} | {coverage:.1%} |")
        print(kinds[-1], flush=True)
    lines = []
    for name, variant in VARIANTS.items():
        for law in LAWS:
            j = judge(variant, law, arguments.groups)
            line = (
                f"| {name} | {law.name} | {j.early:.1%} | {j.coverage:.1%} | {j.worst:.1%} | {j.over:.1%} "
                f"| {j.oracle_over:.1%} | {j.over / j.oracle_over:.2f} |"
            )
            print(line, flush=True)
            lines.append(line)
    if arguments.out:
        arguments.out.write_text(page(lines, kinds, arguments.groups))


def page(lines: list[str], kinds: list[str], groups: int) -> str:
    return f"""# Adaptive bounds on laws that the model does not know

`python -m bench.adaptive --out docs/benchmarks/adaptive.md`: {groups} groups of {RUNS} runs for each variant and law
(`tests/outcomes/laws.py`), at risk {RISK:g}. *Early* is the coverage of a group's first 60 runs. *Coverage*, *worst
tenth* (of the groups) and *over* (the median of promise / need - 1) cover the runs after that; for the law that
changes, they start 60 runs after the change. The *oracle* knows the law and promises its quantile. *Price* is *over*
divided by the oracle's.

| variant | law | early | coverage | worst tenth | over | oracle | price |
|---|---|---|---|---|---|---|---|
{chr(10).join(lines)}

## Kinds of run that the model has never seen

Ten runs of a new kind, and the eleventh: how much is reserved beyond its need, by vramcast and by the oracle, and the
coverage of the 50 runs from then on. {NEW_KIND_GROUPS} groups.

| law | over-reservation after ten runs | oracle | coverage of runs 11 to 60 |
|---|---|---|---|
{chr(10).join(kinds)}
"""


if __name__ == "__main__":
    main()
