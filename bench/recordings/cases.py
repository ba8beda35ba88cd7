"""A case is a measured run with all that its recording needs. Readers make cases and count what they leave out."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from statistics import median

from vramcast.forecast.rank_view import Plan

Row = dict[str, str]


class Counters(StrEnum):
    """What a figure counts."""

    ALLOCATED = "torch allocated"  # max_memory_allocated
    ACTIVE = "torch active"  # active_bytes.all.peak: with blocks that another stream still uses
    RESERVED = "torch reserved"
    DEVICE = "nvidia-smi"  # reserved, the CUDA context and communication buffers


class Loss(StrEnum):
    """How a library's version computes a language model's loss: several copies of the logits lie between them."""

    SHIFTED_COPY = "logits in fp32, then a contiguous copy without the last token (transformers < 4.46)"
    SHIFTED_16_BITS = "a contiguous copy in the logits' own format (GPTBigCode, transformers < 4.46)"
    SHIFTED_LABELS = "logits in fp32, shifted labels (transformers >= 4.46)"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is recorded. Two cases with the same recipe share a recording."""

    network: str  # fms/mistralai/Mistral-7B-v0.1, timm/resnet50, torchvision/..., diffusers/...
    batch: int
    size: int | tuple[int, ...]  # tokens, or the image's sides
    weights: str = "fp32"  # their dtype: fp32, bf16, fp16
    autocast: str = ""  # the dtype of autocast, if it is on
    attention: str = "sdpa"
    checkpointing: str = ""  # reentrant, or "plain"
    lora_rank: int = 0
    lora_targets: str = "attention"
    lora_dropout: float = 0.0
    quantization: str = "none"
    upcast: bool = False
    kernels: str = "none"
    fused_activations: bool = True  # with Liger's kernels
    repeated_heads: bool = False  # transformers before 4.48 repeats grouped keys and values for flash attention
    autotuned: bool = False  # torch.backends.cudnn.benchmark
    loss: Loss = Loss.SHIFTED_LABELS
    variant: str = ""  # anything else that shapes the network: frozen stages, a library's caches


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    recipe: Recipe
    product: str
    optimizer: str
    measured_gib: dict[Counters, float]
    fused: bool = False
    plan: Plan | None = None
    expandable_segments: bool = False
    context_mib: int = 0  # what the counter shows beside torch's memory, if it is not the product's context
    late_zero_grad: bool = False  # just before backward
    kept_gradients: bool = False  # zero_grad writes zeros, as torch before 2.0
    kind: str = ""  # a part of the slice that is reported on its own
    next_batch: int = 0  # intervals: this batch did not fit, the recipe's did
    runs: int = 1


@dataclass(slots=True)
class Cases:
    """The cases of a slice, and how many rows were left out for which reason."""

    cases: list[Case] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    rows: int = 0

    def every(self, step: int) -> Cases:
        return Cases(self.cases[::step], self.left_out, self.rows)


def read_rows(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def collapsed(rows: Iterable[Row], keys: tuple[str, ...], figures: tuple[str, ...]) -> Iterator[tuple[Row, int]]:
    """One row for each combination of `keys`, with the median of each figure, and how many rows it stands for."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    for group in groups.values():
        middle = {
            name: str(median(values)) if (values := [float(row[name]) for row in group if row[name]]) else ""
            for name in figures
        }
        yield {**group[0], **middle}, len(group)
