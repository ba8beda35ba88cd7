"""docs/what-it-buys.md and its plots, from the rows of a comparison."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from bench.cluster.policies import EQUAL

from vramcast.placement.board import DEFAULT_RANKING

if TYPE_CHECKING:
    from bench.cluster.__main__ import Row

WHOLE = "whole GPUs"
VARIED = "varied"  # not a row of the table: vramcast with other values of harmless_slowdown
VARIED_ORACLE = "varied oracle"
# The first seed that is reported. The ones below it may have been looked at while the ranking and the rule for its
# default were made.
FIRST = 30
# From this seed on, jobs on which harmless_slowdown is varied and its default was chosen.
CHOOSING = 100
CURVE_POLICIES = (WHOLE, f"human, typically x {EQUAL:g}", "human, typically x 2")
OURS, PACKING = "vramcast 0.05, learned", "vramcast 0.05, packing only, learned"
# Where sharing does not pay, these are enough to show it.
BLIND = f"{OURS}, without memory_util"
BUSY_POLICIES = (WHOLE, f"human, typically x {EQUAL:g}", PACKING, OURS, f"{OURS}, max-slowdown 1.3", BLIND, "oracle")
_SAME_RANKING = f"human, typically x {EQUAL:g}, ranked by vramcast"
_NAMES = {"gavel": "Gavel's models", "lucid": "Lucid's mix", "busy": "Only jobs above 90 % GPU utilization, load 0.3"}


class Table:
    """Rows by mix and policy. Ratios are to whole GPUs on the same seed's jobs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows
        self.policies = list(dict.fromkeys(row.policy for row in rows))
        self.mixes = list(dict.fromkeys(row.mix for row in rows))

    def values(self, mix: str, policy: str, of: Callable[[Row], float]) -> list[float]:
        return [of(row) for row in self._rows if (row.mix, row.policy) == (mix, policy)]

    def whole(self, row: Row) -> Row:
        """Whole GPUs with the same jobs."""
        same = (row.mix, row.seed, WHOLE)
        return next(other for other in self._rows if (other.mix, other.seed, other.policy) == same)

    def ratios(self, mix: str, policy: str, of: Callable[[Row], float], to: str = WHOLE) -> list[float]:
        pairs = zip(self.values(mix, policy, of), self.values(mix, to, of), strict=True)
        return [one / other for one, other in pairs]


class Curve:
    """A policy with several slowdowns that count as harmless, beside other policies on the same jobs."""

    def __init__(self, rows: Sequence[Row], varied: str = VARIED) -> None:
        self._rows = [row for row in rows if row.policy == varied]
        self._table = Table([row for row in rows if row.policy not in (VARIED, VARIED_ORACLE)])
        self.limits = sorted({row.harmless for row in self._rows})

    @property
    def told_seeds(self) -> str:
        seeds = {row.seed for row in self._rows}
        return f"seeds {min(seeds)} to {max(seeds)}"

    def ratios(self, mix: str, of: Callable[[Row], float]) -> list[list[float]]:
        """To whole GPUs, at each limit, by seed."""
        return [[of(row) / of(self._table.whole(row)) for row in self._at(mix, limit)] for limit in self.limits]

    def means(self, mix: str, of: Callable[[Row], float]) -> list[float]:
        return [float(np.mean(ratios)) for ratios in self.ratios(mix, of)]

    def standard_errors(self, mix: str, of: Callable[[Row], float]) -> list[float]:
        """Of those means; 0 for one seed, which tells none."""
        return [float(np.std(r, ddof=1)) / len(r) ** 0.5 if len(r) > 1 else 0.0 for r in self.ratios(mix, of)]

    def slowed(self, mix: str) -> list[float]:
        return [float(np.mean([row.slowed for row in self._at(mix, limit)])) for limit in self.limits]

    def as_fast_as(self, mix: str, policy: str) -> tuple[float, list[float]]:
        """The limit at which the mean job time is that of the policy, and the GPU-hours then, against it, by seed."""
        aimed = float(np.mean(self._table.ratios(mix, policy, lambda r: r.mean_hours)))
        times = np.maximum.accumulate(self.means(mix, lambda r: r.mean_hours))
        limit = float(np.interp(aimed, times, self.limits))
        seeds = sorted({row.seed for row in self._rows})
        hours = [[row.gpu_hours for row in self._at(mix, one)] for one in self.limits]
        ours = [float(np.interp(limit, self.limits, [one[place] for one in hours])) for place in range(len(seeds))]
        theirs = self._table.values(mix, policy, lambda r: r.gpu_hours)
        return limit, [one / other for one, other in zip(ours, theirs, strict=True)]

    def _at(self, mix: str, limit: float) -> list[Row]:
        found = [row for row in self._rows if (row.mix, row.harmless) == (mix, limit)]
        return sorted(found, key=lambda row: row.seed)


