"""What is measured about each job, and the traces that say when jobs come and how long they run.

Memory, utilization and the speed beside each other are Lucid's measurements (RTX 3090); durations and gaps between
arrivals are those of Gavel's traces. A pair that Lucid did not measure, or that did not run together there, is slowed
as the median pair of its classes.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

from bench.cluster.described import annotations_of
from bench.interference.lucid import alone_mib, ran_together

HOUR = 3600.0
# Gavel's models and the most similar ones that Lucid measured.
_ALIKE = {
    "A3C": "PPO", "CycleGAN": "DCGAN", "LM": "LSTM", "Recommendation": "NeuMF", "ResNet-18": "ResNet18",
    "ResNet-50": "ResNet50", "Transformer": "Transformer",
}  # fmt: skip
_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.1 * HOUR, 24 * HOUR
_GAVEL_JOB = re.compile(r"\('([\w-]+)(?: \(batch size (\d+)\))?', 1\)")


@dataclass(frozen=True, slots=True)
class Kind:
    """A measured configuration: `busy` and `traffic` are shares of the time, alone on the GPU."""

    model: str
    dataset: str
    batch_size: int
    amp: bool
    memory_mib: int
    busy: float
    traffic: float

    @property
    def annotations(self) -> dict[str, str]:
        return _annotations(self.model, self.batch_size, self.amp)


@cache
def _annotations(model: str, batch_size: int, amp: bool) -> dict[str, str]:
    return annotations_of(model, batch_size, amp=amp)


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    kind: int  # index of its Kind
    arrives: float  # seconds
    seconds: float  # alone on a GPU


@dataclass(frozen=True, slots=True)
class Measured:
    """`slowdowns[a][b]`: of a job of kind a beside one of kind b."""

    kinds: tuple[Kind, ...]
    slowdowns: tuple[tuple[float, ...], ...]

    def slowdown(self, own: int, others: Sequence[int]) -> float:
        """Pairs are measured. Beside several, the losses are added: nobody measured more than two."""
        return 1.0 + sum(self.slowdowns[own][other] - 1.0 for other in others)


def read_measured(directory: Path) -> Measured:
    """From lucid_alone.csv and lucid_pairs.csv."""
    kinds = tuple(
        Kind(row["model"], row["dataset"], int(row["batchsize"]), row["amp"] == "1", round(float(row["gmem"])),
             float(row["gpu_util"]) / 100, float(row["gmem_util"]) / 100)
        for row in _rows(directory / "lucid_alone.csv")
    )  # fmt: skip
    index = {(k.model, k.dataset, k.batch_size, k.amp): number for number, k in enumerate(kinds)}
    found: dict[tuple[int, int], list[float]] = {}
    memory_mib = alone_mib(_rows(directory / "lucid_alone.csv"))
    for row in _rows(directory / "lucid_pairs.csv"):
        if not ran_together(row, memory_mib):
            continue
        one, two = (
            index[row[f"model{side}"], row[f"dataset{side}"], int(row[f"batchsize{side}"]), row[f"amp{side}"] == "1"]
            for side in (1, 2)
        )
        # Faster than alone is noise of the measurement.
        found.setdefault((one, two), []).append(max(1.0, 1.0 / float(row["speed1"])))
        found.setdefault((two, one), []).append(max(1.0, 1.0 / float(row["speed2"])))
    return Measured(kinds, _filled(kinds, {pair: median(values) for pair, values in found.items()}))


def _filled(kinds: Sequence[Kind], pairs: Mapping[tuple[int, int], float]) -> tuple[tuple[float, ...], ...]:
    """Classes are thirds of the GPU's time."""
    third = [min(2, int(3 * kind.busy)) for kind in kinds]
    alike: dict[tuple[int, int], list[float]] = {}
    for (one, two), value in pairs.items():
        alike.setdefault((third[one], third[two]), []).append(value)
    typical = {classes: median(values) for classes, values in alike.items()}
    numbers = range(len(kinds))
    return tuple(
        tuple(pairs.get((one, two), typical.get((third[one], third[two]), 1.0)) for two in numbers) for one in numbers
    )


@dataclass(frozen=True, slots=True)
class Trace:
    """`seconds` and `alike` by job: how long it runs alone, and the kinds that are most like it."""

    seconds: tuple[float, ...]
    alike: tuple[tuple[int, ...], ...]
    gaps: tuple[float, ...]


def read_trace(directory: Path, gavel_pairs: Path, kinds: Sequence[Kind]) -> Trace:
    """Of Gavel's jobs on one GPU. Steps over the V100's speed give the time."""
    speeds = {}
    for row in _rows(gavel_pairs):
        job = _GAVEL_JOB.fullmatch(row["jobA"])
        if row["gpu"] == "v100" and job:
            speeds[job[1], job[2] or ""] = float(row["tputA_iso"])
    seconds, alike, arrivals = [], [], []
    for row in _rows(directory / "gavel_jobs.csv"):
        if row["gpus"] == "1":
            alone = float(row["steps"]) / speeds[row["job_type"], row["batch_size"]]
            seconds.append(min(max(alone, _SHORTEST_SECONDS), _LONGEST_SECONDS))
            alike.append(_most_alike(row["job_type"], int(row["batch_size"] or 0), kinds))
            arrivals.append((row["trace"], float(row["arrival_seconds"])))
    gaps = [later - earlier for (one, earlier), (two, later) in pairwise(arrivals) if one == two]
    return Trace(tuple(seconds), tuple(alike), tuple(sorted(gaps)[: int(0.99 * len(gaps))]))


def _most_alike(job_type: str, batch_size: int, kinds: Sequence[Kind]) -> tuple[int, ...]:
    """The same network with the nearest batch size, in either precision."""
    same = [number for number, kind in enumerate(kinds) if kind.model == _ALIKE[job_type]]
    nearest = min(abs(kinds[number].batch_size - batch_size) for number in same)
    return tuple(number for number in same if abs(kinds[number].batch_size - batch_size) == nearest)


def draw_jobs(trace: Trace, mix: str, count: int, gpus: int, load: float, seed: int) -> list[Job]:
    """`load`: the work that arrives, over what the GPUs could do with one job each.

    In the mix `gavel` a job has the kind that is most like its own network; in others it has none yet.
    """
    random = Random(f"{mix} {seed}")
    numbers = [random.randrange(len(trace.seconds)) for _ in range(count)]
    gaps = [random.choice(trace.gaps) for _ in range(count)]
    wanted = sum(trace.seconds[number] for number in numbers) / (gpus * load)
    scale, now, jobs = wanted / max(sum(gaps), 1.0), 0.0, []
    for position, (number, gap) in enumerate(zip(numbers, gaps, strict=True)):
        now += gap * scale
        kind = random.choice(trace.alike[number]) if mix == "gavel" else -1
        jobs.append(Job(f"{mix}-{seed}-{position}", kind, now, trace.seconds[number]))
    return jobs


def with_kinds(jobs: Sequence[Job], kinds: int, seed: int) -> list[Job]:
    """Jobs without a kind get one, every kind alike often."""
    random = Random(f"kinds {seed}")
    return [
        Job(job.name, job.kind if job.kind >= 0 else random.randrange(kinds), job.arrives, job.seconds) for job in jobs
    ]


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
