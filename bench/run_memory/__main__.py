"""How well former runs say what the next one takes, on measured runs.

    python -m bench.run_memory --data DIR --out docs/benchmarks/run-memory.md

`DIR` has `runs/fms_acceleration.csv`, `runs/gpjt_deepspeed_sweeps.csv`, `runs/timm_train_amp_intervals.csv`, and timm's
runs in `measurements.csv` with their `profiles/`. Each run is hidden in turn and forecast from others of its own task
or network; the real RunMemory answers. Its margins are chosen on every other model, and reported on the rest.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import mean, median

from bench.run_memory.intervals import amp_section
from bench.run_memory.rows import A100, RISK, Measured, fms_repeats, gpjt_sweeps, timm_networks

from vramcast.forecast.forecast import RISKS, Forecast, Source
from vramcast.forecast.forecaster import adjust
from vramcast.names import PodUid
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_memory import SCATTER_BY_AGE, SCATTER_OF_NETWORK, RunMemory, Scatter
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending
from vramcast.task.task import Task, task_fingerprint
from vramcast.task.vocabulary import Level

_DAY = 86_400.0
_TAIL = 1.5  # per step of RISKS beyond what so few runs can show


@dataclass(frozen=True, slots=True)
class Answer:
    """What memory says about a hidden run. `age`: of the newest run that it knows, in seconds."""

    expected_mib: float
    bound_mib: float
    hidden: Measured
    age: float = 0.0

    @property
    def error(self) -> float:
        return abs(self.expected_mib / self.hidden.mib - 1.0)

    @property
    def covered(self) -> bool:
        return self.hidden.mib <= self.bound_mib

    @property
    def over(self) -> float:
        return self.bound_mib / self.hidden.mib - 1.0

    @property
    def loss(self) -> float:
        """Pinball loss of the bound, as a candidate model is judged: a miss against over-reservation, by the risk."""
        short = math.log(self.hidden.mib / self.bound_mib)
        return max((1.0 - RISK) * short, -RISK * short)

    @property
    def surprise(self) -> float:
        return math.log(self.hidden.mib / self.expected_mib)


def answer(known: Sequence[Measured], hidden: Measured) -> Answer | None:
    memory = RunMemory(lambda: hidden.at)
    priors = {run.task: run.prior_mib for run in (*known, hidden)}

    def forecast(task: Task) -> Forecast:
        prior_bytes = round(priors[task] * MIB)
        return Forecast(A100, prior_bytes, prior_bytes, RISK, Source.PHYSICS, "prior")

    for number, run in enumerate(known):
        prior = round(run.prior_mib * MIB)
        memory.record(
            Outcome(
                PodUid(str(number)), f"{run.task.namespace}/p", "", task_fingerprint(run.task), "", Level.NAME, A100,
                "", RISK, prior, prior, round(run.mib * MIB), Ending.SUCCEEDED, run.at,
            ),
            run.task,
        )  # fmt: skip
    recalled = memory.recall(hidden.task, A100, forecast(hidden.task), forecast)
    if recalled is None:
        return None
    adjusted = adjust(forecast(hidden.task), recalled)
    age = hidden.at - max(run.at for run in known)
    return Answer(adjusted.median_bytes / MIB, adjusted.bound_bytes / MIB, hidden, age)


# ------------------------------------------------------------------ cases


def repeated(repeats: Iterable[Sequence[Measured]], *, earlier: int | None) -> Iterator[Answer]:
    """Each run from the `earlier` runs before it; None: from all of them."""
    for runs in repeats:
        for at in range(1, len(runs)):
            found = answer(runs[max(0, at - earlier) if earlier else 0 : at], runs[at])
            if found is not None:
                yield found


def other_batches(networks: Iterable[Sequence[Measured]], *, known: int) -> Iterator[Answer]:
    """Each run from the runs at the `known` batch sizes nearest to its own."""
    for runs in networks:
        for hidden in runs:
            others = [run for run in runs if run.task.batch_size != hidden.task.batch_size]
            found = answer(_nearest(others, hidden, lambda task: task.batch_size)[:known], hidden)
            if found is not None:
                yield found


def between(
    sweeps: Iterable[Sequence[Measured]], size: Callable[[Task], int], is_known: Callable[[int], bool]
) -> Iterator[Answer]:
    """Runs of a sweep along `size` at some sizes are known; the others are asked for."""
    for sweep in sweeps:
        for hidden in sweep:
            known = [
                run for run in sweep if is_known(size(run.task)) and _elsewhere(run, size) == _elsewhere(hidden, size)
            ]
            ends = [size(run.task) for run in known]
            if not is_known(size(hidden.task)) and len(known) > 1 and min(ends) < size(hidden.task) < max(ends):
                found = answer(_nearest(known, hidden, size)[:4], hidden)
                if found is not None:
                    yield found


def _elsewhere(run: Measured, size: Callable[[Task], int]) -> set[int]:
    """Its sizes but this one."""
    return {run.task.batch_size, length_of(run.task)} - {size(run.task)}


def _nearest(runs: Iterable[Measured], to: Measured, size: Callable[[Task], int]) -> list[Measured]:
    return sorted(runs, key=lambda run: abs(math.log(size(run.task) / size(to.task))))


def length_of(task: Task) -> int:
    return task.sequence_length or 1


def batch_of(task: Task) -> int:
    return task.batch_size


def is_power_of_two(size: int) -> bool:
    return size & (size - 1) == 0


# ------------------------------------------------------------------ halves, and margins from one of them


def every_other_model(answers: Sequence[Answer]) -> tuple[list[Answer], list[Answer]]:
    """(to choose on, to report on): whole models, in the order of their names."""
    names = sorted({each.hidden.model for each in answers})
    chosen = set(names[::2])
    return [a for a in answers if a.hidden.model in chosen], [a for a in answers if a.hidden.model not in chosen]


def scatter_of(surprises: Sequence[Sequence[float]]) -> Scatter:
    """At each of RISKS: the largest conformal quantile of any of these groups."""
    margins = [0.0]
    for risk in RISKS[1:]:
        if max(map(len, surprises)) < 1.0 / risk - 1.0:
            margins.append(round(_TAIL * margins[-1], 3))
            continue
        margins.append(round(max(margins[-1], *(_quantile(group, risk) for group in surprises)), 3))
    return tuple(margins)


def _quantile(values: Sequence[float], risk: float) -> float:
    """The largest value, where there are too few."""
    ordered = sorted(values)
    return ordered[min(len(ordered), math.ceil((len(ordered) + 1) * (1.0 - risk))) - 1]


def chosen_by_age(answers: Sequence[Answer]) -> tuple[tuple[float, Scatter], ...]:
    """The next model is unlike these, so the margin is that of the one that scatters most."""
    found, youngest = [], -1.0
    for limit, _ in SCATTER_BY_AGE:
        of_age = sorted((a for a in answers if youngest < a.age <= limit), key=lambda a: a.hidden.model)
        groups = [[a.surprise for a in group] for _, group in groupby(of_age, key=lambda a: a.hidden.model)]
        found.append((limit, scatter_of(groups)))
        youngest = limit
    return tuple(found)


# ------------------------------------------------------------------ the page


@dataclass(frozen=True, slots=True)
class Slice:
    name: str
    answers: list[Answer]

    def row(self) -> str:
        return f"| {self.name} | {len(self.answers)} | {_figures(self.answers)} | {self._without()} |"

    def _without(self) -> str:
        """The same runs by what ships, as far as it knows their models."""
        without = [
            Answer(shipped.median_mib, shipped.bound_mib, each.hidden)
            for each in self.answers
            if (shipped := each.hidden.shipped) is not None
        ]
        return f"{len(without)} | {_figures(without)}" if without else "0 | | | | |"


def _figures(answers: Sequence[Answer]) -> str:
    errors = [each.error for each in answers]
    over, covered = median(each.over for each in answers), mean(each.covered for each in answers)
    loss = 1000 * mean(each.loss for each in answers)
    return f"{median(errors):.1%} | {mean(errors):.1%} | {covered:.1%} | {over:.1%} | {loss:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of measured runs")
    parser.add_argument("--out", type=Path, help="where to write the page")
    arguments = parser.parse_args()
    repeats, networks, sweeps = (read(arguments.data) for read in (fms_repeats, timm_networks, gpjt_sweeps))
    print("read", flush=True)
    once, unreported = _halves(repeated(repeats, earlier=1))
    two, two_unreported = _halves(other_batches(networks, known=2))
    one, one_unreported = _halves(other_batches(networks, known=1))
    by_age = chosen_by_age(unreported)
    of_network = scatter_of([[a.surprise for a in (*two_unreported, *one_unreported)]])
    _compare(by_age, of_network)
    kinds = sorted({a.hidden.kind for a in once})
    slices = [
        Slice("fms, the same task after one run", once),
        *(Slice(f"fms, after one run: {kind}", [a for a in once if a.hidden.kind == kind]) for kind in kinds),
        Slice("fms, after all earlier runs", _halves(repeated(repeats, earlier=None))[0]),
        Slice("timm fp32, two other batch sizes known", two),
        Slice("timm fp32, one other batch size known", one),
        Slice("DeepSpeed, batches between powers of two", list(between(sweeps, batch_of, is_power_of_two))),
        Slice("DeepSpeed, lengths between multiples of 256", list(between(sweeps, length_of, lambda n: n % 256 == 0))),
    ]
    table = "\n".join(each.row() for each in slices)
    print(table, flush=True)
    if arguments.out:
        amp = amp_section(arguments.data)
        arguments.out.write_text(page(table, margins_table(by_age, of_network), once + unreported, amp))


def _halves(answers: Iterable[Answer]) -> tuple[list[Answer], list[Answer]]:
    """(reported, the margins were chosen on)"""
    chosen_on, reported = every_other_model(list(answers))
    return reported, chosen_on


def _compare(by_age: tuple[tuple[float, Scatter], ...], of_network: Scatter) -> None:
    if (by_age, of_network) != (SCATTER_BY_AGE, SCATTER_OF_NETWORK):
        print("outcomes/run_memory.py has other margins than these:", by_age, of_network, sep="\n", flush=True)


def margins_table(by_age: Sequence[tuple[float, Scatter]], of_network: Scatter) -> str:
    names = [f"the same task, up to {limit / _DAY:.0f} days ago" for limit, _ in by_age[:-1]] + ["the same task, later"]
    rows = [*zip(names, (scatter for _, scatter in by_age), strict=True), ("the same network", of_network)]
    return "\n".join(f"| {name} | {' | '.join(f'{m:.1%}' for m in map(math.expm1, s[1:]))} |" for name, s in rows)


_FIGURES = "median error | mean error | covered | median over | loss"
HEAD = f"| runs | cases | {_FIGURES} | known by name | {_FIGURES} |\n|{'---|' * 13}"


def page(table: str, margins: str, repeats: Sequence[Answer], amp: str) -> str:
    everything = median(each.error for each in repeats)
    return f"""# Run memory on measured runs