def _change(values: Sequence[float]) -> str:
    low, mean, high = (100 * (value - 1) for value in (min(values), float(np.mean(values)), max(values)))
    return f"{mean:+.0f} % ({low:+.0f} to {high:+.0f})"


def _share(values: Sequence[float]) -> str:
    return f"{100 * float(np.mean(values)):.1f} %"


def _lines(table: Table, mix: str) -> list[str]:
    names = (
        "policy", "GPU-hours", "makespan", "mean job time", "P95 job time", "waiting, h", "slowdown",
        "slowed above 1.3", "jobs with an OOM", "hours lost", "larger than a GPU", "reserved / used",
    )  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for policy in table.policies:
        if not table.values(mix, policy, lambda r: r.seed):
            continue

        def ratio(of: Callable[[Row], float], policy: str = policy) -> str:
            return _change(table.ratios(mix, policy, of))

        def mean(of: Callable[[Row], float], policy: str = policy) -> float:
            return float(np.mean(table.values(mix, policy, of)))

        lines.append(
            f"| {policy} | {ratio(lambda r: r.gpu_hours)} | {ratio(lambda r: r.makespan_hours)} | "
            f"{ratio(lambda r: r.mean_hours)} | {ratio(lambda r: r.p95_hours)} | {mean(lambda r: r.wait_hours):.2f} | "
            f"{mean(lambda r: r.slowdown):.2f} | {_share(table.values(mix, policy, lambda r: r.slowed))} | "
            f"{_share(table.values(mix, policy, lambda r: r.oom))} | {mean(lambda r: r.lost_hours):.1f} | "
            f"{_share(table.values(mix, policy, lambda r: r.refused))} | {mean(lambda r: r.reserved_over_used):.2f} |"
        )
    return lines


def _equal_ooms(table: Table, mix: str) -> str:
    """The human guess that has no more OOMs than ours and is tightest."""
    ours = float(np.mean(table.values(mix, OURS, lambda r: r.oom)))
    humans = [p for p in table.policies if p.startswith("human") and p != _SAME_RANKING]
    return next((p for p in humans if np.mean(table.values(mix, p, lambda r: r.oom)) <= ours + 0.001), humans[-1])


