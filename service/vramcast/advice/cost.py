"""What a change costs, in percent of the time of a step on one GPU.

The cost has two parts. *Time* is estimated from how often a step computes the network, and from figures that others
published. *Trouble* is what a change costs besides: whoever trains adapters instead of the whole network has to find
out whether that is good enough, and eight GPUs are harder to get than one. It is a judgement, stated here, in the same
unit: a change with 60 points of trouble comes after one that makes each step 50 % longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import log2, prod

from vramcast.task.task import Task
from vramcast.task.vocabulary import (
    Allocator,
    Attention,
    Kernels,
    Kind,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Quantization,
)

_FULL_PRECISION = frozenset({Precision.FP32, Precision.TF32})
_CAST = frozenset({Precision.BF16, Precision.FP16})


@dataclass(frozen=True, slots=True)
class Effect:
    """One reason why a change costs something. `time`: what the GPU time of a sample is multiplied by."""

    time: float
    trouble: float
    why: str


@dataclass(frozen=True, slots=True)
class Cost:
    effects: tuple[Effect, ...]
    gpus: int  # that train together
    step: float  # time per step relative to before

    @property
    def trouble(self) -> float:
        return sum(effect.trouble for effect in self.effects)

    @property
    def points(self) -> float:
        """Time that one change saves does not pay for time that another takes: every change costs at least nothing."""
        slower = prod(max(1.0, effect.time) for effect in self.effects)
        return round(100 * (slower - 1) + self.trouble, 3)


def cost_of(before: Task, after: Task) -> Cost:
    effects = tuple(effect for find in _EFFECTS for effect in find(before, after))
    gpus = after.data_parallel_size
    total = prod(effect.time for effect in effects)
    # The samples of a step are divided among the GPUs.
    share = _samples(after) / _samples(before)
    return Cost(effects, gpus, total * share)


def price_of_gpu(before_mib: int, after_mib: int) -> Effect:
    more = max(10.0, 100 * (after_mib / before_mib - 1))
    return Effect(1.0, round(more, 1), "another GPU is priced by its memory: nothing else is known about what it costs")


def _samples(task: Task) -> int:
    return task.batch_size * task.gradient_accumulation


# ---------------------------------------------------------------------- one function for each reason


def _passes(task: Task) -> int:
    """How often a step computes as much as one forward pass."""
    if task.kind is Kind.INFERENCE:
        return 1
    weights = 1 if task.lora_rank is None else 0
    return 1 + 1 + weights + task.gradient_checkpointing


def _computing(before: Task, after: Task) -> Iterator[Effect]:
    """Forward, gradients of activations, gradients of weights, and once more forward with checkpointing."""
    if after.gradient_checkpointing and not before.gradient_checkpointing:
        once = _passes(after) - 1
        why = f"checkpointing computes the forward pass again: {_passes(after)} passes instead of {once}"
        yield Effect(_passes(after) / once, 0.0, why)
    if after.lora_rank is not None and before.lora_rank is None:
        full = _passes(after) + 1
        fewer = f"frozen weights need no gradients: {full - 1} passes instead of {full} (Qwen-7B: 0.77)"
        yield Effect((full - 1) / full, 60.0, f"LoRA trains adapters, not the network: check the result; {fewer}")
        if after.lora_targets == LoraTargets.ATTENTION:
            yield Effect(1.0, 5.0, "adapters on attention only learn less than on all linear layers")


def _quantizing(before: Task, after: Task) -> Iterator[Effect]:
    if after.quantization is before.quantization:
        return
    if after.quantization is Quantization.NF4:
        yield Effect(1.35, 10.0, "nf4 weights are unpacked in each pass (measured on Qwen-7B: 1.35)")
    else:
        yield Effect(1.8, 10.0, "int8 weights are unpacked in each pass: about 1.8 times as long")


def _rounding(before: Task, after: Task) -> Iterator[Effect]:
    if after.precision is before.precision:
        return
    fast = 0.5 if before.precision in _FULL_PRECISION else 1.0
    if fast < 1.0:
        yield Effect(fast, 0.0, "16-bit tensor cores are at least twice as fast as fp32")
    if after.precision in _CAST:
        yield Effect(1.0, 15.0, "weights and optimizer states have 16 bits too: check that the loss still falls")
    else:
        yield Effect(1.0, 5.0, "activations have 16 bits, weights keep 32")


def _optimizing(before: Task, after: Task) -> Iterator[Effect]:
    if after.optimizer is before.optimizer:
        return
    trouble, why = {
        Optimizer.ADAM8BIT: (5.0, "8-bit states, which train as well in most published runs"),
        Optimizer.ADAFACTOR: (25.0, "Adafactor keeps no momentum: tune the learning rate again"),
    }.get(after.optimizer, (80.0, "SGD rarely trains what Adam trains: tune the learning rate again"))
    yield Effect(1.0, trouble, why)


def _batching(before: Task, after: Task) -> Iterator[Effect]:
    halvings = log2(before.batch_size / after.batch_size)
    if halvings > 0:
        why = "smaller batches fill the GPU less: 5 % for each halving, as an estimate"
        yield Effect(1.05**halvings, 1.0, why)
    grown = _samples(after) * after.data_parallel_size / (_samples(before) * before.data_parallel_size)
    if grown > 1:
        yield Effect(1.0, 10.0, f"a step sees {grown:g} times as many samples: tune the learning rate again")


def _spreading(before: Task, after: Task) -> Iterator[Effect]:
    if after.zero_stage != before.zero_stage and after.data_parallel_size > 1:
        volume = {
            2: (1.10, "as much as plain data parallelism"),
            3: (1.20, "1.5 times as much as plain data parallelism"),
        }
        time, much = volume[after.zero_stage]
        yield Effect(time, 0.0, f"ZeRO-{after.zero_stage} sends {much}: about {time - 1:.0%} of a step between GPUs")
    doublings = log2(after.data_parallel_size / before.data_parallel_size)
    if doublings > 0:
        why = f"{after.data_parallel_size} GPUs have to be free at once: 40 points for each doubling"
        yield Effect(1.0, 40.0 * doublings, why)
    if after.offload is not before.offload and after.offload is not Offload.NONE:
        why = "gradients and weights cross PCIe, and the CPU updates the weights: about half a step"
        yield Effect(1.5, 5.0, why)


def _small_changes(before: Task, after: Task) -> Iterator[Effect]:
    if after.allocator is not before.allocator and after.allocator is Allocator.EXPANDABLE_SEGMENTS:
        yield Effect(1.0, 1.0, "expandable segments are one environment variable")
    if before.attention is Attention.EAGER and after.attention is not Attention.EAGER:
        yield Effect(0.72, 0.0, "fused attention computes the same (measured on Qwen-7B: 0.72 of the time)")
    if after.kernels is not before.kernels and after.kernels is Kernels.LIGER:
        yield Effect(0.9, 2.0, "fused kernels compute the same and need a package")


_EFFECTS: tuple[Callable[[Task, Task], Iterator[Effect]], ...] = (
    _computing, _quantizing, _rounding, _optimizing, _batching, _spreading, _small_changes,
)  # fmt: skip
