"""Simulated clusters whose runs follow a known law, to judge calibration.

The model forecasts a median and a bound for each run; the law gives what the run really needs. An oracle that knows the
law reserves its quantile. No calibration can do better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from vramcast.forecast.forecast import Adjustment
from vramcast.names import PodUid, Product
from vramcast.outcomes.outcome import Outcome
from vramcast.task.run_status import Ending

Floats = NDArray[np.float64]
RISK = 0.05
MODEL = "model-1"
GIB = 1 << 30
NORMAL = NormalDist()
_Z = NORMAL.inv_cdf(1 - RISK)
_T3 = 2.3534  # the same quantile of Student's t with three degrees of freedom


@dataclass(frozen=True, slots=True)
class Law:
    """How log(need / the model's median) is distributed, given the run's number and the model's margin."""

    name: str
    draw: Callable[[np.random.Generator, int, float], float]
    quantile: Callable[[int, float], float]
    misses_oom: bool = False
    settled_at: int = 60  # the risk must be kept from this run on
    margin: float | None = None  # of the model's bound, if the law sets it


def _normal(shift: float, width: float = 1.0) -> tuple[Callable[..., float], Callable[..., float]]:
    return (
        lambda rng, _number, margin: shift + width * margin / _Z * rng.standard_normal(),
        lambda _number, margin: shift + width * margin,
    )


def _shifting(rng: np.random.Generator, number: int, margin: float) -> float:
    return (math.log(1.3) if number >= 150 else 0.0) + margin / _Z * float(rng.standard_normal())


def _spiking(rng: np.random.Generator, _number: int, margin: float) -> float:
    """In a tenth of the runs an autotuner takes 40 % more."""
    return (math.log(1.4) if rng.random() < 0.1 else 0.0) + margin / _Z * float(rng.standard_normal())


def _spiking_quantile(_number: int, margin: float) -> float:
    low, high = 0.0, 3.0
    for _ in range(50):
        middle = (low + high) / 2
        plain, spiked = (1 - NORMAL.cdf((middle - at) / (margin / _Z)) for at in (0.0, math.log(1.4)))
        low, high = (middle, high) if 0.9 * plain + 0.1 * spiked > RISK else (low, middle)
    return high


LAWS = (
    Law("the model is right", *_normal(0.0)),
    Law("20 % more", *_normal(math.log(1.2))),
    Law("50 % more", *_normal(math.log(1.5))),
    Law("25 % less", *_normal(math.log(0.75))),
    Law(
        "20 % more, heavy tails",
        lambda rng, _number, margin: math.log(1.2) + margin / _Z * float(rng.standard_t(3)),
        lambda _number, margin: math.log(1.2) + margin / _Z * _T3,
    ),
    Law("twice as wide", *_normal(0.0, 2.0)),
    Law("half as wide", *_normal(0.0, 0.5)),
    Law("width that the model does not know", lambda rng, *_: 0.1 * float(rng.standard_normal()), lambda *_: 0.1 * _Z),
    Law("spikes in a tenth of the runs", _spiking, _spiking_quantile),
    Law("20 % more, and each miss dies", *_normal(math.log(1.2)), misses_oom=True),
    Law("30 % more from run 150 on", _shifting, lambda n, m: (math.log(1.3) if n >= 150 else 0.0) + m, settled_at=210),
)


# The model has never seen such runs: LoRA, sharding, another framework.
NEW_KINDS = (
    Law(
        "a bound three times too wide", lambda rng, *_: 0.05 * float(rng.standard_normal()), lambda *_: 0.05 * _Z,
        margin=math.log(3.0) + 0.05 * _Z,
    ),
    Law(
        "median and bound three times too high",
        lambda rng, *_: -math.log(3.0) + 0.05 * float(rng.standard_normal()),
        lambda *_: -math.log(3.0) + 0.05 * _Z, margin=0.05 * _Z,
    ),
    Law(
        "three times too wide, and runs that scatter by a fifth", lambda rng, *_: 0.2 * float(rng.standard_normal()),
        lambda *_: 0.2 * _Z, margin=math.log(3.0) + 0.2 * _Z,
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Run:
    number: int
    median_bytes: float
    bound_bytes: float  # the model's own, without calibration
    need_bytes: float
    oracle_bytes: float


def runs(law: Law, seed: int, count: int) -> Iterator[Run]:
    rng = np.random.default_rng(seed)
    for number in range(count):
        median = 8 * GIB * math.exp(0.8 * rng.standard_normal())
        drawn = float(np.clip(0.09 * math.exp(0.6 * rng.standard_normal()), 0.005, 0.5))
        margin = drawn if law.margin is None else law.margin
        need = median * math.exp(law.draw(rng, number, margin))
        oracle = median * math.exp(law.quantile(number, margin))
        yield Run(number, median, median * math.exp(margin), need, oracle)


def finish(run: Run, law: Law, adjustment: Adjustment, family: str = "cnn", risk: float = RISK) -> Outcome:
    """The outcome as telemetry reports it. After an OOM, the peak shows no more than the bound."""
    bound = run.bound_bytes * adjustment.bound
    oom = law.misses_oom and run.need_bytes > bound
    return Outcome(
        uid=PodUid(f"{family}-{run.number}"),
        pod=f"default/{family}-{run.number}",
        owner="",
        fingerprint="",
        family=family,
        level="summary",
        product=Product("NVIDIA-A100-SXM4-40GB"),
        model_version=MODEL,
        risk=risk,
        median_bytes=round(run.median_bytes * adjustment.median),
        bound_bytes=round(bound),
        peak_bytes=round(bound if oom else run.need_bytes),
        ending=Ending.OOM if oom else Ending.SUCCEEDED,
        ended_at=float(run.number),
        adjustment=adjustment,
    )
