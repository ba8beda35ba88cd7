"""docs/benchmarks/interference.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from bench.interference import gavel
from bench.interference.cold import ASSUMED_UTILIZATION
from bench.interference.lucid import Check, Pairs, check
from bench.interference.others import BUSY_POWERS, Chosen, by_power, with_compute
from bench.interference.recall import PRECISION, TOO_SLOW, Floats

from vramcast.placement.interference import BUSY_POWER, SLOWDOWN


@dataclass(frozen=True, slots=True)
class Found:
    """`recorded`: kinds whose cold forecast is from a recording, 1 or 0."""

    fitted: gavel.Pairs
    measured: Pairs
    cold: Floats
    recorded: Floats
    trees: Mapping[str, float]
    others: Mapping[str, Chosen]


def page(found: Found) -> str:
    real, every = (check(pairs, pairs.alone.pressures) for pairs in (found.measured.real, found.measured))
    return "\n".join([_head(found, real, every), _trees(found, real), _laws(found), _cold(found, real), _forms(found)])


def _head(found: Found, real: Check, every: Check) -> str:
    newest = found.fitted.on(gavel.NEWEST)
    fitted_error = float(np.abs(1 + SLOWDOWN * gavel.loss(newest) - newest.slowdown).mean())
    low, high = real.interval
    recalled = f"{real.recall:.1%} ({low:.0%} to {high:.0%})"
    apart = every.pairs - real.pairs
    return f"""# Slowdown of tasks that share a GPU

`python -m bench.interference --gavel … --lucid-alone … --lucid-pairs … --out docs/benchmarks/interference.md` fits the
one constant of `placement/interference.py` to pairs of jobs that Gavel measured (MIT), and checks it on pairs that
Lucid measured (RTX 3090; only evaluated, never used for fitting).

The law: beside a neighbour, a run takes `1 + {SLOWDOWN:.2f} x its pressure x its neighbour's pressure` times as long as
alone. For Lucid's jobs the pressure is `GPU utilization^{BUSY_POWER:g} x memory utilization^{1 - BUSY_POWER:g}`, both
measured while the job ran alone.

| | Gavel's V100, fitted | Lucid, not fitted | all of Lucid's rows |
|---|---|---|---|
| jobs in pairs | {len(newest.own):,} | {2 * real.pairs:,} | {2 * every.pairs:,} |
| mean absolute error of a job's slowdown | {fitted_error:.3f} | {real.error_job:.3f} | {every.error_job:.3f} |
| … of a pair's slower job | | {real.error_pair:.3f} | {every.error_pair:.3f} |
| … if nothing were expected to slow anything | | {real.error_of_none:.3f} | {every.error_of_none:.3f} |
| pairs above {TOO_SLOW}x | | {real.slow_pairs} | {every.slow_pairs} |
| of those recognized, at a precision of {PRECISION} | | {recalled} | {every.recall:.0%} |

The range in parentheses holds 95 of 100 results when the pairs are drawn again with replacement. The goals are an error
of 0.10 for a job's slowdown, and 75 % of the slow pairs recognized.

{_constants(found)}

**{apart} of Lucid's rows are not pairs.** The memory that was read while such a "pair" ran is that of one job alone,
and so is the GPU's utilization. For example, MobileNetV3 beside LSTM took 3,909 MiB, but LSTM alone takes 3,884 and
MobileNetV3 alone 4,428. According to that row both ran at full speed, although each of them alone keeps the GPU busy
all the time. So one of the two was not running. Rows that lack more than half of the smaller job's memory are left out,
here and in the [simulator](../what-it-buys.md); {every.slow_pairs - real.slow_pairs} of them are above {TOO_SLOW}x. The
last column includes them. They are only {apart / every.pairs:.0%} of the rows, but some have busy jobs, and those come
first in every order by utilization.

A3C, CycleGAN and Recommendation are left out of the fit; `bench/interference/gavel.py` says why.
"""


def _constants(found: Found) -> str:
    constants = {}
    for gpu in ("k80", "p100", "v100"):
        pairs = found.fitted.on(gpu)
        constants[gpu] = gavel.fit(gavel.loss(pairs), pairs.slowdown)[0]
    overall, _ = gavel.fit(gavel.loss(found.fitted), found.fitted.slowdown)
    real = found.measured.real
    with_all = check(real, real.alone.pressures, overall)
    k80, p100, v100 = constants.values()
    return f"""\
The constant comes from the newest of Gavel's GPUs, because tasks slow each other less on newer GPUs: it is {k80:.2f} on
the K80, {p100:.2f} on the P100 and {v100:.2f} on the V100. Fitted to all three together it is {overall:.2f}, and the
error on Lucid's jobs is {with_all.error_job:.3f}. The constant does not change the order of the pairs, and so it does
not change which of them are recognized."""


def _trees(found: Found, real: Check) -> str:
    alone, pairs = found.measured.alone, found.measured.real
    rows = {
        "the law": real.recall,
        "GPU utilization alone": pairs.recalled(pairs.products(alone.busy)),
        "memory utilization alone": pairs.recalled(pairs.products(alone.memory)),
        "trees that know other batch sizes of both models, beside other models": found.trees["pair"],
        "trees that know neither model": found.trees["strict"],
    }
    shown = "\n".join(f"| {name} | {recalled:.0%} |" for name, recalled in rows.items())
    return f"""## How much more could be recognized

