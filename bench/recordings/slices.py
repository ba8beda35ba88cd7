"""The slices of measured runs, what each must reach, and how its errors are summed up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median

from bench.recordings import diffusion, language, vision
from bench.recordings.cases import Case, Cases, Counters


@dataclass(frozen=True, slots=True)
class Slice:
    name: str
    title: str
    read: Callable[[Path], Cases]
    must: str
    aim: str
    counters: tuple[Counters, ...] = ()  # empty: intervals


SLICES = (
    Slice(
        "fms", "fms, one GPU, fixed length, plain kernels", language.fms_plain, "3 % / 6 %", "1 % / 3 %",
        (Counters.ALLOCATED, Counters.DEVICE),
    ),
    Slice(
        "fms-fused", "the same with fused kernels", language.fms_fused, "4 % / 10 %", "2 % / 5 %",
        (Counters.ALLOCATED, Counters.DEVICE),
    ),
    Slice(
        "fms-fsdp", "fms FSDP, 2-8 GPUs", language.fms_fsdp, "4 % / 12 %", "2 % / 6 %",
        (Counters.ALLOCATED, Counters.DEVICE),
    ),
    Slice(
        "zero", "DeepSpeed ZeRO-2/3, thinned", language.zero, "8 % / 15 %", "3 % / 6 %",
        (Counters.ACTIVE, Counters.RESERVED),
    ),
    Slice("timm-amp", "timm AMP intervals, eager attention", vision.timm_intervals, "83 %; 0.008", "92 %; 0.001"),
    Slice(
        "timm-fp32", "timm fp32 on A100, median / mean", vision.timm_fp32, "4.2 / 5.5 %", "3 / 4.5 %",
        (Counters.DEVICE,),
    ),
    Slice("xmem", "xMem", language.xmem, "4.5 %", "3 %", (Counters.DEVICE,)),
    Slice(
        "zoos", "detection and segmentation of torchvision against OpenMMLab's zoos", vision.zoos, "20 %", "8 %",
        (Counters.ALLOCATED,),
    ),
    Slice(
        "diffusion", "diffusion (CogVideoX, FLUX.2-klein)", diffusion.diffusion, "25 %", "8 %", (Counters.RESERVED,)
    ),
)  # fmt: skip


@dataclass(slots=True)
class Result:
    """What the recordings said of a slice."""

    slice: Slice
    cases: Cases
    said: list[tuple[Case, dict[Counters, float]]] = field(default_factory=list)
    distances: list[tuple[Case, float]] = field(default_factory=list)  # of intervals, signed, in logarithms

    def ratios(self, counter: Counters, kind: str = "") -> list[float]:
        """Said over measured."""
        return [
            found[counter] / case.measured_gib[counter]
            for case, found in self.said
            if counter in case.measured_gib and kind in {"", case.kind}
        ]

    def kinds(self) -> list[str]:
        return sorted({case.kind for case, _ in self.said if case.kind})


def error(ratios: list[float]) -> str:
    return f"{median(abs(ratio - 1) for ratio in ratios):.1%}".replace("%", " %") if ratios else "-"


def mean_error(ratios: list[float]) -> str:
    return f"{mean(abs(ratio - 1) for ratio in ratios):.1%}".replace("%", " %") if ratios else "-"


def bias(ratios: list[float]) -> str:
    """The median of said over measured, as a signed share."""
    return f"{median(ratios) - 1:+.1%}".replace("%", " %") if ratios else "-"


def distance(fits_bytes: float, fails_bytes: float, limit_bytes: float) -> float:
    """0 if the limit lies between what fits and what does not; else how far off in logarithms, with its sign."""
    if fits_bytes > limit_bytes:
        return math.log(fits_bytes / limit_bytes)
    if fails_bytes < limit_bytes:
        return math.log(fails_bytes / limit_bytes)
    return 0.0


def inside(distances: list[float]) -> str:
    share = sum(far == 0 for far in distances) / len(distances)
    return f"{share:.0%}".replace("%", " %") + f"; {mean(abs(far) for far in distances):.4f}"
