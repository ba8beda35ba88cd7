"""What `vramcast recommend` should say about played pods, counted again from the pods themselves.

Knows nothing of vramcast but its measured scatter: the rules and the sizes of GPUs are written out here once more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from tests.recommend.played import PlayedPod, PlayedWorkload
from vramcast.outcomes.run_memory import SCATTER_BY_AGE

STEP = 300
USABLE_MIB = {
    "NVIDIA A100-SXM4-80GB": 81_280, "NVIDIA A100-SXM4-40GB": 40_510, "NVIDIA L40S": 45_448, "Tesla T4": 14_920,
}  # fmt: skip
# name, MiB, sevenths of the compute, eighths of the memory
SLICES = {
    "NVIDIA A100-SXM4-80GB": [
        ("1g.10gb", 9_728, 1, 1), ("1g.20gb", 19_456, 1, 2), ("2g.20gb", 19_456, 2, 2), ("3g.40gb", 38_912, 3, 4),
        ("4g.40gb", 38_912, 4, 4),
    ],
    "NVIDIA A100-SXM4-40GB": [
        ("1g.5gb", 4_864, 1, 1), ("1g.10gb", 9_728, 1, 2), ("2g.10gb", 9_728, 2, 2), ("3g.20gb", 19_456, 3, 4),
        ("4g.20gb", 19_456, 4, 4),
    ],
}  # fmt: skip
# The measured scatter, within a month and over many: data that changes with every new measurement.
LEAST_MARGIN = {0.05: SCATTER_BY_AGE[0][1][2], 0.1: SCATTER_BY_AGE[0][1][1]}
PUBLISHED_MARGIN = {0.05: SCATTER_BY_AGE[-1][1][2], 0.1: SCATTER_BY_AGE[-1][1][1]}


@dataclass(frozen=True, slots=True)
class Expected:
    runs: int
    pods: int
    peak_mib: int
    need_mib: int
    gpu_hours: float
    share: float | None
    mig: str | None


@dataclass(slots=True)
class Counted:
    workloads: dict[PlayedWorkload, Expected]
    gpus: dict[str, int]  # at the busiest moment, by plan
    gpu_hours: dict[str, float]


def count(pods: list[PlayedPod], risk: float) -> Counted:
    of: dict[PlayedWorkload, list[PlayedPod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: pod.start):
        of[pod.workload].append(pod)
    needs = Needs({workload: peaks(own) for workload, own in of.items()}, risk)
    expected = {workload: expect(workload, own, needs) for workload, own in of.items()}
    gpus, hours = {}, {}
    gpus["as it was"], hours["as it was"] = sweep_places(pods)
    for plan in ("with shares", "with MIG slices"):
        gpus[plan], hours[plan] = replay(pods, expected, plan)
    return Counted(expected, gpus, hours)


def peaks(pods: list[PlayedPod]) -> list[tuple[int, bool]]:
    """(MiB, failed) of each run."""
    runs: dict[str, tuple[int, bool]] = {}
    for pod in pods:
        runs[pod.batch] = (max(pod.peak_mib, runs.get(pod.batch, (0, False))[0]), pod.failed)
    return list(runs.values())


class Needs:
    def __init__(self, runs: dict[PlayedWorkload, list[tuple[int, bool]]], risk: float) -> None:
        self.runs, self.risk, self.enough = runs, risk, round(1 / risk) - 1
        self.margins = {}
        for back in (1, 2, 4, 8, 16):
            ratios = sorted(
                math.log(done[-1] / max(done[-back - 1 : -1]))
                for done in ([mib for mib, failed in each if not failed] for each in runs.values())
                if len(done) > back
            )
            rank = math.ceil((1 - risk) * (len(ratios) + 1) - 1e-9)
            if len(ratios) >= self.enough:
                self.margins[back] = max(ratios[rank - 1], LEAST_MARGIN[risk])

    def of(self, workload: PlayedWorkload) -> int:
        runs = self.runs[workload]
        largest = max(mib for mib, _ in runs)
        whole = sum(not failed for _, failed in runs)
        if whole >= self.enough:
            return max(self.quantile(runs), runs[-1][0])
        backs = [back for back in self.margins if back <= max(whole, 1)]
        margin = self.margins[max(backs)] if backs else PUBLISHED_MARGIN[self.risk] * (2 if whole <= 1 else 1)
        return math.ceil(largest * math.exp(margin) - 1e-6)

    def quantile(self, runs: list[tuple[int, bool]]) -> int:
        """Kaplan-Meier, with one more run above all."""
        left, above = 1.0, len(runs) + 1
        for mib, failed in sorted(runs):
            left *= 1.0 if failed else 1 - 1 / above
            above -= 1
            if left <= self.risk + 1e-9:
                return mib
        return max(mib for mib, _ in runs)


def expect(workload: PlayedWorkload, pods: list[PlayedPod], needs: Needs) -> Expected:
    need, busy, alone = needs.of(workload), workload.busy_percent / 100, workload.gpus - workload.idle_gpus == 1
    part = max(need / USABLE_MIB[workload.model], busy)
    slices = SLICES.get(workload.model, [])
    held = [name for name, mib, sevenths, _ in slices if mib >= need and sevenths / 7 >= busy - 1e-9]
    return Expected(
        len({pod.batch for pod in pods}), len(pods), max(pod.peak_mib for pod in pods), need,
        sum(len(steps(pod)) * len(pod.places) for pod in pods) * STEP / 3600,
        part if alone and part <= 0.9 else None, held[0] if held and alone else None,
    )  # fmt: skip


def steps(pod: PlayedPod) -> set[int]:
    """The ends of the steps in which it was sampled."""
    return {math.ceil(at / STEP) * STEP for at in pod.sampled_at}


def life(pod: PlayedPod) -> tuple[float, float]:
    seen = steps(pod)
    end = min(max(seen), pod.end) if pod.finishes else max(seen)
    return max(min(seen) - STEP, pod.start - 30), end


def sweep_places(pods: list[PlayedPod]) -> tuple[int, float]:
    """GPUs in use, looked at wherever something changes."""
    lives = [(*life(pod), {(node, uuid) for node, uuid, _ in pod.places}) for pod in pods]
    times = sorted({at for start, end, _ in lives for at in (start, end)})
    most, hours = 0, 0.0
    for at, until in pairwise(times):
        used = set().union(*(places for start, end, places in lives if start <= at < end))
        most, hours = max(most, len(used)), hours + len(used) * (until - at) / 3600
    return most, hours


def replay(pods: list[PlayedPod], expected: dict[PlayedWorkload, Expected], plan: str) -> tuple[int, float]:
    """Best fit in the order of time. A GPU is the list of its pods' (memory, compute, end)."""
    gpus: dict[str, list[list[tuple[float, float, float]]]] = defaultdict(list)
    busy_seconds: list[tuple[float, float]] = []
    coming = []
    for pod in pods:
        start, end = life(pod)
        memory, compute = part(pod.workload, expected[pod.workload], plan)
        coming.append((start, -memory, -compute, end, pod))
    for start, memory, compute, end, pod in sorted(coming, key=lambda one: one[:3]):
        pool = gpus[pod.workload.model]
        wanted = pod.workload.gpus - pod.workload.idle_gpus
        free = []
        for number, gpu in enumerate(pool):
            here = [one for one in gpu if one[2] > start]
            room = (1 - sum(one[0] for one in here), 1 - sum(one[1] for one in here))
            if here and -memory < 1 and -compute < 1 and room[0] + 1e-9 >= -memory and room[1] + 1e-9 >= -compute:
                free.append((round(room[0], 9), round(room[1], 9), number))
        chosen = [pool[number] for _, _, number in sorted(free)[:wanted]]
        new: list[list[tuple[float, float, float]]] = [[] for _ in range(wanted - len(chosen))]
        pool += new
        for gpu in chosen + new:
            gpu.append((-memory, -compute, end))
            # How long the GPU was already in use, so that no second counts twice.
            until = max((one[2] for one in gpu[:-1]), default=start)
            if end > max(until, start):
                busy_seconds.append((max(until, start), end))
    times = sorted({at for pair in busy_seconds for at in pair})
    most = max(sum(start <= at < end for start, end in busy_seconds) for at in times)
    return most, sum(end - start for start, end in busy_seconds) / 3600


def part(workload: PlayedWorkload, one: Expected, plan: str) -> tuple[float, float]:
    if plan == "with shares" and one.share is not None:
        return one.need_mib / USABLE_MIB[workload.model], workload.busy_percent / 100
    if plan == "with MIG slices" and one.mig is not None:
        _, _, sevenths, eighths = next(row for row in SLICES[workload.model] if row[0] == one.mig)
        return eighths / 8, sevenths / 7
    return 1.0, 1.0