How well former runs of a task, or of its network at other sizes, say what the next run takes. Every run is hidden in
turn. The bound is the one at risk {RISK:g}.

    python -m bench.run_memory --data DIR --out docs/benchmarks/run-memory.md

Must: after one run a median error of 2.5 % and 94 % covered at 8 % over; from one batch size to another 2 %.

{HEAD}
{table}

The columns from *known by name* on are the same runs without memory: the forecast that ships, where the catalog has
the model. It was trained on timm's runs, so there it is flattered; on networks that it has not seen, its median error
is [2.0 %](../forecast.md). Memory shifts the physics prior there, which has seen none of them. *Loss* is the pinball
loss of the bound in logarithms, times 1,000: misses and over-reservation weighed by the risk, so lower is better.

fms repeats the same configurations over a year of library versions; the median of a day counts once. Over all of its
models the median error is {everything:.1%}. DeepSpeed's figures are torch's reserved memory without a CUDA context.
The batches that are missed there are those at which the allocator's cache jumps by up to a tenth.

## Margins

How far above the last run a bound lies, by risk. Every other model, in the order of their names, was used to choose
them (`every_other_model`), and the table above has only the others. For the same task it is the margin of the model
that scatters most, because the next model is unlike all of these: the plain quantile over the same half covers 93.5 %
of the other half, at 4.1 % over-reservation. Both rules were tried on the reported half; nothing else was. DeepSpeed's
runs chose nothing.

| | {" | ".join(f"{risk:g}" for risk in RISKS[1:])} |
|---|{"---|" * len(RISKS[1:])}
{margins}

{amp}"""


if __name__ == "__main__":
    main()
