"""What may be changed about a task so that it needs less memory.

Each dimension is a list of options, and an option is a set of annotations. Combinations that nobody would run, or whose
second part has nothing left to save, are left out: adapters have hardly any optimizer states, quantized weights are not
sharded, and an optimizer that is offloaded takes no memory whatever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product as combinations
from typing import Any

from vramcast.forecast.catalog import CatalogUnusable, builtin_catalog
from vramcast.hardware.products import PRODUCTS
from vramcast.names import Product
from vramcast.task.task import Task
from vramcast.task.vocabulary import (
    KEYS,
    RULES,
    Allocator,
    Architecture,
    Attention,
    Kernels,
    Kind,
    Level,
    LoraTargets,
    Offload,
    Optimizer,
    Precision,
    Quantization,
)
from vramcast.task.words import field_of, word

# Fields of a Task, with the values that they get.
Option = dict[str, Any]
_AS_IT_IS: Option = {}

# Ampere was the first to compute in bf16.
_BF16_CAPABILITY = 8.0
_LORA_RANK = 16
_GPU_COUNTS = (2, 4, 8)
_ADAM = frozenset({Optimizer.ADAM, Optimizer.ADAMW})
_FULL_PRECISION = frozenset({Precision.FP32, Precision.TF32})
_MIXED = frozenset({Precision.AMP_BF16, Precision.AMP_FP16})


@dataclass(frozen=True, slots=True)
class ChangedTask:
    """The task with some options. `changed` names the annotations; empty for the task as it is."""

    task: Task
    changed: frozenset[str]


def candidates(task: Task, product: Product, keep: Collection[str] = ()) -> Iterator[ChangedTask]:
    """Every combination of options that breaks no rule, once. `keep`: annotations that must stay as they are."""
    dimensions = (
        _attention(task), _allocator(), _kernels(task), _precision(task, product), _checkpointing(task),
        _trained(task), _spread(task),
    )  # fmt: skip
    seen = set()
    for chosen in combinations(*dimensions):
        fields = {name: value for option in chosen for name, value in option.items()}
        changed = frozenset(name for name in KEYS if _differs(task, fields, name))
        if changed & set(keep) or not _sensible(task, fields):
            continue
        candidate = _with(task, fields, changed)
        if candidate not in seen and not _breaks_rules(candidate):
            seen.add(candidate)
            yield ChangedTask(candidate, changed)


def _differs(task: Task, fields: Option, name: str) -> bool:
    field = field_of(name)
    return field in fields and fields[field] != getattr(task, field)


def _with(task: Task, fields: Option, changed: frozenset[str]) -> Task:
    """What was assumed about a setting is no longer assumed once it is chosen."""
    assumed = tuple(note for note in task.assumptions if note.partition(" ")[0] not in changed)
    return replace(task, **fields, assumptions=assumed)


def _breaks_rules(task: Task) -> bool:
    values = {name: getattr(task, field_of(name)) for name in KEYS}
    said = {name: value for name, value in values.items() if value is not None and word(value) != KEYS[name].default}
    said |= {"precision": task.precision, "data-parallel-size": task.data_parallel_size}
    return any(rule.broken(said) for rule in RULES)


def _sensible(task: Task, fields: Option) -> bool:
    adapters = fields.get("lora_rank", task.lora_rank) is not None
    quantized = fields.get("quantization", task.quantization) is not Quantization.NONE
    sharded = fields.get("zero_stage", task.zero_stage) > 0
    offloaded = fields.get("offload", task.offload) is not Offload.NONE
    if quantized and sharded:
        return False
    if "optimizer" in fields and (adapters or sharded or offloaded):
        return False
    if adapters and offloaded:
        return False
    return not (adapters and fields.get("zero_stage") == 2)


def is_language_model(task: Task) -> bool:
    """Whether it reads tokens: adapters, attention and fused kernels are for such."""
    if task.level is not Level.NAME or task.model is None:
        return task.sequence_length is not None or task.architecture is Architecture.TRANSFORMER
    try:
        line = builtin_catalog().find(task.model)
    except CatalogUnusable:
        return False
    return line is not None and line.sequence_length is not None


# ---------------------------------------------------------------------- dimensions


def _attention(task: Task) -> list[Option]:
    return [_AS_IT_IS, *([{"attention": Attention.SDPA}] if task.attention is Attention.EAGER else [])]


def _allocator() -> list[Option]:
    return [_AS_IT_IS, {"allocator": Allocator.EXPANDABLE_SEGMENTS}]


def _kernels(task: Task) -> list[Option]:
    offered = task.kernels is not Kernels.LIGER and is_language_model(task)
    return [_AS_IT_IS, *([{"kernels": Kernels.LIGER}] if offered else [])]


def _precision(task: Task, product: Product) -> list[Option]:
    """Towards 16 bits, in the format that the GPU computes in."""
    spec = PRODUCTS.get(product)
    bf16 = spec is None or spec.compute_capability >= _BF16_CAPABILITY
    options: list[Option] = [_AS_IT_IS]
    if task.precision in _FULL_PRECISION:
        options.append({"precision": Precision.AMP_BF16 if bf16 else Precision.AMP_FP16})
    if task.precision in _FULL_PRECISION | _MIXED and bf16:
        options.append({"precision": Precision.BF16})
    return options


def _checkpointing(task: Task) -> list[Option]:
    return [_AS_IT_IS, *([{"gradient_checkpointing": True}] if task.kind is not Kind.INFERENCE else [])]


def _trained(task: Task) -> list[Option]:
    """All weights with another optimizer, or adapters on a base that may be quantized."""
    options: list[Option] = [_AS_IT_IS]
    if task.kind is Kind.INFERENCE:
        return options + [{"quantization": kind} for kind in _quantized(task)]
    if task.lora_rank is not None:
        return options + [{"quantization": kind} for kind in _quantized(task)]
    options += [{"optimizer": optimizer} for optimizer in _smaller_optimizers(task.optimizer)]
    if is_language_model(task):
        for targets in (LoraTargets.ALL_LINEAR, LoraTargets.ATTENTION):
            adapters: Option = {"lora_rank": _LORA_RANK, "lora_targets": targets}
            options += [adapters, *({**adapters, "quantization": kind} for kind in _quantized(task))]
    return options


def _quantized(task: Task) -> tuple[Quantization, ...]:
    return (Quantization.INT8, Quantization.NF4) if task.quantization is Quantization.NONE else ()


def _smaller_optimizers(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    if optimizer in _ADAM:
        return Optimizer.ADAM8BIT, Optimizer.ADAFACTOR, Optimizer.SGD
    return () if optimizer in (Optimizer.SGD, Optimizer.ADAFACTOR) else (Optimizer.SGD,)


def _spread(task: Task) -> list[Option]:
    """Smaller batches, more GPUs, and the host's memory. A step still sees the same samples.

    The one exception is a step that has fewer samples than there are GPUs: then each gets one.
    """
    options = [_AS_IT_IS, *(_batches(task, 1))]
    if task.kind is Kind.INFERENCE:
        return [{"batch_size": option["batch_size"]} for option in options if option] + [_AS_IT_IS]
    if task.zero_stage or task.offload is not Offload.NONE:
        return options
    if task.data_parallel_size > 1:  # they train together already
        sharded: list[Option] = [{"zero_stage": 2}, {"zero_stage": 3}]
        options += [{**option, **stage} for option in list(options) for stage in sharded]
    else:
        for gpus in _GPU_COUNTS:
            stages = ({"zero_stage": stage, "data_parallel_size": gpus} for stage in (2, 3))
            options += [{**option, **stage} for stage in stages for option in _batches(task, gpus)]
    alone = [{**option, "zero_stage": 2} for option in options if not option.get("zero_stage")]
    offloadable = [option for option in options if option.get("zero_stage")] + alone
    return options + [{**option, "offload": Offload.OPTIMIZER} for option in offloadable]


def _batches(task: Task, gpus: int) -> list[Option]:
    """Batch and accumulation on each of so many GPUs, the largest batch first."""
    samples = task.batch_size * task.gradient_accumulation
    if samples % gpus:
        return [{"batch_size": 1, "gradient_accumulation": 1}] if samples < gpus else []
    share = samples // gpus
    return [
        {"batch_size": batch, "gradient_accumulation": share // batch}
        for batch in halved(share)
        if batch <= task.batch_size and (gpus > 1 or batch < task.batch_size)
    ]


def halved(size: int) -> list[int]:
    """The size, and what is left of it when it is divided by its smallest factors: 12, 6, 3, 1."""
    sizes = [size]
    while size > 1:
        factor = next((small for small in (2, 3, 5, 7) if size % small == 0), size)
        size //= factor
        sizes.append(size)
    return sizes