For comparison: trees that are *fitted to Lucid's own pairs* and know the GPU and memory utilization, memory, batch
size, precision and speed of both jobs.

| pairs ordered by | recognized |
|---|---|
{shown}

Utilization is the share of time in which a kernel runs. What slows a neighbour down is how much of the GPU a kernel
fills and how long it runs, and utilization shows neither. Most of the slow pairs that are missed combine a network of
many short kernels (EfficientNet, MobileNet) with one of long kernels (DCGAN, LSTM).
"""


def _laws(found: Found) -> str:
    alone, pairs = found.measured.alone, found.measured.real
    powers = []
    for power in BUSY_POWERS:
        order = pairs.products(by_power(alone, power))
        _, error = gavel.fit(np.concatenate([order, order]), pairs.slowdowns.ravel())
        shown = f"**{power:g}**" if power == BUSY_POWER else f"{power:g}"
        powers.append(f"| {shown} | {pairs.recalled(order):.1%} | {error:.4f} |")
    compute = [
        f"| {name} | {pairs.recalled(pairs.products(pressures)):.1%} |"
        for name, pressures in with_compute(alone, BUSY_POWER).items()
    ]
    laws = [
        f"| {name} | {one.members} | {one.on_choosing_half:.0%} | {one.on_other_half:.0%} | "
        f"{one.shipped_on_other_half:.0%} | {one.best:.0%} |"
        for name, one in found.others.items()
    ]
    halves = next(iter(found.others.values())).halves
    return f"""## Whether another law would do better

A job is slowed down while its kernels run, so it suffers in proportion to its GPU utilization. How much it disturbs
others also depends on how much its kernels demand of the GPU: that is the geometric mean of both utilizations. The
pressure stands for suffering and disturbing at once, as the geometric mean of the two. So GPU utilization gets the
power 3/4 and memory utilization 1/4. This argument was made only after equal powers (1/2 and 1/2) had recognized too
few of Lucid's pairs, so the recall looks somewhat better than it should. But the exact powers matter little:

| power of the busy share (the rest is memory's) | recognized | error with the best constant |
|---|---|---|
{chr(10).join(powers)}

For the last column, the constant was fitted to Lucid's pairs themselves.

**Compute demand** is the share of the GPU's peak arithmetic that a job uses, by the network's FLOPs and its measured
speed. It adds nothing where memory utilization is measured:

| work is | recognized |
|---|---|
{chr(10).join(compute)}

Jobs share two things on a GPU, time and memory bandwidth, and a law may count these separately. From each family of
laws below, the member that recognizes the most pairs of one half of Lucid's models is judged on the pairs of the other
half. The figures are means over {halves} ways of halving. Pairs within one half are fewer and easier, so the table also
has the shipped law on the same pairs.

| family | members | on the half that chose | on the other half | the shipped law there | best of all, in hindsight |
|---|---|---|---|---|---|
{chr(10).join(laws)}
"""


def _cold(found: Found, real: Check) -> str:
    alone, pairs = found.measured.alone, found.measured.real
    cold = check(pairs, found.cold)
    recorded = found.recorded > 0
    missed = np.abs(found.cold - alone.pressures)
    return f"""## Before a task has run

The figures above are for tasks that telemetry has seen alone on a GPU. Until then, the forecast of their utilization
counts. With forecasts alone the error of a job's slowdown is {cold.error_job:.3f}, and {cold.recall:.0%} of the slow
pairs are recognized (with telemetry {real.error_job:.3f} and {real.recall:.0%}). Most of Lucid's networks are described
by totals here, and many of the jobs wait for their data, which no description says.

For runs with a recording ({int(recorded.sum())} of the {len(recorded)} kinds), utilization follows from the parts of
their step (`forecast/duty.py`). Their forecast pressure is off by {missed[recorded].mean():.2f} on average, and that of
the others by {missed[~recorded].mean():.2f}. With `assumed_utilization` in its place, the runs with a recording would
be off by {np.abs(alone.pressures[recorded] - ASSUMED_UTILIZATION).mean():.2f}.
"""


def _forms(found: Found) -> str:
    forms = [f"| {name} | {error:.3f} |" for name, error in gavel.blind_errors(found.fitted).items()]
    return f"""## What Gavel's pairs say of the form

Gavel's data tells one number for each job, the share of its step that grows with the batch, and has four models. The
table has each form's mean absolute error on a model that its constant was not fitted to, over all three GPUs:

| a job loses, times a constant | error on Gavel |
|---|---|
{chr(10).join(forms)}

By this measure the other job's share alone would be the best form. But on Lucid's pairs it recognizes nothing: there is
no threshold above which four of five pairs are slow, because no neighbour slows down a job that hardly uses the GPU.
"""