def _goals(table: Table, curve: Curve, oracle: Curve) -> list[str]:
    lines = ["| | goal | " + " | ".join(_NAMES[mix] for mix in ("gavel", "lucid")) + " |", "|---|---|---|---|"]

    def add(goal: str, must: str, of: Callable[[str], str]) -> None:
        lines.append(f"| {goal} | {must} | " + " | ".join(of(mix) for mix in ("gavel", "lucid")) + " |")

    def against(of: Callable[[Row], float], policy: str = OURS, human: bool = False) -> Callable[[str], str]:
        return lambda mix: _change(table.ratios(mix, policy, of, _equal_ooms(table, mix) if human else WHOLE))

    add("GPU-hours against whole GPUs", "-25 %", against(lambda r: r.gpu_hours))
    add("mean job time against whole GPUs", "no worse", against(lambda r: r.mean_hours))

    def as_fast(human: str, curve: Curve = curve) -> Callable[[str], str]:
        def told(mix: str) -> str:
            limit, ratios = curve.as_fast_as(mix, human)
            return f"{_change(ratios)} at {limit:.2f}" if curve is not oracle else _change(ratios)

        return told

    add(
        "GPU-hours against the human's guess at equal OOMs and equal mean job time", "-10 %", as_fast(CURVE_POLICIES[1])
    )
    add("... if people typically ask for x 2", "-10 %", as_fast(CURVE_POLICIES[2]))
    add("... the oracle instead of vramcast", "", as_fast(CURVE_POLICIES[1], oracle))
    add("... GPU-hours as installed", "-10 %", against(lambda r: r.gpu_hours, human=True))
    add("... mean job time as installed", "", against(lambda r: r.mean_hours, human=True))
    add("... GPU-hours, both packing only", "-10 %", against(lambda r: r.gpu_hours, PACKING, human=True))
    add("... GPU-hours, both ranked by vramcast", "-10 %",
        lambda mix: _change(table.ratios(mix, OURS, lambda r: r.gpu_hours, _SAME_RANKING)))  # fmt: skip
    cold = "vramcast 0.05, cold"
    add("jobs with an OOM, cold", "5 %", lambda mix: _share(table.values(mix, cold, lambda r: r.oom)))
    add("jobs with an OOM, learned", "1 %", lambda mix: _share(table.values(mix, OURS, lambda r: r.oom)))
    add("jobs slowed above 1.3, against packing only", "halved",
        lambda mix: _change(table.ratios(mix, OURS, lambda r: r.slowed, PACKING)))  # fmt: skip
    add("simulated jobs a second on one core, slowest and fastest policy", "2,000", lambda mix: _speeds(table, mix))
    return lines


def _speeds(table: Table, mix: str) -> str:
    """The median over the seeds, of the policy where it is lowest and of the one where it is highest."""
    speeds = [float(np.median(table.values(mix, policy, lambda r: r.jobs_per_second))) for policy in table.policies]
    return f"{min(speeds):,.0f}, {max(speeds):,.0f}"


def write_page(out: Path, rows: Sequence[Row], seeds: int, jobs: int, gpus: int) -> None:
    table = Table([row for row in rows if row.seed < CHOOSING])
    chosen_by = [row for row in rows if row.seed >= CHOOSING]
    curve, oracle = Curve(chosen_by), Curve(chosen_by, VARIED_ORACLE)
    images = out.parent / "images"
    _plot_policies(images / "what-it-buys.png", table)
    _plot_harmless(images / "harmless-slowdown.png", curve)
    out.write_text(page(table, curve, oracle, seeds, jobs, gpus), encoding="utf-8")
    if by_rule(curve) != DEFAULT_RANKING.harmless_slowdown:
        raise SystemExit(f"the default of harmless_slowdown should be {by_rule(curve)}: the page says how it is chosen")


def by_rule(curve: Curve) -> float | None:
    """The value that saves most GPU-hours while the jobs of each mix end no later than on whole GPUs.

    By a standard error of the mean at least. None: they end later at every value.
    """
    allowed, saved = [], np.zeros(len(curve.limits))
    for mix in ("gavel", "lucid"):
        times, errors = (of(mix, lambda r: r.mean_hours) for of in (curve.means, curve.standard_errors))
        allowed.append([time + error <= 1.0 for time, error in zip(times, errors, strict=True)])
        saved -= np.array(curve.means(mix, lambda r: r.gpu_hours))
    saved[~np.all(allowed, axis=0)] = -np.inf
    return curve.limits[int(saved.argmax())] if np.isfinite(saved).any() else None


def choice(curve: Curve) -> str:
    """The table that the default was chosen by."""
    lines = ["| `harmless_slowdown` | " + " | ".join(_NAMES[mix] for mix in ("gavel", "lucid")) + " |", "|---|---|---|"]
    told = {
        mix: [
            f"{100 * (hours - 1):+.1f} %, {100 * (times - 1):+.1f} ± {100 * error:.1f} %"
            for hours, times, error in zip(
                curve.means(mix, lambda r: r.gpu_hours),
                curve.means(mix, lambda r: r.mean_hours),
                curve.standard_errors(mix, lambda r: r.mean_hours),
                strict=True,
            )
        ]
        for mix in ("gavel", "lucid")
    }
    for place, limit in enumerate(curve.limits):
        mark = " (default)" if limit == DEFAULT_RANKING.harmless_slowdown else ""
        lines.append(f"| {limit:g}{mark} | {told['gavel'][place]} | {told['lucid'][place]} |")
    return "\n".join(lines)


