"""timm under AMP: no figures, only which batch still ran on a GPU of 24 GB, and which did not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from bench.run_memory.rows import read_rows


@dataclass(frozen=True, slots=True)
class Ladder:
    """One network in one setting: the GPU is full somewhere between these batches."""

    ran: int
    failed: int
    version: str
    layout: str

    @property
    def step(self) -> float:
        return self.failed / self.ran - 1.0

    def least_change(self, other: Ladder) -> float:
        """How much the memory of a sample differs at least. 0: the two do not contradict each other."""
        return max(0.0, math.log(self.ran / other.failed), math.log(other.ran / self.failed))


def ladders(data: Path) -> dict[tuple[str, str], list[Ladder]]:
    """By network and image size."""
    found: dict[tuple[str, str], list[Ladder]] = defaultdict(list)
    for row in read_rows(data / "runs/timm_train_amp_intervals.csv"):
        if row["outcome"] == "interval":
            ladder = Ladder(int(row["batch_per_gpu"]), int(float(row["fail_batch"])), row["framework"], row["kernels"])
            found[row["model_ref"], row["image_size"]].append(ladder)
    return found


def _pairs(networks: dict[tuple[str, str], list[Ladder]], *, layout: bool) -> Iterator[tuple[Ladder, Ladder]]:
    """The same network with another version of torch, or in another layout."""
    for of_network in networks.values():
        for one, other in combinations(of_network, 2):
            same = (one.version == other.version, one.layout == other.layout)
            if same == ((True, False) if layout else (False, True)):
                yield one, other


def _row(name: str, pairs: Sequence[tuple[Ladder, Ladder]]) -> str:
    contradicted = sum(one.least_change(other) > 0 for one, other in pairs)
    return f"| {name} | {len(pairs):,} | {contradicted} | {contradicted / len(pairs):.1%} |"


def _contradicted(networks: dict[tuple[str, str], list[Ladder]]) -> Iterator[str]:
    for (model, side), of_network in networks.items():
        if any(one.least_change(other) > 0 for one, other in combinations(of_network, 2)):
            ran = ", ".join(str(batch) for batch in sorted({ladder.ran for ladder in of_network}))
            yield f"{model.removeprefix('timm/')} at {side} (ran at batches of {ran})"


def amp_section(data: Path) -> str:
    networks = ladders(data)
    steps = [ladder.step for of_network in networks.values() for ladder in of_network]
    rows = [
        _row("another version of torch", list(_pairs(networks, layout=False))),
        _row("the other memory layout", list(_pairs(networks, layout=True))),
    ]
    finest = sorted(steps)[len(steps) // 10]
    contradicted = list(_contradicted(networks))
    return f"""## timm under AMP

These runs have no figure of memory, only the largest batch that ran on a GPU of 24 GB and the next one, which did not.
The two are {median(steps):.0%} apart in the median, and nine in ten at least {finest:.0%}. Even an exact forecast could
not be shown to be right to 2 % by that, so there is no error to report.

What can be checked is whether the runs of one network contradict each other. If memory grows with the batch in a
straight line, as run memory assumes, the same network fills the GPU at the same batch again, with another version of
torch or in another memory layout, which no description has. Then the two intervals overlap.

| the same network and image size | pairs | contradicted | share |
|---|---|---|---|
{chr(10).join(rows)}

{len(contradicted)} of {len(networks)} networks are contradicted: {"; ".join(contradicted)}.
One that runs at hundreds in one setting and at 1 in another failed for a reason other than memory.
"""
