"""How well former runs say what the next one takes, on measured runs.

    python bench/run_memory.py --data DIR --out docs/benchmarks/run-memory.md

`DIR` has `runs/fms_acceleration.csv`, `runs/gpjt_deepspeed_sweeps.csv`, and timm's runs in `measurements.csv` with
their `profiles/`. Each run is hidden in turn and forecast from others of its own task or network; the real RunMemory
answers. What it shifts is the physics prior, which no measured run has touched.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from vramcast.forecast.forecast import Forecast, Source
from vramcast.forecast.forecaster import adjust
from vramcast.forecast.physics import described_prior
from vramcast.names import PodUid, Product
from vramcast.outcomes.outcome import Outcome
from vramcast.outcomes.run_memory import RunMemory
from vramcast.task.quantity import MIB
from vramcast.task.run_status import Ending
from vramcast.task.task import Task, task_fingerprint
from vramcast.task.vocabulary import Level
from vramcast.train.records import Record, RecordOutcome, read_records

RISK = 0.05
GIB_MIB = 1024.0
NAMESPACE = "bench"
PRODUCT = Product("NVIDIA-A100-SXM4-80GB")
# What makes two rows of a table the same task.
SAME_TASK = (
    "model_ref", "gpu", "n_gpus", "batch_per_gpu", "grad_accum", "seq_len", "precision", "method", "lora_rank",
    "lora_targets", "quant", "checkpointing", "attention", "parallelism", "zero_stage", "kernels", "framework", "task",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measured:
    task: Task
    mib: float
    prior_mib: float
    at: float = 0.0  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Answer:
    expected_mib: float
    bound_mib: float
    measured: Measured

    @property
    def error(self) -> float:
        return abs(self.expected_mib / self.measured.mib - 1.0)

    @property
    def covered(self) -> bool:
        return self.measured.mib <= self.bound_mib

    @property
    def over(self) -> float:
        return self.bound_mib / self.measured.mib - 1.0


def answer(known: Sequence[Measured], hidden: Measured, risk: float = RISK) -> Answer | None:
    memory = RunMemory(lambda: hidden.at)
    priors = {run.task: run.prior_mib for run in (*known, hidden)}

    def forecast(task: Task) -> Forecast:
        prior_bytes = round(priors[task] * MIB)
        return Forecast(PRODUCT, prior_bytes, prior_bytes, risk, Source.PHYSICS, "physics")

    for number, run in enumerate(known):
        prior = round(run.prior_mib * MIB)
        memory.record(
            Outcome(
                PodUid(str(number)), f"{NAMESPACE}/p", "", task_fingerprint(run.task), "", Level.NAME, PRODUCT, "",
                risk, prior, prior, round(run.mib * MIB), Ending.SUCCEEDED, run.at,
            ),
            run.task,
        )  # fmt: skip
    recalled = memory.recall(hidden.task, PRODUCT, forecast(hidden.task), forecast)
    if recalled is None:
        return None
    adjusted = adjust(forecast(hidden.task), recalled)
    return Answer(adjusted.median_bytes / MIB, adjusted.bound_bytes / MIB, hidden)


# ------------------------------------------------------------------ the same task again


def fms_repeats(data: Path) -> dict[str, list[tuple[str, float, str]]]:
    """By task: the dates of its runs, their memory (the median of a date), and the model."""
    dated: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    models: dict[str, str] = {}
    for row in rows(data / "runs/fms_acceleration.csv"):
        found = re.search(r"file date (\d{4}-\d\d-\d\d)", row["note"])
        if row["outcome"] == "ok" and row["mem_gib"] and found:
            key = "|".join(row[name] for name in SAME_TASK)
            dated[key][found[1]].append(float(row["mem_gib"]) * GIB_MIB)
            models[key] = row["model_ref"]
    return {
        key: [(date, median(values), models[key]) for date, values in sorted(runs.items())]
        for key, runs in dated.items()
        if len(runs) > 1
    }


def seconds(date: str) -> float:
    return datetime.fromisoformat(date).replace(tzinfo=UTC).timestamp()


def repeats(data: Path, *, earlier: int | None) -> Iterator[Answer]:
    """Each run from the `earlier` runs before it; None: from all of them."""
    for key, runs in fms_repeats(data).items():
        task = Task(Level.NAME, model=key, namespace=NAMESPACE)
        known = [Measured(task, mib, runs[0][1], seconds(date)) for date, mib, _ in runs]
        for at in range(1, len(known)):
            found = answer(known[max(0, at - earlier) if earlier else 0 : at], known[at])
            if found is not None:
                yield found


# ------------------------------------------------------------------ the same network at other sizes


def timm(data: Path) -> dict[tuple[str, str], list[Measured]]:
    """By network and optimizer, at several batch sizes."""
    networks: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for record in read_records(data):
        if record.source == "timm-a100" and record.outcome is RecordOutcome.OK and record.network is not None:
            run = Measured(replace(record.task, namespace=NAMESPACE), record.measured_mib, prior_mib(record))
            networks[record.profile, str(record.task.optimizer)].append(run)
    return {key: runs for key, runs in networks.items() if len(runs) > 2}


def prior_mib(record: Record) -> float:
    assert record.network is not None
    return described_prior(record.network, record.task, record.product).total_bytes / MIB


def other_batches(data: Path, *, known: int) -> Iterator[Answer]:
    for runs in timm(data).values():
        for hidden in runs:
            others = [run for run in runs if run.task.batch_size != hidden.task.batch_size]
            others.sort(key=lambda run: abs(math.log(run.task.batch_size / hidden.task.batch_size)))
            found = answer(others[:known], hidden)
            if found is not None:
                yield found


def without_memory(data: Path) -> Iterator[Answer]:
    for runs in timm(data).values():
        for hidden in runs:
            yield Answer(hidden.prior_mib, hidden.prior_mib, hidden)


def other_lengths(data: Path, *, every: int) -> Iterator[Answer]:
    """Runs at lengths that are multiples of `every` are known; what lies between them is asked for."""
    sweeps: dict[str, list[Measured]] = defaultdict(list)
    for row in rows(data / "runs/gpjt_deepspeed_sweeps.csv"):
        if row["outcome"] != "ok" or not row["mem_gib"] or not row["seq_len"].isdecimal():
            continue
        key = "|".join(row[name] for name in (*SAME_TASK, "source_path") if name not in ("seq_len", "batch_per_gpu"))
        task = Task(
            Level.NAME, model=key, batch_size=int(row["batch_per_gpu"]), sequence_length=int(row["seq_len"]),
            namespace=NAMESPACE,
        )  # fmt: skip
        mib = float(row["mem_gib"]) * GIB_MIB
        sweeps[key].append(Measured(task, mib, mib))
    for runs in sweeps.values():
        known = [run for run in runs if (run.task.sequence_length or 0) % every == 0]
        for hidden in runs:
            nearest = [run for run in known if run.task.batch_size == hidden.task.batch_size]
            length = hidden.task.sequence_length or 1
            nearest.sort(key=lambda run: abs(math.log((run.task.sequence_length or 1) / length)))
            if hidden not in known and len(nearest) > 1 and length > every:
                # The prior would be the answer itself here, so only lines count.
                found = answer(nearest[:4], replace(hidden, prior_mib=hidden.mib))
                if found is not None:
                    yield found


# ------------------------------------------------------------------ the page


def rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


SLICES: tuple[tuple[str, Callable[[Path], Iterator[Answer]], str], ...] = (
    ("fms, the same task after one run", lambda data: repeats(data, earlier=1), "2.5 %; 94 %, 8 %"),
    ("fms, the same task after all earlier runs", lambda data: repeats(data, earlier=None), ""),
    ("timm fp32 on A100, two other batch sizes known", lambda data: other_batches(data, known=2), "2 %"),
    ("timm fp32 on A100, one other batch size known", lambda data: other_batches(data, known=1), ""),
    ("timm fp32 on A100, no run known: the prior alone", without_memory, ""),
    ("DeepSpeed ZeRO, lengths between two that are 256 apart", lambda data: other_lengths(data, every=256), "2 %"),
)

HEAD = """# Run memory on measured runs