def page(table: Table, curve: Curve, oracle: Curve, seeds: int, jobs: int, gpus: int) -> str:
    busy_gpu = _change(table.ratios("busy", OURS, lambda r: r.gpu_hours))
    busy_time = _change(table.ratios("busy", OURS, lambda r: r.mean_hours))
    blind_gpu = _change(table.ratios("busy", BLIND, lambda r: r.gpu_hours))
    blind_time = _change(table.ratios("busy", BLIND, lambda r: r.mean_hours))
    packed_gpu = _change(table.ratios("busy", PACKING, lambda r: r.gpu_hours))
    packed_time = _change(table.ratios("busy", PACKING, lambda r: r.mean_hours))
    sections = "\n".join(f"### {_NAMES[mix]}\n\n" + "\n".join(_lines(table, mix)) + "\n" for mix in table.mixes)
    return f"""# What it buys

A simulated cluster of {gpus} RTX 3090s runs {jobs} jobs under each policy, with {seeds} seeds. The decisions are made
by vramcast's real code: state, ledger, fit, score, calibration, run memory and OOM history. What a job does is
measured: how much memory it takes, and how much two jobs slow each other down (by Lucid; nothing in vramcast was fitted
on that data). Durations and arrival times are from Gavel's traces. The jobs belong to eight teams. A team learns from
the runs of the others how busy a task keeps a GPU, because telemetry shows it, but not how much memory the task took.

![GPU-hours and job time of each policy](images/what-it-buys.png)

![What harmless_slowdown does](images/harmless-slowdown.png)

Changes are relative to whole GPUs on the same jobs: the mean over the seeds, with the lowest and the highest in
parentheses.

{chr(10).join(_goals(table, curve, oracle))}

**The default.** Saving GPU-hours makes jobs slower, and `harmless_slowdown` sets how far to go. Its values were
compared on other jobs than those above, {curve.told_seeds}. The default is the value that saves the most GPU-hours
while the jobs of both mixes still end no later than on whole GPUs, on average and with a margin of at least one
standard error ([why](log.md#ranking-nodes-and-gpus)). Changes in GPU-hours, and in mean job time with its standard
error:

{choice(curve)}

**The human's guess.** People who ask for too much memory leave gaps, and those gaps happen to keep jobs apart. So
asking for more makes jobs faster and takes more GPU-hours. To compare like with like, vramcast is set against a guess
that causes no more OOMs than it does, at the `harmless_slowdown` where both make jobs equally fast. That value is
interpolated from the table above and stands behind the result (*at ...*). With the default, jobs may be faster or
slower than with the guess, so the rows *as installed* give both figures. *Both packing only* and *both ranked by
vramcast* compare nothing but the memory that is asked for.

The oracle knows how much the jobs of each pair slow each other down, and also places jobs greedily. It shows what
better forecasts of slowdown would gain ([how good they are now](benchmarks/interference.md)).

**What telemetry adds.** While a task has a GPU to itself, `gpu_util` and `memory_util` show how hard it presses on its
neighbours. In the rows *without memory_util* only `gpu_util` is scraped, and how hard the memory works is forecast.

## When sharing does not pay

- **Busy jobs on a cluster where nothing waits.** Sharing makes jobs faster only where they would otherwise wait for a
  GPU. Where every job keeps a GPU more than 90 % busy by itself, and there is work for only 30 % of the GPUs, the
  changes are:
  - packing only: GPU-hours {packed_gpu}, mean job time {packed_time};
  - with slowdown in the ranking: {busy_gpu} and {busy_time};
  - the same without `memory_util`: {blind_gpu} and {blind_time}.

  The GPUs that packing frees are paid for with slower jobs. Give such jobs `max-slowdown`, or whole GPUs.
- **Tasks about which nothing is known.** `gpu-memory` alone says nothing about utilization. vramcast counts such a task
  with `assumed_utilization` until it has seen it alone on a GPU.

## All policies

*Human*: asks for the true need times a random factor (log-normal around the typical one, spread 0.4), rounded up to
eighths of a GPU, and for twice as much after an OOM. *GPUMemNet*: asks for the upper edge of its class (8 GiB wide; 1
GiB for MLPs), as if it always found the right one. *Horus*: weights, gradients, states and all activations twice, plus
500 MiB. *Oracle*: knows each need, and the slowdown of each pair. *Cold*: vramcast has seen no run. *Learned*: it has
seen as many other jobs before. *Packing only*: `slowdown_weight` 0. *Without memory_util*: telemetry has only
`gpu_util`. *Larger than a GPU*: jobs whose bound exceeds every GPU; their owners then ask for a whole one.

{sections}
## What is simplified

- On a GPU with more than two jobs, the slowdowns of the pairs are added up. Nobody measured more than two.
- A job's memory peaks one minute after its start. A job that does not fit then dies, loses that minute, and starts
  again a minute later. At that moment telemetry shows how much of the GPU is used beyond promises.
- Whenever telemetry polls a job that has a GPU to itself, the job is as busy as Lucid measured it.
- Every process in Lucid's measurements takes about 2 GiB before its first tensor, because an old CUDA loaded all
  kernels at the start. The forecast counts 0.4 GiB for that, so vramcast is too low here until it has seen runs.
- All jobs use one GPU and last between 6 minutes and a day. Host memory and CPU are not simulated.

## Repeat it

```sh
make cluster DATA=DIR
```

DIR has `clusters/` (`gavel_jobs.csv`, `lucid_alone.csv`, `lucid_pairs.csv`) and `extra/gavel_colocation.csv`, made from
stanford-futuredata/gavel and S-Lab-System-Group/Lucid (its data is for non-commercial use). That command makes every
figure on this page, with seeds {FIRST} to {FIRST + seeds - 1}, and with {curve.told_seeds} where `harmless_slowdown` is
varied. Only the jobs per second depend on the machine.
"""


