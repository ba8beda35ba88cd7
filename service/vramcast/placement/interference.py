"""How much tasks on one GPU slow each other down.

A task has a *pressure*, from 0 to 1, made of two shares of the time: in which its kernels run (busy), and in which they
keep the GPU's cores or memory at work (work). It suffers while its kernels run, by its busy share. It disturbs its
neighbours by the geometric mean of both. One number for the two, their geometric mean, is `busy^3/4 x work^1/4`. A run
beside others takes

    1 + SLOWDOWN * its pressure * the sum of the others' pressures

times as long as alone. With one number the law is symmetric: what a newcomer suffers, its neighbours together suffer
too. So each GPU has a single sum of pressures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from vramcast.hardware.utilization import Utilization

# Fitted on the pairs of jobs that Gavel measured (stanford-futuredata/gavel, MIT) on its newest GPU, the V100, with
# `python -m bench.interference`.
SLOWDOWN = 0.78
BUSY_POWER = 0.75


@dataclass(frozen=True, slots=True)
class Load:
    """What a task does to its neighbours, and what it accepts from them."""

    busy: float = 0.0  # share of time in which its kernels run, 0 to 1
    pressure: float = 0.0
    most_slowdown: float = math.inf  # of the task itself, by the annotation max-slowdown

    def measured(self, busy: float, work: float | None = None) -> Load:
        """The same task, after telemetry has shown how busy it keeps a GPU of its own.

        `work`: the share of time in which that GPU's memory was at work. Unknown, it follows the forecast.
        """
        if work is not None:
            return Load(busy, pressure(busy, work), self.most_slowdown)
        intensity = self.pressure / self.busy if self.busy > 0 else 1.0
        return Load(busy, min(1.0, busy * intensity), self.most_slowdown)


IDLE = Load()


def pressure(busy: float, work: float) -> float:
    return float(_share(busy) ** BUSY_POWER * _share(work) ** (1.0 - BUSY_POWER))


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)


@lru_cache(maxsize=4096)  # filter asks for every GPU product, and the pods of a job all alike
def load_of(utilization: Utilization, assumed: float, most_slowdown: float | None) -> Load:
    """`assumed`: the share of a task whose utilization is not known."""
    known = [share for share in (utilization.sm_active, utilization.dram_active) if share is not None]
    # A kernel waits for the cores or for the memory, whichever is busier.
    work = max(known, default=utilization.gpu_util if utilization.gpu_util is not None else assumed)
    busy = utilization.gpu_util if utilization.gpu_util is not None else work
    return Load(busy, pressure(busy, work), math.inf if most_slowdown is None else most_slowdown)


def slowdown(own_pressure: float, others_pressure: float) -> float:
    """`others_pressure`: the sum over all other tasks on the GPU."""
    return 1.0 + SLOWDOWN * own_pressure * others_pressure


def tolerated(tenants: Sequence[Load]) -> float:
    """The most pressure that a newcomer may bring without slowing any of these beyond what it accepts."""
    limited = [load for load in tenants if load.most_slowdown < math.inf and load.pressure > 0]
    if not limited:
        return math.inf
    total = sum([load.pressure for load in tenants])
    return min((load.most_slowdown - 1.0) / (SLOWDOWN * load.pressure) - (total - load.pressure) for load in limited)