How well former runs of a task, or of its network at other sizes, say what the next run takes. Every run is hidden in
turn. The bound is the one at risk 0.05. The prior is physics alone, which has seen none of these runs.

    python bench/run_memory.py --data DIR --out docs/benchmarks/run-memory.md

| runs | cases | median error | mean error | covered | median over-reservation | must |
|---|---|---|---|---|---|---|
"""

TAIL = """
fms repeats the same configurations over a year of library versions; the median of a day counts once. The margins in
`outcomes/run_memory.py` were chosen on these repeats and on timm's batch sizes, so their coverage here is no proof; the
errors are not affected by them. timm's AMP runs are intervals between two batch sizes, not figures, and cannot be
compared.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of measured runs")
    parser.add_argument("--out", type=Path, help="where to write the page")
    arguments = parser.parse_args()
    lines = []
    for name, slice_of, must in SLICES:
        answers = list(slice_of(arguments.data))
        errors = [each.error for each in answers]
        covered = sum(each.covered for each in answers) / len(answers)
        lines.append(
            f"| {name} | {len(answers)} | {median(errors):.1%} | {sum(errors) / len(errors):.1%} | {covered:.1%} | "
            f"{median(each.over for each in answers):.1%} | {must} |"
        )
        print(lines[-1], flush=True)
    if arguments.out:
        arguments.out.write_text(HEAD + "\n".join(lines) + "\n" + TAIL)


if __name__ == "__main__":
    main()