def _plot_policies(path: Path, table: Table) -> None:
    figure = _figure(12, 5)
    axes = figure.subplots(1, 2)
    for place, mix in zip(axes, ("gavel", "lucid"), strict=True):
        for policy in table.policies:
            x = table.ratios(mix, policy, lambda r: r.gpu_hours)
            y = table.ratios(mix, policy, lambda r: r.mean_hours)
            mark = "*" if policy == "oracle" else "o" if policy.startswith("vramcast") else "s"
            spread = {"xerr": np.std(x), "yerr": np.std(y)}
            place.errorbar(np.mean(x), np.mean(y), fmt=mark, capsize=2, label=policy, **spread)
        place.axhline(1, color="grey", linewidth=0.5)
        place.set(title=_NAMES[mix], xlabel="GPU-hours, whole GPUs = 1", ylabel="mean job time, whole GPUs = 1")
    axes[1].legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.02, 1.0))
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _plot_harmless(path: Path, curve: Curve) -> None:
    figure = _figure(12, 4)
    axes = figure.subplots(1, 2)
    for place, mix in zip(axes, ("gavel", "lucid"), strict=True):
        place.plot(curve.limits, curve.means(mix, lambda r: r.gpu_hours), "o-", label="GPU-hours")
        place.plot(curve.limits, curve.means(mix, lambda r: r.mean_hours), "s-", label="job time")
        place.plot(curve.limits, curve.slowed(mix), "^-", label="slowed above 1.3")
        place.set(title=_NAMES[mix], xlabel="harmless_slowdown", ylabel="whole GPUs = 1", ylim=(0, None))
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _figure(width: float, height: float) -> Any:
    """matplotlib is an extra."""
    return importlib.import_module("matplotlib.figure").Figure(figsize=(width, height))
