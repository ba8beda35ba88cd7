"""What sharing buys: policies on the same jobs, in virtual time, over several seeds.

python -m bench.cluster --data DIR [--seeds 10] [--jobs 400] [--gpus 32] [--out docs/what-it-buys.md]

DIR has clusters/ (gavel_jobs.csv, lucid_alone.csv, lucid_pairs.csv) and extra/gavel_colocation.csv.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from bench.cluster.jobs import HOUR, Job, Measured, Trace, draw_jobs, read_measured, read_trace, with_kinds
from bench.cluster.policies import ORACLE, Policy, ours, policies
from bench.cluster.report import BUSY_POLICIES, CHOOSING, CURVE_POLICIES, FIRST, VARIED, VARIED_ORACLE, write_page
from bench.cluster.simulate import Simulation, Tally

from vramcast.forecast.forecaster import CachingForecaster
from vramcast.forecast.model import BUILTIN, choose_forecaster
from vramcast.placement.board import Ranking

# By mix, the work that arrives, over what the GPUs could do with one job each.
LOADS = {"gavel": 0.8, "lucid": 0.8, "busy": 0.3}
HARMLESS = (1.1, 1.2, 1.25, 1.3, 1.33, 1.36, 1.4, 1.5, 1.7)
HARMLESS_LOSSES = (0.2, 0.4, 0.6, 0.8, 1.2)  # of the oracle
_BUSY = 0.9
# Seeds of the jobs that a policy learns from, which never count.
_EARLIER = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """One policy on one seed's jobs. Hours; shares of the jobs."""

    mix: str
    policy: str
    seed: int
    harmless: float
    gpu_hours: float
    makespan_hours: float
    mean_hours: float
    p95_hours: float
    wait_hours: float
    slowdown: float
    slowed: float
    oom: float
    lost_hours: float
    refused: float
    reserved_over_used: float
    jobs_per_second: float


@dataclass(frozen=True, slots=True)
class Setup:
    measured: Measured
    trace: Trace
    base: CachingForecaster
    jobs: int
    gpus: int

    def draw(self, mix: str, seed: int) -> list[Job]:
        jobs = draw_jobs(self.trace, mix, self.jobs, self.gpus, LOADS[mix], seed)
        if mix == "busy":
            busy = [number for number, kind in enumerate(self.measured.kinds) if kind.busy >= _BUSY]
            return [Job(j.name, busy[j.kind], j.arrives, j.seconds) for j in with_kinds(jobs, len(busy), seed)]
        return with_kinds(jobs, len(self.measured.kinds), seed)


def simulate(setup: Setup, mix: str, seed: int, policy: Policy) -> Row:
    simulation = Simulation(setup.measured, policy, setup.base, setup.gpus)
    if policy.warm:
        simulation.run(setup.draw(mix, _EARLIER + seed))
    jobs = setup.draw(mix, seed)
    begin = time.process_time()
    tally = simulation.run(jobs)
    return _row(mix, policy, seed, tally, time.process_time() - begin)


def _row(mix: str, policy: Policy, seed: int, tally: Tally, seconds: float) -> Row:
    harmless = policy.ranking.harmless_slowdown if policy.harmless_loss is None else policy.harmless_loss
    return Row(
        mix, policy.name, seed, harmless, tally.gpu_seconds / HOUR, tally.makespan / HOUR,
        float(np.mean(tally.times)) / HOUR, float(np.percentile(tally.times, 95)) / HOUR,
        float(np.mean(tally.waits)) / HOUR, float(np.mean(tally.slowdowns)), tally.slowed,
        len(tally.jobs_with_oom) / tally.jobs, tally.lost_seconds / HOUR, len(tally.refused) / tally.jobs,
        tally.promised_mib_seconds / max(tally.used_mib_seconds, 1.0), tally.jobs / max(seconds, 1e-9),
    )  # fmt: skip


def compare(setup: Setup, seeds: int) -> Iterator[Row]:
    for mix in LOADS:
        for seed in range(FIRST, FIRST + seeds):
            for policy in policies():
                if mix != "busy" or policy.name in BUSY_POLICIES:
                    yield simulate(setup, mix, seed, policy)


def vary(setup: Setup, seeds: int) -> Iterator[Row]:
    """vramcast and the oracle, with other slowdowns that count as harmless, beside other policies on other jobs."""
    compared = [policy for policy in policies() if policy.name in CURVE_POLICIES]
    for seed in range(CHOOSING, CHOOSING + seeds):
        for mix in ("gavel", "lucid"):
            for policy in compared:
                yield simulate(setup, mix, seed, policy)
            for harmless in HARMLESS:
                learned = ours("learned", 0.05, Ranking(harmless_slowdown=harmless))
                yield simulate(setup, mix, seed, replace(learned, name=VARIED))
            for loss in HARMLESS_LOSSES:
                yield simulate(setup, mix, seed, replace(ORACLE, name=VARIED_ORACLE, harmless_loss=loss))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--gpus", type=int, default=32)
    parser.add_argument("--out", type=Path, help="a page; plots go to images/ next to it")
    parser.add_argument("--rows", type=Path, help="write every run as JSON lines")
    parser.add_argument("--again", type=Path, help="make the page from such a file, without simulating")
    arguments = parser.parse_args()
    if arguments.again:
        rows = [Row(**json.loads(line)) for line in arguments.again.read_text(encoding="utf-8").splitlines()]
        write_page(arguments.out, rows, arguments.seeds, arguments.jobs, arguments.gpus)
        return
    measured = read_measured(arguments.data / "clusters")
    trace = read_trace(arguments.data / "clusters", arguments.data / "extra/gavel_colocation.csv", measured.kinds)
    base = choose_forecaster(BUILTIN, 0.05, physics_if_unusable=False)
    setup = Setup(measured, trace, base, arguments.jobs, arguments.gpus)
    gc.freeze()  # as the service does once it has started
    rows = []
    for row in chain(compare(setup, arguments.seeds), vary(setup, arguments.seeds)):
        print(json.dumps(asdict(row)), flush=True)
        rows.append(row)
    if arguments.rows:
        arguments.rows.write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows), encoding="utf-8")
    if arguments.out:
        write_page(arguments.out, rows, arguments.seeds, arguments.jobs, arguments.gpus)


if __name__ == "__main__":
    main()
